/* SPDX-License-Identifier: Apache-2.0 */
/*
 * plot.c: hearth plot: draws the loss of runs, by gnuplot: a small picture on the terminal, and a
 * file on request.
 */
#define _DEFAULT_SOURCE /* popen */
#include "cli/cli.h"
#include "cli/curve.h"
#include "core/mem.h"
#include "net/net.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

#define RUNS_MAX       32
#define FILE_BYTES_MAX (UINT64_C(1) << 30)
#define FILE_NAME      "metrics.jsonl" /* in a trainer's folder */

struct plot {
    const char *path[RUNS_MAX];
    struct hth_curve curve[RUNS_MAX];
    size_t count;
    const char *out;
    int axis; /* enum hth_curve_axis; -1: all */
};

static const char *const axes[] = {"steps", "samples", "time"};
static const char *const labels[] = {"steps", "samples", "seconds of training"};

/* ---- reading ------------------------------------------------------------------------------- */

static enum hth_err read_run(struct hth_env *env, const char *path, struct hth_curve *out)
{
    struct stat st;
    bool is_dir = stat(path, &st) == 0 && S_ISDIR(st.st_mode);
    char *file = is_dir ? hth_asprintf("%s/" FILE_NAME, path) : hth_strdup(path);
    struct hth_blob *bytes;
    enum hth_err err = hth_file_read(env, file, FILE_BYTES_MAX, &bytes);

    if (err != HTH_OK) {
        hth_cli_say_error("%s: %s: expected a trainer's folder, or a file of --metrics", file,
                          hth_err_text(err));
        hth_free(file);
        return err;
    }
    hth_curve_parse(bytes->data, bytes->size, out);
    hth_blob_unref(bytes);
    if (out->lines_bad > 0)
        hth_say_note("%s: %llu lines can't be read and are left out", file,
                     (unsigned long long)out->lines_bad);
    if (out->train.count + out->test.count == 0) {
        hth_cli_say_error("%s: it has no loss yet", file);
        err = HTH_E_NOT_FOUND;
    }
    hth_free(file);
    return err;
}

static void say_run(const char *path, const struct hth_curve *c)
{
    char steps[32], best_at[32];
    const struct hth_curve_point *best = NULL;
    double last = 0;

    for (size_t i = 0; i < c->test.count; i++)
        if (best == NULL || c->test.point[i].loss < best->loss)
            best = &c->test.point[i];
    if (c->train.count > 0)
        last = c->train.point[c->train.count - 1].at[HTH_CURVE_STEPS];
    hth_cli_count_text((uint64_t)last, steps);
    if (best == NULL)
        hth_say("%s: loss %.4f at step %s, not tested yet", path,
                c->train.point[c->train.count - 1].loss, steps);
    else
        hth_say("%s: loss %.4f at step %s, test %.4f, best %.4f at step %s", path,
                c->train.count > 0 ? c->train.point[c->train.count - 1].loss : NAN, steps,
                c->test.point[c->test.count - 1].loss, best->loss,
                hth_cli_count_text((uint64_t)best->at[HTH_CURVE_STEPS], best_at));
}

/* ---- drawing ------------------------------------------------------------------------------- */

/* In gnuplot's quotes. */
static void quote(FILE *to, const char *text)
{
    fputc('\'', to);
    for (; *text != '\0'; text++) {
        if (*text == '\'')
            fputc('\'', to);
        fputc(*text == '\n' ? ' ' : *text, to);
    }
    fputc('\'', to);
}

static void write_data(FILE *to, const char *name, size_t run, const struct hth_curve_line *line)
{
    fprintf(to, "$%s%zu << EOD\n", name, run);
    for (size_t i = 0; i < line->count; i++) {
        const struct hth_curve_point *p = &line->point[i];
        fprintf(to, "%.10g %.10g %.10g %.10g\n", p->at[0], p->at[1], p->at[2], p->loss);
    }
    fputs("EOD\n", to);
}

/* The unit of an axis, so that its numbers are short. */
static double unit_of(const struct plot *p, int axis, const char **word)
{
    double most = 0;

    for (size_t i = 0; i < p->count; i++) {
        const struct hth_curve_line *lines[] = {&p->curve[i].train, &p->curve[i].test};
        for (size_t k = 0; k < HTH_ARRAY_LEN(lines); k++)
            if (lines[k]->count > 0)
                most = fmax(most, lines[k]->point[lines[k]->count - 1].at[axis]);
    }
    *word = most >= 1e7 ? "million " : most >= 1e4 ? "thousand " : "";
    return most >= 1e7 ? 1e6 : most >= 1e4 ? 1e3 : 1;
}

static void write_panel(FILE *to, const struct plot *p, int axis, bool titles)
{
    const char *before = "plot ", *word;
    double unit = unit_of(p, axis, &word);

    fprintf(to, "set xlabel '%s%s'\n", word, labels[axis]);
    for (size_t i = 0; i < p->count; i++) {
        const struct hth_curve *c = &p->curve[i];
        if (c->train.count > 0) {
            fprintf(to, "%s$train%zu using ($%d/%g):4 with lines lc %zu title ", before, i,
                    axis + 1, unit, i + 1);
            quote(to, titles ? p->path[i] : "");
            before = ", ";
        }
        if (c->test.count > 0) {
            char *title = hth_asprintf("%s, test", p->path[i]);
            fprintf(to, "%s$test%zu using ($%d/%g):4 with linespoints lc %zu pt 7 dt 2 title ",
                    before, i, axis + 1, unit, i + 1);
            quote(to, titles ? title : "");
            hth_free(title);
            before = ", ";
        }
    }
    fputc('\n', to);
}

/* Runs gnuplot on a script that begins with `terminal`. */
static enum hth_err draw(const struct plot *p, const char *terminal, const char *out, int axis)
{
    FILE *to = popen("gnuplot 2>&1", "w");

    if (to == NULL)
        return HTH_E_IO;
    fprintf(to, "set terminal %s\n", terminal);
    if (out != NULL) {
        fputs("set output ", to);
        quote(to, out);
        fputc('\n', to);
    }
    for (size_t i = 0; i < p->count; i++) {
        write_data(to, "train", i, &p->curve[i].train);
        write_data(to, "test", i, &p->curve[i].test);
    }
    fputs("set ylabel 'loss'\nset grid\nset key top right\nset xrange [0:*]\n"
          "set format x '%g'\n",
          to);
    if (axis < 0)
        fputs("set multiplot layout 1,3\n", to);
    for (int a = 0; a < (int)HTH_ARRAY_LEN(axes); a++)
        if (axis < 0 || axis == a)
            write_panel(to, p, a, axis >= 0 || a == 0);
    return pclose(to) == 0 ? HTH_OK : HTH_E_UNSUPPORTED;
}

static bool ends_in(const char *text, const char *ending)
{
    size_t len = strlen(text), tail = strlen(ending);

    return len > tail && strcmp(text + len - tail, ending) == 0;
}

/* The file that becomes the picture once it is whole; heap. */
static char *part_of(const struct plot *p)
{
    return hth_asprintf("%s.part-%ld", p->out, (long)getpid());
}

static enum hth_err draw_file(const struct plot *p)
{
    const char *size = p->axis < 0 ? "1500,450" : "800,500";
    char *terminal = hth_asprintf("%s noenhanced size %s font 'DejaVu Sans,11'%s",
                                  ends_in(p->out, ".png") ? "pngcairo" : "svg", size,
                                  ends_in(p->out, ".png") ? "" : " background 'white'");
    char *part = part_of(p);
    enum hth_err err = draw(p, terminal, part, p->axis);

    if (err == HTH_OK && rename(part, p->out) != 0)
        err = HTH_E_IO;
    (void)!unlink(part); /* there after an error */
    hth_free(part);
    hth_free(terminal);
    if (err == HTH_OK)
        hth_say("%s", p->out);
    return err;
}

static enum hth_err draw_terminal(const struct plot *p)
{
    struct winsize w = {.ws_col = 80};
    bool tty = isatty(STDOUT_FILENO) && ioctl(STDOUT_FILENO, TIOCGWINSZ, &w) == 0 && w.ws_col > 40;
    char *terminal = hth_asprintf("dumb noenhanced size %d,20%s",
                                  tty ? HTH_MIN((int)w.ws_col - 1, 110) : 79, tty ? " ansi" : "");
    enum hth_err err = draw(p, terminal, NULL, HTH_MAX(p->axis, 0));

    hth_free(terminal);
    return err;
}

static enum hth_err plot_all(struct plot *p, struct hth_env *env)
{
    enum hth_err err;

    for (size_t i = 0; i < p->count; i++)
        HTH_TRY(read_run(env, p->path[i], &p->curve[i]));
    fflush(stdout);
    err = draw_terminal(p);
    for (size_t i = 0; i < p->count; i++)
        say_run(p->path[i], &p->curve[i]);
    if (err == HTH_OK && p->out != NULL)
        err = draw_file(p);
    if (err != HTH_OK)
        hth_cli_say_error("no picture: gnuplot is missing or failed (Debian: gnuplot-nox)");
    return err;
}

/* ---- the verb ------------------------------------------------------------------------------ */

static void check_out(const struct plot *p, const struct argp_state *state)
{
    if (p->out == NULL)
        return;
    if (!ends_in(p->out, ".svg") && !ends_in(p->out, ".png"))
        argp_error(state, "--out '%s': expected a name that ends in .svg or .png", p->out);
    char *part = part_of(p);
    FILE *file = fopen(part, "w");
    if (file == NULL)
        argp_error(state, "--out '%s': %s", p->out, strerror(errno));
    else
        fclose(file);
    (void)!unlink(part);
    hth_free(part);
}

static error_t parse(int key, char *arg, struct argp_state *state)
{
    struct plot *p = state->input;

    switch (key) {
    case 'o':
        p->out = arg;
        return 0;
    case 'b':
        for (p->axis = 0; p->axis < (int)HTH_ARRAY_LEN(axes); p->axis++)
            if (strcmp(arg, axes[p->axis]) == 0)
                return 0;
        argp_error(state, "--by '%s': expected steps, samples or time", arg);
        return 0;
    case ARGP_KEY_ARG:
        if (p->count == RUNS_MAX)
            argp_error(state, "at most %d runs at once", RUNS_MAX);
        else
            p->path[p->count++] = arg;
        return 0;
    case ARGP_KEY_END:
        if (p->count == 0)
            argp_error(state, "which run? Give the folders of trainers, or files of --metrics");
        check_out(p, state);
        return 0;
    }
    return ARGP_ERR_UNKNOWN;
}

int hth_verb_plot(int argc, char **argv)
{
    static const struct argp_option options[] = {
        {"out", 'o', "FILE", 0, "Also draw this picture, .svg or .png", 0},
        {"by", 'b', "AXIS", 0,
         "steps, samples or time (default: steps on the terminal, all three in the picture)", 0},
        {0}};
    static const struct argp argp = {
        .options = options,
        .parser = parse,
        .args_doc = "RUN...",
        .doc = "Draw the loss of runs, in training and in tests. RUN is a trainer's folder (--dir) "
               "or a file of its --metrics."};
    struct plot p = {.axis = -1};
    struct hth_net_opts net = HTH_NET_OPTS_INIT;
    struct hth_env *env;
    enum hth_err err;

    if (argp_parse(&argp, argc, argv, 0, NULL, &p) != 0)
        return HTH_EXIT_USAGE;
    err = hth_net_new(&net, &env);
    if (err == HTH_OK) {
        err = plot_all(&p, env);
        hth_net_free(env);
    }
    for (size_t i = 0; i < p.count; i++)
        hth_curve_clear(&p.curve[i]);
    return err == HTH_OK ? HTH_EXIT_OK : HTH_EXIT_FAILURE;
}

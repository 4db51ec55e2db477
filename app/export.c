/* SPDX-License-Identifier: Apache-2.0 */
/*
 * export.c: hearth export: writes a trained model as a folder that others can use.
 *
 *     MODEL/model.safetensors   all weights (trunk + experts)     trainer/model_file.h
 *     MODEL/config.json         sizes, options, step              app/model_card.h
 *     MODEL/run.yaml            the run file
 *     MODEL/words.json, MODEL/codebook.safetensors                of the data, where it has them
 *     MODEL/README.md, MODEL/sha256sums
 */
#include "app/model_card.h"
#include "app/model_dir.h"
#include "app/opened.h"
#include "app/peer.h"
#include "cli/cli.h"
#include "cli/config.h"
#include "core/mem.h"
#include "data/set.h"
#include "data/words.h"
#include "dht/directory.h"
#include "experts/fetch.h"
#include "net/net.h"
#include "trainer/book_file.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define RUN "run.yaml"

struct exporting {
    struct hth_opened_opts from;
    const char *out;
    enum hth_dtype dtype;
    struct hth_cli_net net; /* only --join, --invite and --network */
    int64_t patience_us;    /* for the next expert */

    struct hth_env *env;
    struct hth_opened opened;
    struct hth_model_about about;      /* what the model's file will say */
    struct hth_model_file_part *parts; /* the trunk, then the experts that were found */
    size_t part_count;
    uint32_t experts_all;
    struct hth_model_dir model;
    struct hth_why why;
    int code; /* of an attempt to join, which has said why; 0: none failed */
};

static int fail(const struct hth_why *why, enum hth_err err)
{
    int code = hth_exit_of(err);
    hth_cli_say_error("%s", why->text[0] != '\0' ? why->text : hth_err_text(err));
    return code == HTH_EXIT_NETWORK || code == HTH_EXIT_DEVICE ? HTH_EXIT_FAILURE : code;
}

/* ---- collecting ---------------------------------------------------------------------------- */

/* Takes the texts and the bytes. */
static void add_part(struct exporting *x, char *file, char *uid, struct hth_blob *bytes)
{
    x->parts = hth_realloc(x->parts, x->part_count + 1, sizeof(*x->parts));
    x->parts[x->part_count++] = (struct hth_model_file_part){file, uid, bytes};
}

static enum hth_err read_trunk(struct exporting *x)
{
    struct hth_opened *o = &x->opened;

    HTH_TRY(hth_opened_read(x->env, &x->from, o, &x->why));
    add_part(x, hth_strdup(o->path), NULL,
             hth_blob_ref((struct hth_blob *)hth_trained_bytes(o->trained)));
    x->about = *o->about;
    return HTH_OK;
}

static enum hth_err read_expert(struct exporting *x, const struct hth_grid *grid, uint32_t index)
{
    struct hth_uid uid = {.ncoord = grid->ndim};
    char text[HTH_UID_TEXT_MAX], *path;
    struct hth_blob *bytes;
    enum hth_err err;

    memcpy(uid.name, grid->name, sizeof(uid.name));
    hth_grid_coords(grid, index, uid.coord);
    hth_uid_text(&uid, text);
    path = hth_asprintf("%s/experts/%s.safetensors", x->opened.folder, text);
    err = hth_file_read(x->env, path, HTH_CHECKPOINT_BYTES_MAX, &bytes);
    if (err == HTH_OK) {
        add_part(x, path, hth_strdup(text), bytes);
        return HTH_OK;
    }
    if (err != HTH_E_NO_FILE)
        err = hth_blame(&x->why, err, "%s: %s", path, hth_err_text(err));
    hth_free(path);
    return err == HTH_E_NO_FILE ? HTH_OK : err;
}

/* Whether experts of this run have weights. */
static bool has_weights(const struct hth_runfile *run)
{
    struct hth_expert_opts expert;
    const struct hth_expert_kind *kind;

    hth_config_expert(run, &expert);
    kind = hth_expert_kind_find(expert.kind);
    return kind->shape(&expert.shape) == HTH_OK && kind->weights(&expert.shape) > 0;
}

static enum hth_err read_files(struct exporting *x, const struct hth_grid *grids, uint32_t count)
{
    for (uint32_t s = 0; s < count; s++)
        for (uint32_t i = 0; i < hth_grid_size(&grids[s]); i++)
            HTH_TRY(read_expert(x, &grids[s], i));
    return HTH_OK;
}

struct joined {
    struct hth_peer peer;
    struct hth_directory *directory;
    struct hth_fetch_opts opts;
    struct hth_fetch *fetch;
};

static void on_fetched(void *arg)
{
    struct joined *j = arg;
    hth_peer_stop(&j->peer, HTH_EXIT_OK);
}

static void on_joined(void *arg)
{
    struct joined *j = arg;
    if (j->fetch != NULL)
        return;
    enum hth_err err = hth_fetch_new(j->peer.env, j->peer.rpc, j->directory, &j->opts, &j->fetch);
    if (err == HTH_OK)
        return;
    hth_cli_say_error("experts: %s", hth_err_text(err));
    hth_peer_stop(&j->peer, hth_exit_of(err));
}

/* Joins for the time that fetching takes. Returns an exit code; prints errors of joining. */
static int join(struct exporting *x, const struct hth_fetch_opts *fetch)
{
    struct joined j = {.opts = *fetch};
    const struct hth_cli_log log = {0};
    const struct hth_peer_opts opts = {.env = x->env,
                                       .verb = "export",
                                       .net = &x->net,
                                       .log = &log,
                                       .run = x->opened.run,
                                       .quiet = true,
                                       .ephemeral = true};
    struct hth_directory_opts directory = HTH_DIRECTORY_OPTS_INIT;
    int code = hth_peer_open(&opts, &j.peer);
    if (code != HTH_EXIT_OK)
        return code;
    j.opts.on_done = on_fetched;
    j.opts.done_arg = &j;
    j.peer.on_joined = on_joined;
    j.peer.arg = &j;
    directory.network = j.peer.network;
    enum hth_err err = hth_directory_new(j.peer.env, j.peer.dht, &directory, &j.directory);
    code = err == HTH_OK ? hth_peer_run(&j.peer) : hth_exit_of(err);
    hth_peer_jobs_end(&j.peer);
    hth_fetch_free(j.fetch);
    hth_directory_free(j.directory);
    hth_peer_close(&j.peer);
    return code;
}

static void on_expert_take(void *arg, const struct hth_uid *uid, enum hth_err err,
                           struct hth_blob *bytes)
{
    struct exporting *x = arg;
    char text[HTH_UID_TEXT_MAX];

    hth_uid_text(uid, text);
    if (err == HTH_OK)
        add_part(x, hth_asprintf("%s from its host", text), hth_strdup(text), bytes);
    else if (err == HTH_E_TOO_LARGE)
        (void)hth_blame(&x->why, err,
                        "%s: its weights are more than a host sends in one reply: copy the files "
                        "experts/*.safetensors of the hosts' folders to %s/experts/, and export "
                        "without --join",
                        text, x->opened.folder);
    else
        hth_say_note("%s: %s", text, err == HTH_E_NOT_FOUND ? "no host has it" : hth_err_text(err));
}

static int by_place(const void *a, const void *b)
{
    const struct hth_model_file_part *x = a, *y = b;
    struct hth_uid u, v;

    if (hth_uid_parse(x->uid, strlen(x->uid), &u) != HTH_OK ||
        hth_uid_parse(y->uid, strlen(y->uid), &v) != HTH_OK)
        return 0;                                          /* never: they were written from uids */
    int names = (int)strlen(u.name) - (int)strlen(v.name); /* ffn9 before ffn10 */
    names = names != 0 ? names : strcmp(u.name, v.name);
    for (uint32_t i = 0; i < u.ncoord && names == 0; i++)
        names = u.coord[i] < v.coord[i] ? -1 : u.coord[i] > v.coord[i];
    return names;
}

/* Experts come in any order; the file has them in that of the grids. */
static enum hth_err read_hosts(struct exporting *x, const struct hth_grid *grids, uint32_t count)
{
    const struct hth_layer_shape shape = hth_config_shape(x->opened.run);
    const struct hth_fetch_opts opts = {.grids = grids,
                                        .grid_count = count,
                                        .shape = &shape,
                                        .patience_us = x->patience_us,
                                        .on_expert_take = on_expert_take,
                                        .arg = x};

    x->code = join(x, &opts);
    qsort(x->parts + 1, x->part_count - 1, sizeof(*x->parts), by_place);
    if (x->code != HTH_EXIT_OK)
        return HTH_E_CANCELED;
    return x->why.text[0] == '\0' ? HTH_OK : HTH_E_TOO_LARGE;
}

static enum hth_err read_experts(struct exporting *x)
{
    const struct hth_model_opts *opts = &x->opened.model;
    struct hth_grid grids[HTH_MODEL_LAYERS_MAX];
    uint32_t count;

    if (!x->about.experts || opts->dense || !has_weights(x->opened.run))
        return HTH_OK;
    count = hth_model_sets(opts);
    for (uint32_t s = 0; s < count; s++) {
        HTH_TRY(hth_config_grid(x->opened.run, s, &grids[s]));
        x->experts_all += hth_grid_size(&grids[s]);
    }
    HTH_TRY(hth_cli_joins(&x->net) ? read_hosts(x, grids, count) : read_files(x, grids, count));
    if (x->part_count == 1)
        return hth_blame(&x->why, HTH_E_NO_FILE,
                         "none of the run's %u experts is %s%s: fetch them from their hosts with "
                         "--join HOST:PORT",
                         x->experts_all, hth_cli_joins(&x->net) ? "found" : "in ",
                         hth_cli_joins(&x->net) ? "" : x->opened.folder);
    if (x->part_count - 1 < x->experts_all)
        hth_say_note("%zu of %u experts were found; the model will do without the others",
                     x->part_count - 1, x->experts_all);
    return HTH_OK;
}

/* ---- words and code book ------------------------------------------------------------------- */

static void add_side(struct exporting *x, const char *name, struct hth_blob *bytes)
{
    if (bytes != NULL)
        hth_model_dir_add_take(&x->model, name, hth_blob_ref(bytes));
}

static enum hth_err read_side(struct exporting *x)
{
    struct hth_opened *o = &x->opened;

    HTH_TRY(hth_opened_data(x->env, o, &x->why));
    if (o->set != NULL) {
        const struct hth_manifest *m = hth_set_manifest(o->set);
        x->about.data = m->name;
        x->about.licence = m->licence[0] != '\0' ? m->licence : NULL;
    }
    if (hth_side_needed(o->run) && o->words == NULL)
        hth_say_note("the model has no words with it: %s", o->no_set.text);
    else
        HTH_TRY(hth_opened_check_words(o, &x->why));
    add_side(x, HTH_WORDS_FILE, o->side.words);
    add_side(x, HTH_BOOK_FILE, o->side.book);
    return HTH_OK;
}

/* ---- writing ------------------------------------------------------------------------------- */

static uint64_t count_parameters(const struct hth_st_reader *r)
{
    uint64_t count = 0;

    for (size_t i = 0; i < hth_st_count(r); i++)
        count += hth_st_at(r, i)->bytes / hth_dtype_size(hth_st_at(r, i)->dtype);
    return count;
}

static enum hth_err write_model(struct exporting *x)
{
    struct hth_model_card card = {.run = x->opened.run,
                                  .about = &x->about,
                                  .dtype = x->dtype,
                                  .experts = (uint32_t)x->part_count - 1,
                                  .experts_all = x->experts_all,
                                  .words = hth_model_dir_find(&x->model, HTH_WORDS_FILE) != NULL,
                                  .book = hth_model_dir_find(&x->model, HTH_BOOK_FILE) != NULL};
    struct hth_st_reader *made;
    struct hth_blob *bytes;
    char *config, *readme, size[16];
    enum hth_err err =
        hth_model_file_make(x->parts, x->part_count, &x->about, x->dtype, &bytes, &x->why);

    if (err != HTH_OK)
        return err;
    hth_model_dir_add_take(&x->model, HTH_MODEL_FILE, bytes);
    HTH_TRY(hth_model_file_open(HTH_MODEL_FILE, bytes, &made, &x->why));
    card.parameters = count_parameters(made);
    hth_st_close(made);
    config = hth_model_card_config(&card);
    readme = hth_model_card_readme(&card);
    hth_model_dir_add_text(&x->model, "config.json", config);
    hth_model_dir_add_text(&x->model, "README.md", readme);
    hth_model_dir_add_text(&x->model, RUN, x->about.run_text);
    hth_free(config);
    hth_free(readme);
    HTH_TRY(hth_model_dir_write(x->env, &x->model, x->out, &x->why));
    hth_say("%s: step %llu of run '%s', %llu parameters, %u experts, %s", x->out,
            (unsigned long long)x->about.updates, x->about.run, (unsigned long long)card.parameters,
            card.experts, hth_cli_bytes_text((double)bytes->size, size));
    return HTH_OK;
}

static enum hth_err export_all(struct exporting *x)
{
    HTH_TRY(read_trunk(x));
    HTH_TRY(read_experts(x));
    HTH_TRY(read_side(x));
    return write_model(x);
}

static void clear(struct exporting *x)
{
    for (size_t i = 0; i < x->part_count; i++) {
        hth_free((char *)x->parts[i].file);
        hth_free((char *)x->parts[i].uid);
        hth_blob_unref((struct hth_blob *)x->parts[i].bytes);
    }
    hth_free(x->parts);
    hth_model_dir_clear(&x->model);
    hth_opened_clear(&x->opened);
}

static error_t parse_export(int key, char *arg, struct argp_state *state)
{
    struct exporting *x = state->input;

    switch (key) {
    case 'D':
        x->from.dir = arg;
        return 0;
    case 'c':
        x->from.checkpoint = arg;
        return 0;
    case 'o':
        x->out = arg;
        return 0;
    case 'd':
        x->from.data = arg;
        return 0;
    case 'j':
        hth_cli_check_host(state, "--join", arg, 1, "example.org:4700");
        if (x->net.join_count == HTH_CLI_JOIN_MAX)
            argp_error(state, "--join at most %d times", HTH_CLI_JOIN_MAX);
        else
            x->net.join[x->net.join_count++] = arg;
        return 0;
    case 'i':
        hth_cli_take_invite(state, arg, &x->net);
        return 0;
    case 'w':
        if (hth_cli_parse_time(arg, &x->patience_us) != HTH_OK || x->patience_us <= 0)
            argp_error(state, "--wait '%s': expected a time such as 20s or 2min", arg);
        return 0;
    case 'n':
        x->net.network = arg;
        return 0;
    case 't':
        if (strcmp(arg, "fp32") != 0 && strcmp(arg, "bf16") != 0)
            argp_error(state, "--dtype '%s': expected fp32 or bf16", arg);
        x->dtype = strcmp(arg, "bf16") == 0 ? HTH_BF16 : HTH_F32;
        return 0;
    case ARGP_KEY_END:
        if (x->from.dir == NULL || x->out == NULL)
            argp_error(state, "--dir DIR and --out MODEL are required");
        return 0;
    }
    return ARGP_ERR_UNKNOWN;
}

int hth_verb_export(int argc, char **argv)
{
    static const struct argp_option options[] = {
        {"dir", 'D', "DIR", 0, "The trainer's folder, with trunk.safetensors (required)", 0},
        {"checkpoint", 'c', "WHICH", 0,
         "last, best (by test loss) or a step, of those that train --keep left (default last)", 0},
        {"out", 'o', "MODEL", 0, "The folder to write; an earlier export there is replaced", 0},
        {"join", 'j', "HOST:PORT", 0,
         "Fetch the experts from their hosts, through this peer (repeatable; default: the folder's "
         "experts/)",
         0},
        {"invite", 'i', "TEXT|@FILE|-", 0, "Likewise in a closed run, with this invite", 0},
        {"wait", 'w', "TIME", 0, "From hosts: for the next expert (default 20s)", 0},
        {"network", 'n', "NAME", 0, "The swarm's name (default: the run file's)", 0},
        {"data", 'd', "DATA", 0,
         "The data set with words and code book (default: the run file's data.path)", 0},
        {"dtype", 't', "TYPE", 0, "Type of the weights: fp32 or bf16 (default fp32)", 0},
        {0}};
    static const struct argp argp = {
        .options = options,
        .parser = parse_export,
        .doc = "Write a trained model as a folder that others can use: all weights in one "
               "safetensors file, config.json, a model card."};
    struct exporting x = {.dtype = HTH_F32, .net.once = true, .patience_us = 20 * HTH_US_PER_S};
    struct hth_net_opts net = HTH_NET_OPTS_INIT;
    enum hth_err err;

    if (argp_parse(&argp, argc, argv, 0, NULL, &x) != 0)
        return HTH_EXIT_USAGE;
    err = hth_net_new(&net, &x.env);
    if (err != HTH_OK)
        return fail(&x.why, err);
    err = export_all(&x);
    clear(&x);
    hth_net_free(x.env);
    if (x.code != HTH_EXIT_OK)
        return x.code;
    return err == HTH_OK ? HTH_EXIT_OK : fail(&x.why, err);
}

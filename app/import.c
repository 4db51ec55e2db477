/* SPDX-License-Identifier: Apache-2.0 */
/*
 * import.c: hearth import: makes the folder of an export (export.c) the start of a run: a trunk's
 * checkpoint, a file per expert, words and code book, in a new state folder.
 *
 * The run is the exported one, at its step, or a new one of another run file with the same model,
 * which begins at step 0. The optimisers begin anew in both.
 */
#include "app/model_dir.h"
#include "app/opened.h"
#include "app/run_size.h"
#include "cli/cli.h"
#include "cli/config.h"
#include "core/mem.h"
#include "data/words.h"
#include "net/net.h"
#include "trainer/book_file.h"
#include "trainer/model_file.h"

#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

struct importing {
    const char *from, *dir, *run_path;

    struct hth_env *env;
    struct hth_model_dir model;
    struct hth_st_reader *reader;
    struct hth_model_about about;
    struct hth_runfile *run;
    uint32_t experts;
    char **written; /* paths, for an import that fails */
    size_t written_count;
    struct hth_why why;
};

static int fail(const struct hth_why *why, enum hth_err err)
{
    int code = hth_exit_of(err);
    if (why->text[0] != '\0')
        hth_cli_say_error("%s", why->text);
    else if (err != HTH_E_CONFIG && err != HTH_E_NO_FILE)
        hth_cli_say_error("%s", hth_err_text(err));
    return code == HTH_EXIT_NETWORK || code == HTH_EXIT_DEVICE ? HTH_EXIT_FAILURE : code;
}

/* ---- reading ------------------------------------------------------------------------------- */

static enum hth_err take_run(struct importing *m)
{
    char error[HTH_RUNFILE_ERROR_MAX];
    const char *text = m->about.run_text;
    enum hth_err err;

    if (m->run_path == NULL) {
        err =
            hth_runfile_parse(HTH_MODEL_FILE, (const uint8_t *)text, strlen(text), &m->run, error);
        return err == HTH_OK ? HTH_OK : hth_blame(&m->why, err, "%s: %s", m->from, error);
    }
    HTH_TRY(hth_config_load(m->run_path, &m->run)); /* prints */
    if (m->run->text == NULL)
        return hth_blame(&m->why, HTH_E_CONFIG, "%s is not UTF-8", m->run_path);
    m->about.run = m->run->run;
    m->about.run_text = m->run->text;
    m->about.updates = m->about.samples = m->about.schema = 0;
    return HTH_OK;
}

/* As many bytes as a model of the run file can have, in fp32 with a header; the smaller files have
 * bounds of their own. */
static enum hth_err find_most(struct importing *m, uint64_t *most)
{
    char *path =
        m->run_path != NULL ? hth_strdup(m->run_path) : hth_asprintf("%s/run.yaml", m->from);
    struct hth_runfile *run = NULL;
    struct hth_run_sizes size = {.experts = 0};
    enum hth_err err = HTH_OK;

    *most = HTH_BOOK_FILE_BYTES_MAX;
    if (access(path, R_OK) == 0)           /* else it is no such folder, as its reader says */
        err = hth_config_load(path, &run); /* prints */
    if (err == HTH_OK && run != NULL)
        err = hth_run_sizes(path, run, &size);
    if (err == HTH_OK)
        *most = HTH_MAX(*most, HTH_ST_HEADER_BYTES_MAX +
                                   sizeof(float) * (size.trunk.parameters +
                                                    size.experts * size.expert.parameters));
    hth_runfile_free(run);
    hth_free(path);
    return err;
}

static enum hth_err read_model(struct importing *m)
{
    const struct hth_blob *bytes;
    uint64_t most;

    HTH_TRY(find_most(m, &most));
    HTH_TRY(hth_model_dir_read(m->env, m->from, most, &m->model, &m->why));
    bytes = hth_model_dir_find(&m->model, HTH_MODEL_FILE);
    if (bytes == NULL)
        return hth_blame(&m->why, HTH_E_CORRUPT, "%s lists no " HTH_MODEL_FILE, m->from);
    HTH_TRY(hth_model_file_open(HTH_MODEL_FILE, bytes, &m->reader, &m->why));
    HTH_TRY(hth_model_file_about(HTH_MODEL_FILE, m->reader, &m->about, &m->why));
    return take_run(m);
}

/* ---- writing ------------------------------------------------------------------------------- */

/* Drops the reference to bytes. */
static enum hth_err put_take(struct importing *m, const char *name, struct hth_blob *bytes)
{
    char *path = hth_asprintf("%s/%s", m->dir, name);
    enum hth_err err = hth_file_write(m->env, path, &(struct hth_span){bytes, 0, bytes->size}, 1);

    if (err != HTH_OK)
        err = hth_blame(&m->why, err, "%s: %s", path, hth_err_text(err));
    m->written = hth_realloc(m->written, m->written_count + 1, sizeof(*m->written));
    m->written[m->written_count++] = path;
    hth_blob_unref(bytes);
    return err;
}

/* Leaves nothing of a model that could not be read to its end. */
static void forget(struct importing *m, enum hth_err err)
{
    char *experts = hth_asprintf("%s/experts", m->dir);

    for (size_t i = 0; i < m->written_count; i++) {
        if (err != HTH_OK)
            (void)!unlink(m->written[i]);
        hth_free(m->written[i]);
    }
    hth_free(m->written);
    if (err != HTH_OK) {
        (void)!rmdir(experts); /* only if they are empty */
        (void)!rmdir(m->dir);
    }
    hth_free(experts);
}

static enum hth_err put_expert(struct importing *m, const struct hth_uid *uid)
{
    struct hth_expert_opts opts;
    struct hth_expert *expert;
    struct hth_blob *bytes;
    char *name;
    enum hth_err err;

    hth_config_expert(m->run, &opts);
    opts.backend = hth_backend_ref();
    opts.uid = *uid;
    HTH_TRY(hth_expert_new(&opts, &expert));
    name = hth_asprintf("experts/%s.safetensors", hth_expert_uid_text(expert));
    err = hth_model_file_expert(m->reader, expert, &bytes, &m->why);
    if (err == HTH_OK)
        err = put_take(m, name, bytes);
    m->experts++;
    hth_free(name);
    hth_expert_free(expert);
    return err;
}

/* Whether layers of the run ask for that expert. */
static bool is_in_grid(const struct importing *m, const struct hth_model_opts *opts,
                       const struct hth_uid *uid)
{
    uint32_t sets = m->about.experts && !opts->dense ? hth_model_sets(opts) : 0, index;
    struct hth_grid grid;

    for (uint32_t s = 0; s < sets; s++)
        if (hth_config_grid(m->run, s, &grid) == HTH_OK &&
            hth_grid_find(&grid, uid, &index) == HTH_OK)
            return true;
    return false;
}

static enum hth_err put_experts(struct importing *m, const struct hth_model_opts *opts)
{
    char text[HTH_UID_TEXT_MAX];
    struct hth_uid uid;

    for (size_t at = 0; hth_model_file_next(m->reader, &at, text);) {
        if (hth_uid_parse(text, strlen(text), &uid) != HTH_OK || !is_in_grid(m, opts, &uid))
            return hth_blame(&m->why, HTH_E_WRONG_RUN,
                             "%s: its expert '%s' is not in the grid of the run file", m->from,
                             text);
        HTH_TRY(put_expert(m, &uid));
    }
    return HTH_OK;
}

static enum hth_err put_side(struct importing *m, const char *name)
{
    const struct hth_blob *bytes = hth_model_dir_find(&m->model, name);

    return bytes == NULL ? HTH_OK : put_take(m, name, hth_blob_ref((struct hth_blob *)bytes));
}

/* The trunk comes last: a folder with it is whole. */
static enum hth_err put_all(struct importing *m)
{
    const struct hth_side side = {(struct hth_blob *)hth_model_dir_find(&m->model, HTH_WORDS_FILE),
                                  (struct hth_blob *)hth_model_dir_find(&m->model, HTH_BOOK_FILE)};
    struct hth_model_dir text = {0};
    struct hth_model_opts opts;
    struct hth_blob *trunk;

    hth_config_model(m->run, &opts);
    if (hth_side_needed(m->run))
        opts.data_hash = hth_side_hash(m->env, &side);
    HTH_TRY(hth_model_file_trunk(m->reader, &opts, &m->about, &trunk, &m->why));
    hth_model_dir_add_text(&text, "run.yaml", m->about.run_text);
    enum hth_err err = put_experts(m, &opts);
    if (err == HTH_OK)
        err = put_side(m, HTH_WORDS_FILE);
    if (err == HTH_OK)
        err = put_side(m, HTH_BOOK_FILE);
    if (err == HTH_OK)
        err = put_take(m, "run.yaml", hth_blob_ref(text.file[0].bytes));
    if (err == HTH_OK)
        err = put_take(m, "trunk.safetensors", hth_blob_ref(trunk));
    hth_blob_unref(trunk);
    hth_model_dir_clear(&text);
    return err;
}

static enum hth_err refuse_to_replace(struct importing *m)
{
    static const char *const names[] = {"trunk.safetensors", "experts"};
    enum hth_err err = HTH_OK;

    for (size_t i = 0; i < HTH_ARRAY_LEN(names) && err == HTH_OK; i++) {
        char *path = hth_asprintf("%s/%s", m->dir, names[i]);
        struct stat st;
        if (stat(path, &st) == 0)
            err = hth_blame(&m->why, HTH_E_USAGE, "%s is of an earlier run: give another --dir",
                            path);
        hth_free(path);
    }
    return err;
}

static enum hth_err import_all(struct importing *m)
{
    HTH_TRY(refuse_to_replace(m));
    HTH_TRY(read_model(m));
    HTH_TRY(put_all(m));
    hth_say("%s: run '%s' at step %llu, %u experts; go on with: hearth train --run %s/run.yaml "
            "--dir %s --resume --local",
            m->dir, m->about.run, (unsigned long long)m->about.updates, m->experts, m->dir, m->dir);
    return HTH_OK;
}

/* ---- the verb ------------------------------------------------------------------------------ */

static error_t parse(int key, char *arg, struct argp_state *state)
{
    struct importing *m = state->input;

    switch (key) {
    case 'D':
        m->dir = arg;
        return 0;
    case 'r':
        m->run_path = arg;
        return 0;
    case ARGP_KEY_ARG:
        if (state->arg_num > 0)
            return ARGP_ERR_UNKNOWN;
        m->from = arg;
        return 0;
    case ARGP_KEY_END:
        if (m->from == NULL || m->dir == NULL)
            argp_error(state, "the folder of an export and --dir DIR are required");
        return 0;
    }
    return ARGP_ERR_UNKNOWN;
}

int hth_verb_import(int argc, char **argv)
{
    static const struct argp_option options[] = {
        {"dir", 'D', "DIR", 0, "The new state folder (required)", 0},
        {"run", 'r', "FILE", 0,
         "Begin that run at step 0 with the weights (default: go on with the exported run)", 0},
        {0}};
    static const struct argp argp = {
        .options = options,
        .parser = parse,
        .args_doc = "MODEL",
        .doc = "Make a model that hearth export wrote the start of a run."};
    struct importing m = {0};
    struct hth_net_opts net = HTH_NET_OPTS_INIT;
    enum hth_err err;

    if (argp_parse(&argp, argc, argv, 0, NULL, &m) != 0)
        return HTH_EXIT_USAGE;
    err = hth_net_new(&net, &m.env);
    if (err != HTH_OK)
        return fail(&m.why, err);
    err = import_all(&m);
    forget(&m, err);
    hth_st_close(m.reader);
    hth_model_dir_clear(&m.model);
    hth_runfile_free(m.run);
    hth_net_free(m.env);
    return err == HTH_OK ? HTH_EXIT_OK : fail(&m.why, err);
}

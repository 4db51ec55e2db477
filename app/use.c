/* SPDX-License-Identifier: Apache-2.0 */
/* use.c: see use.h. */
#include "app/use.h"

#include <stdio.h>
#include <string.h>

#include "core/mem.h"
#include "data/set.h"
#include "data/words.h"
#include "dht/directory.h"
#include "net/net.h"
#include "trainer/data.h"
#include "trainer/saved.h"

#define TRUNK   "%s/trunk.safetensors"
#define EXPERTS "%s/experts"

/* Records of hosts arrive one by one: so long after the first experts others are waited for. */
#define SETTLE_US (300 * HTH_US_PER_MS)
#define LOOK_US   (20 * HTH_US_PER_MS)
#define NOTICE_US (3 * HTH_US_PER_S)

/* ---- flags --------------------------------------------------------------------------------- */

enum { KEY_CHECKPOINT = 0x5300, KEY_DATA };

static const struct argp_option options[] = {
    {"checkpoint", KEY_CHECKPOINT, "WHICH", 0,
     "last, best (by test loss) or a step, of those that train --keep left (default last)", 0},
    {"data", KEY_DATA, "DIR", 0,
     "The data set that the model learnt from (default: the run file's)", 0},
    {0},
};

static error_t parse(int key, char *arg, struct argp_state *state)
{
    struct hth_use_flags *f = state->input;
    switch (key) {
    case ARGP_KEY_INIT:
        state->child_inputs[0] = &f->net;
        state->child_inputs[1] = &f->log;
        state->child_inputs[2] = &f->device;
        break;
    case KEY_CHECKPOINT:
        f->checkpoint = arg;
        break;
    case KEY_DATA:
        f->data = arg;
        break;
    case ARGP_KEY_END:
        if (f->net.dir == NULL)
            argp_error(state, "--dir DIR is required: the folder of a trainer that has saved");
        break;
    default:
        return ARGP_ERR_UNKNOWN;
    }
    return 0;
}

static const struct argp_child children[] = {{&hth_cli_net_argp, 0, NULL, 0},
                                             {&hth_cli_log_argp, 0, NULL, 0},
                                             {&hth_device_argp, 0, NULL, 0},
                                             {0}};
const struct argp hth_use_argp = {.options = options, .parser = parse, .children = children};

/* ---- the folder ---------------------------------------------------------------------------- */

static enum hth_err parse_run(struct hth_use *u)
{
    const char *text = hth_trained_info(u->trained)->run_text;
    char error[HTH_RUNFILE_ERROR_MAX];
    if (text == NULL) {
        hth_cli_say_error("%s does not hold its run file: save it again with this version "
                          "(hearth train --resume)",
                          u->path);
        return HTH_E_CONFIG;
    }
    enum hth_err err =
        hth_runfile_parse(u->path, (const uint8_t *)text, strlen(text), &u->run, error);
    if (err != HTH_OK)
        hth_cli_say_error("%s", error);
    return err;
}

static enum hth_err open_trunk(struct hth_use *u, struct hth_env *env)
{
    char why[HTH_TRAINER_WHY_MAX] = "";
    u->path = hth_asprintf(TRUNK, u->folder);
    enum hth_err err = hth_trained_open(env, u->path, why, &u->trained);
    if (err == HTH_E_NO_FILE)
        hth_cli_say_error("no trained model at %s: --dir is the folder of a trainer that has saved",
                          u->path);
    else if (err != HTH_OK)
        hth_cli_say_error("%s: %s; give another --dir", u->path,
                          why[0] != '\0' ? why : hth_err_text(err));
    return err;
}

/* Goes from the last checkpoint to the one that was asked for. */
static enum hth_err choose(struct hth_use *u, struct hth_env *env)
{
    char why[HTH_TRAINER_WHY_MAX], *folder;
    if (u->flags.checkpoint == NULL)
        return HTH_OK;
    enum hth_err err = hth_saved_find(env, u->flags.net.dir, u->flags.checkpoint,
                                      hth_trained_info(u->trained)->updates, why, &folder);
    if (err != HTH_OK) {
        hth_cli_say_error("--checkpoint: %s: %s", u->flags.net.dir, why);
        return err == HTH_E_NOT_FOUND ? HTH_E_USAGE : err;
    }
    hth_free(u->folder);
    hth_free(u->path);
    hth_trained_free(u->trained);
    u->folder = folder;
    u->trained = NULL;
    return open_trunk(u, env);
}

static void take_run(struct hth_use *u)
{
    struct hth_data_opts train, test;
    hth_config_model(u->run, &u->model);
    hth_config_data(u->run, 0, &u->data, &train, &test);
    u->mean = train.mean;
    u->std = train.std;
}

static enum hth_err load(struct hth_use *u, struct hth_env *env)
{
    u->folder = hth_strdup(u->flags.net.dir);
    enum hth_err err = open_trunk(u, env);
    if (err == HTH_OK)
        err = choose(u, env);
    if (err == HTH_OK)
        err = parse_run(u);
    if (err == HTH_OK)
        take_run(u);
    return err;
}

static void take_data(struct hth_run_data *run, const char *data)
{
    if (data == NULL)
        return;
    hth_free(run->path);
    run->path = hth_strdup(data);
    if (hth_is_set(data))
        run->kind = HTH_RUN_SET;
    else if (run->kind == HTH_RUN_SET)
        run->kind = HTH_RUN_DATA_DEFAULT;
}

int hth_use_load(struct hth_use *u, const char *data)
{
    struct hth_net_opts opts = HTH_NET_OPTS_INIT;
    struct hth_env *env;
    enum hth_err err = hth_net_new(&opts, &env);
    if (err != HTH_OK) {
        hth_cli_say_error("can't start the event loop: %s", hth_err_text(err));
        return hth_exit_of(err);
    }
    err = load(u, env);
    hth_net_free(env);
    if (data != NULL)
        u->flags.data = data;
    if (err == HTH_OK)
        take_data(&u->run->data, u->flags.data);
    return hth_exit_of(err == HTH_E_NO_FILE ? HTH_E_USAGE : err);
}

const char *hth_use_kind(const struct hth_use *u)
{
    if (u->model.kind == HTH_MODEL_CLASSIFIER)
        return "a classifier";
    if (u->model.kind == HTH_MODEL_PICTURE)
        return "a picture model";
    return u->model.objective == HTH_MASKED ? "a masked lm" : "an lm";
}

const char *hth_use_verb(const struct hth_use *u)
{
    if (u->model.kind == HTH_MODEL_CLASSIFIER)
        return "predict";
    if (u->model.kind == HTH_MODEL_PICTURE)
        return "draw";
    return u->model.objective == HTH_MASKED ? "fill" : "write";
}

enum hth_err hth_use_check_rows(const struct hth_use *u)
{
    if (u->model.dense || strcmp(u->model.expert_kind, "transformer") != 0)
        return HTH_OK;
    hth_cli_say_error("%s has experts of kind transformer, which are chosen by a whole sequence: "
                      "an lm that writes or fills in needs expert ffn or none",
                      u->path);
    return HTH_E_CONFIG;
}

/* ---- the data ------------------------------------------------------------------------------ */

static enum hth_err say_why(const struct hth_why *why, enum hth_err err)
{
    if (err != HTH_OK)
        hth_cli_say_error("%s", why->text[0] != '\0' ? why->text : hth_err_text(err));
    return err;
}

static enum hth_err say_no_set(const struct hth_use *u)
{
    hth_cli_say_error("'%s' is no data set that the model can have learnt from: give the folder of "
                      "that one with --data DIR",
                      u->run->data.path != NULL ? u->run->data.path : "");
    return HTH_E_CONFIG;
}

static enum hth_err open_set(struct hth_use *u)
{
    const char *path = u->run->data.path;
    struct hth_why why = {""};
    if (path != NULL && hth_is_set(path))
        return say_why(&why, hth_set_open(u->peer.env, path, &u->set, &why));
    return hth_side_needed(u->run) && u->flags.data == NULL ? HTH_OK : say_no_set(u);
}

/* Those beside the model first: a set that the run file names may be anybody's. */
static enum hth_err read_side(struct hth_use *u, struct hth_why *why)
{
    if (u->flags.data == NULL)
        HTH_TRY(hth_side_of_folder(u->peer.env, u->flags.net.dir, &u->side, why));
    if (hth_side_is_empty(&u->side) && u->set != NULL)
        HTH_TRY(hth_side_of_set(u->set, &u->side, why));
    if (u->side.words == NULL)
        return HTH_OK;
    return hth_words_parse(HTH_WORDS_FILE, u->side.words->data, u->side.words->size, &u->words,
                           why);
}

static void drop_other_set(struct hth_use *u)
{
    const struct hth_manifest *m = u->set != NULL ? hth_set_manifest(u->set) : NULL;
    if (m == NULL ||
        hth_data_hash(m->words.file[0] != '\0' ? &m->words.sha256 : NULL,
                      m->book.file[0] != '\0' ? &m->book.sha256 : NULL) == u->model.data_hash)
        return;
    hth_set_free(u->set);
    u->set = NULL;
}

/* Opens the set, and takes the hashes of words and code book: those that the model was trained
 * with, or its file does not fit. */
static enum hth_err open_data(struct hth_use *u)
{
    struct hth_why why = {""};
    if (u->run->data.kind != HTH_RUN_SET && !hth_side_needed(u->run))
        return HTH_OK;
    HTH_TRY(open_set(u));
    if (!hth_side_needed(u->run))
        return HTH_OK;
    HTH_TRY(say_why(&why, read_side(u, &why)));
    if (u->words == NULL)
        return say_no_set(u);
    u->model.data_hash = hth_side_hash(u->peer.env, &u->side);
    drop_other_set(u);
    return HTH_OK;
}

int hth_use_check_set(const struct hth_use *u)
{
    return !hth_side_needed(u->run) || u->set != NULL ? HTH_EXIT_OK : hth_exit_of(say_no_set(u));
}

void hth_use_data(struct hth_use *u, bool held_out, struct hth_data_opts *out)
{
    struct hth_data_opts train, test;
    hth_config_data_clear(&u->data);
    hth_config_data(u->run, 0, &u->data, &train, &test);
    train.shuffle_rows = 0;
    train.caption_drop = 0;
    train.shift = 0;
    *out = held_out ? test : train;
    out->mean = u->mean; /* the model's, whatever kind of data it sees now */
    out->std = u->std;
}

/* ---- the model ----------------------------------------------------------------------------- */

static void say_no_model(const struct hth_use *u, enum hth_err err, const char *why)
{
    if (err == HTH_E_WRONG_RUN && hth_side_needed(u->run))
        hth_cli_say_error("%s: its ids are of other words than those of %s: give the data set that "
                          "it learnt from with --data DIR",
                          u->path, u->set != NULL ? u->run->data.path : u->flags.net.dir);
    else if (err == HTH_E_NO_FILE)
        hth_cli_say_error("%s: %s; if its experts are on hosts, give --join HOST:PORT", u->path,
                          why);
    else
        hth_cli_say_error("%s: %s", u->path, why[0] != '\0' ? why : hth_err_text(err));
}

static enum hth_err make_infer(struct hth_use *u, uint32_t rows)
{
    struct hth_infer_opts o = HTH_INFER_OPTS_INIT;
    char why[HTH_TRAINER_WHY_MAX] = "", *experts = hth_asprintf(EXPERTS, u->folder);
    o.backend = u->backend;
    o.model = u->model;
    o.trained = u->trained;
    o.rows = rows;
    o.local = u->directory == NULL;
    o.experts_dir = experts;
    hth_config_optim(&u->run->experts.optimizer, &o.local_optim);
    o.run = u->run->run;
    o.rpc = u->peer.rpc;
    o.directory = u->directory;
    o.grace_us = (int64_t)(u->run->train.grace_s * 1e6);
    o.timeout_us = (int64_t)(u->run->train.timeout_s * 1e6);
    o.wire = hth_runfile_wire(u->run);
    o.why = why;
    enum hth_err err = hth_infer_new(u->peer.env, &o, &u->infer);
    if (err != HTH_OK)
        say_no_model(u, err, why);
    hth_free(experts);
    return err;
}

/* A trunk that learnt without experts has none to look for. */
static bool is_remote(const struct hth_use *u)
{
    return u->flags.net.join_count > 0 && !u->model.dense &&
           !hth_trained_info(u->trained)->without_experts;
}

int hth_use_open(struct hth_use *u, const char *verb, uint32_t rows)
{
    const struct hth_peer_opts opts = {
        .verb = verb,
        .net = &u->flags.net,
        .log = &u->flags.log,
        .network = u->flags.net.network != NULL ? u->flags.net.network : u->run->run,
        .dials_only = true,
        .quiet = true,
        .ephemeral = true,
        .offline = !is_remote(u),
    };
    enum hth_matmul compute = hth_config_compute(u->run);
    if (compute == HTH_MATMUL_AUTO) /* a few rows are not worth the measurement */
        compute = HTH_MATMUL_F32;
    enum hth_err err = hth_device_choose(&u->flags.device, compute, &u->backend);
    if (err != HTH_OK)
        return HTH_EXIT_DEVICE;
    int code = hth_peer_open(&opts, &u->peer);
    if (code != HTH_EXIT_OK)
        return code;
    u->opened = true;
    if (is_remote(u)) {
        struct hth_directory_opts dir_opts = HTH_DIRECTORY_OPTS_INIT;
        dir_opts.network = u->peer.network;
        err = hth_directory_new(u->peer.env, u->peer.dht, &dir_opts, &u->directory);
    }
    if (err == HTH_OK)
        err = open_data(u);
    if (err == HTH_OK)
        err = make_infer(u, rows);
    return hth_exit_of(err == HTH_E_NO_FILE ? HTH_E_USAGE : err);
}

/* ---- waiting for experts ------------------------------------------------------------------- */

static void say_waiting(struct hth_use *u)
{
    char why[HTH_DIR_WHY_MAX];
    hth_directory_why(u->directory, why);
    hth_say_note("%s", why);
    u->said = true;
}

static void look(void *arg)
{
    struct hth_use *u = arg;
    int64_t now = hth_now_us(u->peer.env);
    uint32_t size = 1, live = hth_infer_live(u->infer);
    for (uint32_t i = 0; i < u->model.grid_ndim; i++)
        size *= u->model.grid_dim[i];
    if (live > 0 && u->first_us == 0)
        u->first_us = now;
    if (live >= size || (live > 0 && now - u->first_us >= SETTLE_US)) {
        u->on_ready(u->arg);
        return;
    }
    if (live == 0 && !u->said && now - u->since_us >= NOTICE_US)
        say_waiting(u);
    hth_timer_set(u->peer.env, u->timer, LOOK_US);
}

static void on_joined(void *arg)
{
    struct hth_use *u = arg;
    if (u->since_us != 0)
        return;
    u->since_us = hth_now_us(u->peer.env);
    if (u->directory != NULL)
        look(u);
    else
        u->on_ready(u->arg);
}

int hth_use_run(struct hth_use *u, hth_fn *on_ready)
{
    u->on_ready = on_ready;
    u->timer = hth_timer_new(u->peer.env, look, u);
    u->peer.on_joined = on_joined;
    u->peer.arg = u;
    return hth_peer_run(&u->peer);
}

void hth_use_stop(struct hth_use *u, int code)
{
    hth_peer_stop(&u->peer, code);
}

void hth_use_fail(struct hth_use *u, enum hth_err err, const char *why)
{
    hth_cli_say_error("%s", why[0] != '\0' ? why : hth_err_text(err));
    hth_use_stop(u, hth_exit_of(err));
}

void hth_use_no_data(struct hth_use *u, enum hth_err err)
{
    const char *path = u->run->data.path != NULL ? u->run->data.path : "the run file's data";
    if (err == HTH_E_CONFIG)
        hth_cli_say_error("%s: its samples are not of the shape that %s was trained with", path,
                          u->path);
    else
        hth_cli_say_error("%s: %s; give the data set's path", path, hth_err_text(err));
    hth_use_stop(u, hth_exit_of(err == HTH_E_NO_FILE ? HTH_E_CONFIG : err));
}

void hth_use_say_lost(const struct hth_use *u)
{
    struct hth_infer_stats s;
    hth_infer_stats(u->infer, &s);
    if (s.units_without_expert > 0)
        hth_say_note("%llu of %llu rows found no expert and went on without one",
                     (unsigned long long)s.units_without_expert, (unsigned long long)s.units);
}

void hth_use_close(struct hth_use *u)
{
    if (u->opened) {
        hth_peer_jobs_end(&u->peer);
        hth_infer_free(u->infer);
        if (u->on_close != NULL)
            u->on_close(u->arg);
        hth_directory_free(u->directory);
        hth_timer_free(u->peer.env, u->timer);
        hth_set_free(u->set);
        hth_words_free(u->words);
        hth_side_clear(&u->side);
        hth_peer_close(&u->peer);
    }
    hth_trained_free(u->trained);
    hth_runfile_free(u->run);
    hth_config_data_clear(&u->data);
    hth_free(u->path);
    hth_free(u->folder);
}

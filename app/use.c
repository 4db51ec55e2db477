/* SPDX-License-Identifier: Apache-2.0 */
/* use.c: see use.h. */
#include "app/use.h"

#include <stdio.h>
#include <stdlib.h>

#include "core/mem.h"
#include "dht/directory.h"
#include "net/net.h"

/* Records of hosts arrive one by one: so long after the first experts others are waited for. */
#define SETTLE_US (300 * HTH_US_PER_MS)
#define LOOK_US   (20 * HTH_US_PER_MS)
#define NOTICE_US (3 * HTH_US_PER_S)

/* ---- flags --------------------------------------------------------------------------------- */

enum { KEY_CHECKPOINT = 0x5300, KEY_JSON, KEY_DATA, KEY_TRAIN };
enum { KEY_GREEDY = 0x5380, KEY_TEMPERATURE, KEY_TOP_K, KEY_TOP_P, KEY_SEED };

static error_t parse(int key, char *arg, struct argp_state *state)
{
    struct hth_use_flags *f = state->input;
    switch (key) {
    case ARGP_KEY_INIT:
        if (state->child_inputs != NULL) {
            state->child_inputs[0] = &f->net;
            state->child_inputs[1] = &f->log;
            state->child_inputs[2] = &f->device;
        }
        break;
    case KEY_CHECKPOINT:
        f->checkpoint = arg;
        break;
    case KEY_JSON:
        f->json = true;
        break;
    case KEY_DATA:
        f->data = arg;
        break;
    case KEY_TRAIN:
        f->train = true;
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

static const struct argp_option use_options[] = {
    {"checkpoint", KEY_CHECKPOINT, "WHICH", 0,
     "last, best (by test loss) or a step, of those that train --keep left (default last)", 0},
    {"json", KEY_JSON, NULL, 0, "Print one JSON object", 0},
    {0},
};
static const struct argp_child children[] = {{&hth_cli_dial_argp, 0, NULL, 0},
                                             {&hth_cli_log_argp, 0, NULL, 0},
                                             {&hth_device_argp, 0, NULL, 0},
                                             {0}};
const struct argp hth_use_argp = {.options = use_options, .parser = parse, .children = children};

static const struct argp_option data_options[] = {
    {"data", KEY_DATA, "DIR", 0,
     "The data set that the model learnt from (default: the run file's)", 0},
    {0},
};
const struct argp hth_use_data_argp = {.options = data_options, .parser = parse};

static error_t parse_samples(int key, char *arg, struct argp_state *state)
{
    struct hth_use_flags *f = state->input;
    if (key != ARGP_KEY_ARG)
        return parse(key, arg, state);
    if (f->data != NULL)
        argp_error(state, "one data set is expected");
    f->data = arg;
    return 0;
}

static const struct argp_option samples_options[] = {
    {"train", KEY_TRAIN, NULL, 0, "The samples of training, not those held out", 0},
    {0},
};
const struct argp hth_use_samples_argp = {.options = samples_options, .parser = parse_samples};

float hth_use_real(const struct argp_state *state, const char *flag, const char *arg)
{
    char *end;
    float x = strtof(arg, &end);
    if (end == arg || *end != '\0')
        argp_error(state, "%s '%s': expected a number such as 0.8", flag, arg);
    return x;
}

static error_t parse_sample(int key, char *arg, struct argp_state *state)
{
    struct hth_sample_opts *s = state->input;
    switch (key) {
    case KEY_GREEDY:
        s->temperature = 0;
        break;
    case KEY_TEMPERATURE:
        s->temperature = hth_use_real(state, "--temperature", arg);
        break;
    case KEY_TOP_K:
        s->top_k = (uint32_t)hth_cli_number(state, "--top-k", arg, 1, UINT32_MAX);
        break;
    case KEY_TOP_P:
        s->top_p = hth_use_real(state, "--top-p", arg);
        break;
    case KEY_SEED:
        s->seed = hth_cli_number(state, "--seed", arg, 0, UINT64_MAX);
        break;
    case ARGP_KEY_END:
        if (hth_sample_check(s) != HTH_OK)
            argp_error(state, "--temperature must be 0 or more, and --top-p above 0 and at most 1");
        break;
    default:
        return ARGP_ERR_UNKNOWN;
    }
    return 0;
}

static const struct argp_option sample_options[] = {
    {"greedy", KEY_GREEDY, NULL, 0, "Take the likeliest each time, as with --temperature 0", 0},
    {"temperature", KEY_TEMPERATURE, "X", 0,
     "Below 1 likely ones become likelier (default: 0.5 of words, 1 of pictures)", 0},
    {"top-k", KEY_TOP_K, "N", 0,
     "Choose among the N likeliest (default: all words, 256 of a picture's codes)", 0},
    {"top-p", KEY_TOP_P, "P", 0,
     "Choose among the likeliest that have together P (default: 1 of words, 0.75 of pictures)", 0},
    {"seed", KEY_SEED, "N", 0, "Another seed, another result (default 1)", 0},
    {0},
};
const struct argp hth_use_sample_argp = {.options = sample_options, .parser = parse_sample};

/* ---- errors -------------------------------------------------------------------------------- */

static int say(const struct hth_why *why, enum hth_err err)
{
    if (err != HTH_OK)
        hth_cli_say_error("%s", why->text[0] != '\0' ? why->text : hth_err_text(err));
    return hth_exit_of(err == HTH_E_NO_FILE ? HTH_E_USAGE : err);
}

enum hth_err hth_use_refuse(const struct hth_use *u, const char *only)
{
    hth_cli_say_error("%s is of %s, and %s: try hearth %s", u->model.path,
                      hth_opened_kind(&u->model), only, hth_opened_verb(&u->model));
    return HTH_E_CONFIG;
}

enum hth_err hth_use_check_rows(const struct hth_use *u)
{
    struct hth_why why = {""};
    enum hth_err err = hth_opened_check_rows(&u->model, &why);
    (void)say(&why, err);
    return err;
}

void hth_use_stop(struct hth_use *u, int code)
{
    struct hth_infer_stats s;
    hth_infer_stats(u->infer, &s);
    if (s.units_without_expert > 0)
        hth_say_note("%llu of %llu rows found no expert and went on without one",
                     (unsigned long long)s.units_without_expert, (unsigned long long)s.units);
    hth_peer_stop(&u->peer, code);
}

void hth_use_fail(struct hth_use *u, enum hth_err err, const char *why)
{
    hth_cli_say_error("%s", why[0] != '\0' ? why : hth_err_text(err));
    hth_use_stop(u, hth_exit_of(err));
}

void hth_use_print_json_take(json_t *object)
{
    hth_json_print_take(stdout, object);
    putchar('\n');
}

/* ---- samples ------------------------------------------------------------------------------- */

bool hth_use_has_samples(struct hth_use *u)
{
    if (u->model.no_set.text[0] == '\0')
        return true;
    hth_use_fail(u, HTH_E_CONFIG, u->model.no_set.text);
    return false;
}

void hth_use_survey(struct hth_use *u, struct hth_survey_opts *opts)
{
    const char *path = u->model.run->data.path;
    if (!hth_use_has_samples(u))
        return;
    hth_opened_samples(&u->model, !u->flags.train, &opts->data);
    enum hth_err err = hth_survey_new(u->env, u->infer, opts, &u->survey);
    if (err == HTH_OK)
        return;
    path = path != NULL ? path : "the run file's data";
    if (err == HTH_E_CONFIG)
        hth_cli_say_error("%s: its samples are not of the shape that %s was trained with", path,
                          u->model.path);
    else
        hth_cli_say_error("%s: %s; give the data set's path", path, hth_err_text(err));
    hth_use_stop(u, hth_exit_of(err == HTH_E_NO_FILE ? HTH_E_CONFIG : err));
}

/* ---- opening ------------------------------------------------------------------------------- */

/* A trunk that learnt without experts has none to look for. */
static bool is_remote(const struct hth_use *u)
{
    return hth_cli_joins(&u->flags.net) && !u->model.model.dense && u->model.about->experts;
}

static int read_folder(struct hth_use *u)
{
    struct hth_net_opts net = HTH_NET_OPTS_INIT;
    struct hth_why why = {""};
    net.compute_threads = u->flags.net.threads;
    net.offline = !hth_cli_joins(&u->flags.net);
    enum hth_err err = hth_net_new(&net, &u->env);
    if (err != HTH_OK) {
        hth_cli_say_error("can't start the event loop: %s", hth_err_text(err));
        return hth_exit_of(err);
    }
    const struct hth_opened_opts opts = {u->flags.net.dir, u->flags.checkpoint, u->flags.data};
    return say(&why, hth_opened_read(u->env, &opts, &u->model, &why));
}

static int join(struct hth_use *u)
{
    const struct hth_peer_opts opts = {
        .env = u->env,
        .verb = u->verb->name,
        .net = &u->flags.net,
        .log = &u->flags.log,
        .run = u->model.run,
        .roles = HTH_MAY_TRAIN,
        .dials_only = true,
        .quiet = true,
        .ephemeral = true,
        .offline = !is_remote(u),
    };
    int code = hth_peer_open(&opts, &u->peer);
    if (code != HTH_EXIT_OK)
        return code;
    u->opened = true;
    if (opts.offline)
        return HTH_EXIT_OK;
    struct hth_directory_opts directory = HTH_DIRECTORY_OPTS_INIT;
    directory.network = u->peer.network;
    return hth_exit_of(hth_directory_new(u->env, u->peer.dht, &directory, &u->directory));
}

static int open_model(struct hth_use *u)
{
    struct hth_infer_opts o = HTH_INFER_OPTS_INIT;
    struct hth_why why = {""};
    enum hth_matmul compute = hth_config_compute(u->model.run);
    if (compute == HTH_MATMUL_AUTO) /* a few rows are not worth the measurement */
        compute = HTH_MATMUL_F32;
    if (hth_device_choose(&u->flags.device, compute, &o.backend) != HTH_OK)
        return HTH_EXIT_DEVICE;
    int code = join(u);
    if (code != HTH_EXIT_OK)
        return code;
    o.rows = u->verb->rows(u->arg);
    o.rpc = u->peer.rpc;
    o.directory = u->directory;
    enum hth_err err = hth_opened_data(u->env, &u->model, &why);
    if (err == HTH_OK)
        err = hth_opened_infer(u->env, &u->model, &o, &u->infer, &why);
    return say(&why, err);
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
    int64_t now = hth_now_us(u->env);
    uint32_t size = 1, live = hth_infer_live(u->infer);
    for (uint32_t i = 0; i < u->model.model.grid_ndim; i++)
        size *= u->model.model.grid_dim[i];
    if (live > 0 && u->first_us == 0)
        u->first_us = now;
    if (live >= size || (live > 0 && now - u->first_us >= SETTLE_US)) {
        u->verb->start(u->arg);
        return;
    }
    if (live == 0 && !u->said && now - u->since_us >= NOTICE_US)
        say_waiting(u);
    hth_timer_set(u->env, u->timer, LOOK_US);
}

static void on_joined(void *arg)
{
    struct hth_use *u = arg;
    if (u->since_us != 0)
        return;
    u->since_us = hth_now_us(u->env);
    if (u->directory != NULL)
        look(u);
    else
        u->verb->start(u->arg);
}

static int run(struct hth_use *u)
{
    u->timer = hth_timer_new(u->env, look, u);
    u->peer.on_joined = on_joined;
    u->peer.arg = u;
    return hth_peer_run(&u->peer);
}

static void end(struct hth_use *u)
{
    if (u->opened) {
        hth_peer_jobs_end(&u->peer);
        hth_infer_free(u->infer);
        hth_survey_free(u->survey);
        if (u->verb->clear != NULL)
            u->verb->clear(u->arg);
        hth_directory_free(u->directory);
        hth_timer_free(u->env, u->timer);
        hth_peer_close(&u->peer);
    }
    hth_opened_clear(&u->model);
    hth_net_free(u->env);
}

int hth_use_main(struct hth_use *u, const struct hth_use_verb *verb, void *arg)
{
    u->verb = verb;
    u->arg = arg;
    int code = read_folder(u);
    if (code == HTH_EXIT_OK && verb->judge != NULL)
        code = hth_exit_of(verb->judge(arg));
    if (code == HTH_EXIT_OK)
        code = open_model(u);
    if (code == HTH_EXIT_OK)
        code = run(u);
    end(u);
    return code;
}

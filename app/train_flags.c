/* SPDX-License-Identifier: Apache-2.0 */
/* train_flags.c: the command line of hearth train. */
#include "app/train_flags.h"

#include "app/run_file.h"
#include "core/limits.h"
#include "core/mem.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum {
    KEY_DATA = 0x3000,
    KEY_METRICS,
    KEY_TENSORBOARD,
    KEY_BACKEND,
    KEY_STEPS,
    KEY_FLIGHTS,
    KEY_ROWS,
    KEY_LOCAL
};
enum { KEY_AVERAGING = 0x3200, KEY_BOOTSTRAP, KEY_TARGET, KEY_UP, KEY_CLIENT };
enum { KEY_KEEP = 0x3300 };
enum { KEY_RESUME = 0x3100, KEY_PEER_SEED, KEY_WITHOUT_EXPERTS };

static const struct argp_option options[] = {
    {"run", 'r', "FILE", 0, "The run file (default: asks the peers of the --invite's run)", 0},
    {"data", KEY_DATA, "PATH", 0,
     "Text file, or folder of a data set or of idx files (default: the run file's)", 0},
    {"steps", KEY_STEPS, "N", 0, "Number of updates (default: the run file's train.steps)", 0},
    {"rows", KEY_ROWS, "N", 0, "Samples in a micro-batch (default: the run file's train.rows)", 0},
    {"flights", KEY_FLIGHTS, "N", 0,
     "Micro-batches in the air (default: the run file's train.flights)", 0},
    {"local", KEY_LOCAL, NULL, 0, "Compute all experts in this process, without a network", 0},
    {"without-experts", KEY_WITHOUT_EXPERTS, NULL, 0,
     "With --local: train the trunk without experts, as a control that shows what they add", 0},
    {"resume", KEY_RESUME, NULL, 0, "Continue from the checkpoint in --dir, if there is one", 0},
    {"keep", KEY_KEEP, "N", 0,
     "Keep the last N checkpoints and the best by test loss, in DIR/kept (default: the last alone)",
     0},
    {"averaging", KEY_AVERAGING, "MODE", 0,
     "local, batch or off (default: the run file's averaging.mode)", 0},
    {"target", KEY_TARGET, "N", 0,
     "Samples in a shared batch (default: the run file's averaging.target)", 0},
    {"bootstrap", KEY_BOOTSTRAP, NULL, 0,
     "Start without the state of a run that others train already", 0},
    {"up", KEY_UP, "MBIT", 0,
     "Upload bandwidth in Mbit/s: sets its share of an average (default: not known)", 0},
    {"client", KEY_CLIENT, NULL, 0,
     "Dial only, because others can't reach this machine (behind a router)", 0},
    {"peer-seed", KEY_PEER_SEED, "N", 0,
     "Seed of this trainer's order of the data (default: from its key)", 0},
    {"metrics", KEY_METRICS, "FILE", 0, "Append metrics to FILE as JSON lines, 2 a second", 0},
    {"tensorboard", KEY_TENSORBOARD, "DIR", 0, "Write event files for TensorBoard", 0},
    {0},
};

static int averaging_mode(const char *word)
{
    static const char *const words[] = {
        [HTH_RUN_LOCAL] = "local", [HTH_RUN_BATCH] = "batch", [HTH_RUN_OFF] = "off"};
    for (int i = 0; i < (int)HTH_ARRAY_LEN(words); i++)
        if (strcmp(word, words[i]) == 0)
            return i;
    return -1;
}

/* Refuses options about other peers: a --local run has none. */
static void refuse_shared(const struct hth_train_flags *t, const struct argp_state *state)
{
    const struct {
        bool given;
        const char *flag;
    } flags[] = {{t->net.join_count > 0, "--join"},
                 {t->net.invited, "--invite"},
                 {t->net.own, "--own"},
                 {t->client, "--client"},
                 {t->net.announce != NULL, "--announce"},
                 {t->averaging >= 0, "--averaging"},
                 {t->target > 0, "--target"},
                 {t->up_mbit > 0, "--up"},
                 {t->bootstrap, "--bootstrap"}};
    for (size_t i = 0; i < HTH_ARRAY_LEN(flags); i++)
        if (flags[i].given)
            argp_error(state, "--local uses no network, so %s has no effect: leave one of them out",
                       flags[i].flag);
}

static void refuse_contradictions(const struct hth_train_flags *t, const struct argp_state *state)
{
    hth_run_file_need(state, t->run_path, &t->net);
    if (t->local)
        refuse_shared(t, state);
    if (t->without_experts && !t->local)
        argp_error(state, "--without-experts trains the trunk without a swarm: add --local");
    if (t->client && t->net.announce != NULL)
        argp_error(state, "--client announces no address, and --announce gives one: leave one of "
                          "them out");
    if (t->client && t->up_mbit > 0)
        argp_error(state, "--up sets this peer's share of an average, and a --client reduces none: "
                          "leave one of them out");
}

static void check_data(const struct argp_state *state, const char *path)
{
    if (access(path, R_OK) != 0)
        argp_error(state,
                   "--data '%s': %s; expected a text file, a folder that hearth data made, or one "
                   "of idx files such as /usr/share/datasets/fashion-mnist",
                   path, strerror(errno));
}

static void check_metrics(const struct argp_state *state, const char *path)
{
    const char *slash = strrchr(path, '/');
    size_t len = slash != NULL ? (size_t)(slash - path) : 0;
    char *folder = slash != NULL ? hth_asprintf("%.*s/", (int)len, path) : hth_strdup(".");
    if (path[0] == '\0' ||
        (access(path, W_OK) != 0 && (errno != ENOENT || access(folder, W_OK) != 0)))
        argp_error(state,
                   "--metrics '%s': %s; expected a file in a folder that exists, such as "
                   "metrics.jsonl",
                   path, path[0] == '\0' ? "no name" : strerror(errno));
    hth_free(folder);
}

static error_t parse(int key, char *arg, struct argp_state *state)
{
    struct hth_train_flags *t = state->input;
    switch (key) {
    case ARGP_KEY_INIT:
        state->child_inputs[0] = &t->net;
        state->child_inputs[1] = &t->log;
        state->child_inputs[2] = &t->device;
        break;
    case 'r':
        t->run_path = arg;
        break;
    case KEY_DATA:
        check_data(state, arg);
        t->data_path = arg;
        break;
    case KEY_STEPS:
        t->steps = (uint32_t)hth_cli_number(state, "--steps", arg, 1, UINT32_MAX);
        break;
    case KEY_ROWS:
        t->rows = (uint32_t)hth_cli_number(state, "--rows", arg, 1, HTH_MICRO_BATCH_MAX);
        break;
    case KEY_FLIGHTS:
        t->flights = (uint32_t)hth_cli_number(state, "--flights", arg, 1, HTH_FLIGHTS_MAX);
        break;
    case KEY_PEER_SEED:
        t->peer_seed = hth_cli_number(state, "--peer-seed", arg, 1, UINT64_MAX);
        break;
    case KEY_LOCAL:
        t->local = true;
        break;
    case KEY_WITHOUT_EXPERTS:
        t->without_experts = true;
        break;
    case KEY_AVERAGING:
        t->averaging = averaging_mode(arg);
        if (t->averaging < 0)
            argp_error(state, "--averaging '%s': expected local, batch or off", arg);
        break;
    case KEY_TARGET:
        t->target = hth_cli_number(state, "--target", arg, 1, 1000000000);
        break;
    case KEY_BOOTSTRAP:
        t->bootstrap = true;
        break;
    case KEY_UP:
        t->up_mbit = (double)hth_cli_number(state, "--up", arg, 1, 1000000);
        break;
    case KEY_CLIENT:
        t->client = true;
        break;
    case KEY_KEEP:
        t->keep = (uint32_t)hth_cli_number(state, "--keep", arg, 1, HTH_KEPT_MAX);
        break;
    case KEY_RESUME:
        t->resume = true;
        break;
    case KEY_TENSORBOARD:
        hth_cli_check_folder(state, "--tensorboard", arg, "runs/1");
        t->tensorboard_dir = arg;
        break;
    case KEY_METRICS:
        check_metrics(state, arg);
        t->metrics_path = arg;
        break;
    case ARGP_KEY_END:
        refuse_contradictions(t, state);
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
const struct argp hth_train_argp = {
    .options = options,
    .parser = parse,
    .children = children,
    .doc = "Train a run's model on your data, with the swarm's experts.",
};

/* Refuses options of averaging that have no effect in this trainer's mode. */
static enum hth_err check_averaging(const struct hth_train_flags *t, const struct hth_runfile *run)
{
    enum hth_run_averaging_mode mode = run->averaging.mode;
    const struct {
        bool wrong;
        const char *text;
    } cases[] = {
        {t->target > 0 && mode != HTH_RUN_BATCH,
         "--target is the size of a shared batch, and only averaging mode batch shares one: add "
         "--averaging batch"},
        {t->bootstrap && mode == HTH_RUN_OFF,
         "--bootstrap starts beside other trainers of the run, and with averaging off this one "
         "does not look for any: leave it out, or add --averaging local or batch"},
        {t->up_mbit > 0 && mode == HTH_RUN_OFF,
         "--up sets this peer's share of an average, and with averaging off there is none: leave "
         "it out, or add --averaging local or batch"}};
    for (size_t i = 0; i < HTH_ARRAY_LEN(cases); i++)
        if (cases[i].wrong) {
            hth_cli_say_error("%s", cases[i].text);
            return HTH_E_USAGE;
        }
    return HTH_OK;
}

enum hth_err hth_train_flags_apply(const struct hth_train_flags *t, struct hth_runfile *run)
{
    if (t->steps != 0 && run->optimizer.schedule != HTH_RUN_CONSTANT &&
        run->optimizer.total != t->steps)
        hth_say_note("--steps %u ends this trainer; its rate falls over the run's %u steps "
                     "(optimizer.total, else train.steps)",
                     t->steps, run->optimizer.total);
    if (t->steps != 0)
        run->train.steps = t->steps;
    if (t->rows != 0)
        run->train.rows = t->rows;
    if (t->averaging >= 0)
        run->averaging.mode = (enum hth_run_averaging_mode)t->averaging;
    HTH_TRY(check_averaging(t, run));
    if (t->target != 0)
        run->averaging.target = t->target;
    if (t->flights != 0)
        run->train.flights = t->flights;
    if (t->data_path != NULL) {
        hth_free(run->data.path);
        run->data.path = hth_strdup(t->data_path);
    }
    return HTH_OK;
}

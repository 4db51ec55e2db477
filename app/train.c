/* SPDX-License-Identifier: Apache-2.0 */
/*
 * train.c: hearth train: runs a trainer and shows its progress.
 *
 *   start: key, loop, rpc, DHT -> averager -> trainer -> on joining: announce, start
 *   end:   trainer stops and saves -> goodbye to the trainers -> beacon withdrawn -> exit
 */
#include "app/peer.h"
#include "app/run_file.h"
#include "app/together.h"
#include "app/train_flags.h"
#include "app/train_lines.h"
#include "app/train_tell.h"
#include "cli/config.h"
#include "core/mem.h"
#include "dht/announce.h"
#include "dht/directory.h"
#include "trainer/settings.h"
#include "trainer/trainer.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define METRICS_PERIOD_US  (500 * HTH_US_PER_MS)
#define PROGRESS_PERIOD_US (10 * HTH_US_PER_S)
#define WAIT_NOTICE_US     (5 * HTH_US_PER_S)
#define WAIT_AGAIN_US      (60 * HTH_US_PER_S) /* the same cause again */
#define TRUNK              "%s/trunk.safetensors"
#define EXPERTS            "%s/experts" /* as a host's */
#define METRICS            "%s/metrics.jsonl"

struct train {
    struct hth_train_flags flags;
    struct hth_runfile *run;
    struct hth_config_data paths;
    const struct hth_backend *backend;
    struct hth_peer peer;
    struct hth_directory *directory;
    struct hth_announcer *announcer;
    struct hth_together together;
    struct hth_trainer *trainer;
    struct hth_timer *timer;
    char *checkpoint, *experts; /* the trunk's file; the folder of local experts */
    char *metrics;              /* the file of lines */
    struct hth_train_lines lines;
    struct hth_train_tell *tell;
    enum hth_err checkpoint_lost; /* why the last checkpoint could not be written; HTH_OK: it was */
    uint64_t saved_at;            /* updates in the last one that was written; 0: none yet */
    bool started, finishing;
    uint32_t trainers;                /* as last printed, this one included; 0: not printed */
    struct hth_other_settings others; /* as last printed */
    int64_t last_update_us, gap_us, last_print_us, wait_notice_us;
    char waits_for[HTH_DIR_WHY_MAX]; /* as last printed, */
    int64_t waits_said_us;           /* and when */
    struct hth_eval_result last_eval;
    int code;
};

/* ---- progress ------------------------------------------------------------------------------ */

static void write_progress(struct train *t, const struct hth_train_stats *s)
{
    int64_t waiting_us = hth_now_us(t->peer.env) - t->last_update_us;
    hth_train_lines_progress(&t->lines, &t->together, s, HTH_MAX(t->gap_us, waiting_us));
    t->gap_us = 0;
}

static bool is_dense(const struct train *t)
{
    return t->run->model.expert == HTH_RUN_NONE;
}

static void print_progress(struct train *t, const struct hth_train_stats *s)
{
    int64_t now = hth_now_us(t->peer.env);
    if (now - t->last_print_us < (hth_say_stands() ? METRICS_PERIOD_US : PROGRESS_PERIOD_US))
        return;
    t->last_print_us = now;
    char bytes[16], loss[16] = "-", left[32] = "", experts[64] = "";
    if (s->loss_ema > 0)
        snprintf(loss, sizeof(loss), "%.3f", s->loss_ema);
    if (s->samples_per_s > 0)
        snprintf(left, sizeof(left), "  %.0f s left", s->eta_s);
    if (!is_dense(t))
        snprintf(experts, sizeof(experts), "  experts live %u  %s sent", s->live_experts,
                 hth_cli_bytes_text((double)s->bytes_out, bytes));
    hth_say_progress("step %llu of %u  %.0f samples/s  loss %s%s%s", (unsigned long long)s->updates,
                     t->run->train.steps, s->samples_per_s, loss, experts, left);
}

static void notice_waiting(struct train *t, const struct hth_train_stats *s)
{
    char why[HTH_DIR_WHY_MAX];
    int64_t now = hth_now_us(t->peer.env);
    if (s->share.run.phase == HTH_COLLAB_FETCHES && now - t->wait_notice_us >= WAIT_NOTICE_US) {
        t->wait_notice_us = now;
        hth_say_note("other trainers have run '%s': fetching its state from them (%s); --bootstrap "
                     "starts without it",
                     t->peer.name, s->share.run.fetch.news);
    }
    if (!s->waiting || now - t->wait_notice_us < WAIT_NOTICE_US)
        return;
    t->wait_notice_us = now;
    if (s->starved)
        snprintf(why, sizeof(why),
                 "training pauses: most rows had no expert's answer; %u of %u hosts can't be used; "
                 "it goes on when experts answer",
                 s->hosts_dead, s->hosts);
    else
        hth_directory_why(t->directory, why);
    if (strcmp(why, t->waits_for) == 0 && now - t->waits_said_us < WAIT_AGAIN_US)
        return;
    hth_say_note("%s", why);
    memcpy(t->waits_for, why, sizeof(why));
    t->waits_said_us = now;
}

/* Prints whether this trainer has found others; a run does not need them, and its owner may. */
static void notice_trainers(struct train *t, const struct hth_train_stats *s)
{
    enum hth_collab_phase phase = s->share.run.phase;
    uint32_t trainers = hth_together_trainers(&t->together);
    if (t->together.avg.roster == NULL || phase == HTH_COLLAB_LOOKS || phase == HTH_COLLAB_FETCHES)
        return;
    if (t->trainers != 0 && (t->trainers == 1) == (trainers == 1))
        return;
    t->trainers = trainers;
    if (trainers == 1)
        hth_say_note("found no other trainer of run '%s': training alone", t->peer.name);
    else
        hth_say_note("averaging with the other trainers of run '%s': %u with this one%s",
                     t->peer.name, trainers,
                     trainers == 2 && t->run->averaging.mode == HTH_RUN_BATCH
                         ? "; of two that share batches nobody can tell which one lies"
                         : "");
}

/* Warns of trainers that use the same experts with other settings: they never average with this
 * one. */
static void notice_others(struct train *t)
{
    struct hth_other_settings now;
    if (t->together.avg.roster == NULL)
        return;
    hth_settings_others(t->together.avg.roster, &now);
    if (now.trainers > 0 && strcmp(now.differ, t->others.differ) != 0)
        hth_say_note("trainers of run '%s' with another %s: %u; they never average with this one: "
                     "compare run files and flags",
                     t->peer.name, now.differ, now.trainers);
    t->others = now;
}

static void on_timer(void *arg)
{
    struct train *t = arg;
    struct hth_train_stats stats;
    hth_trainer_stats(t->trainer, &stats);
    if (t->started && !t->finishing) {
        if (hth_train_lines_due(&t->lines))
            write_progress(t, &stats);
        hth_train_tell_progress(t->tell, &stats, hth_together_trainers(&t->together));
        print_progress(t, &stats);
        notice_waiting(t, &stats);
        notice_trainers(t, &stats);
        notice_others(t);
    }
    hth_timer_set(t->peer.env, t->timer, METRICS_PERIOD_US);
}

static void on_update(void *arg, const struct hth_train_stats *stats)
{
    struct train *t = arg;
    int64_t now = hth_now_us(t->peer.env);
    (void)stats;
    t->gap_us = HTH_MAX(t->gap_us, now - t->last_update_us);
    t->last_update_us = now;
}

/* ---- the end ------------------------------------------------------------------------------- */

static void print_head(const struct hth_share_stats *s)
{
    char head[17];
    if (s->run.members == 0)
        return;
    hth_hex(s->run.head.b, 8, head);
    hth_say("its parameters are those of head %s, a step of %u trainers: all that end with this "
            "head have the same",
            head, s->run.members);
}

/* Says where the model lies. */
static void print_saved(const struct train *t, uint64_t updates)
{
    unsigned long long at = updates, saved = t->saved_at;
    if (t->checkpoint_lost != HTH_OK && t->saved_at > 0)
        hth_cli_say_error("update %llu could not be saved: %s; %s has update %llu", at,
                          hth_err_text(t->checkpoint_lost), t->checkpoint, saved);
    else if (t->checkpoint_lost != HTH_OK)
        hth_cli_say_error("update %llu could not be saved to %s: %s", at, t->checkpoint,
                          hth_err_text(t->checkpoint_lost));
    else if (t->saved_at > 0)
        hth_say("saved %s (update %llu)", t->checkpoint, saved);
    else if (updates > 0)
        hth_say("%s has update %llu already", t->checkpoint, at);
    else
        hth_say("no update was made, so nothing is saved");
}

/* The figures of a test, those of the model's kind. */
static const char *eval_text(const struct train *t, const struct hth_eval_result *r, char *out,
                             size_t size)
{
    if (t->run->model.kind == HTH_RUN_PICTURE)
        snprintf(out, size, "%.3f bits per code, %.2f %% right", r->bits_per_code,
                 100 * r->accuracy);
    else if (t->run->model.kind == HTH_RUN_LM)
        snprintf(out, size, "%.3f bits per %s", r->bits_per_byte,
                 t->run->model.vocab == 256 ? "byte" : "token");
    else
        snprintf(out, size, "%.2f %% right, loss %.4f", 100 * r->accuracy, r->loss);
    return out;
}

static void print_contribution(const struct train *t)
{
    struct hth_contribution c;
    hth_trainer_contribution(t->trainer, &c);
    if (c.rank > 0)
        hth_say("you: %llu samples in common steps, %.1f %% of the run, rank %u of %u",
                (unsigned long long)c.samples, 100.0 * (double)c.samples / (double)c.of, c.rank,
                c.peers);
}

static void print_summary(struct train *t)
{
    struct hth_train_stats s;
    char bytes[16], experts[200] = "";
    hth_trainer_stats(t->trainer, &s);
    if (!is_dense(t))
        snprintf(experts, sizeof(experts),
                 " %llu requests to hosts, %llu failed, %llu retried; %s per sample; %llu rows "
                 "without an expert,",
                 (unsigned long long)s.requests, (unsigned long long)s.requests_failed,
                 (unsigned long long)s.retries,
                 hth_cli_bytes_text((double)(s.bytes_in + s.bytes_out) /
                                        (double)HTH_MAX(s.samples, UINT64_C(1)),
                                    bytes),
                 (unsigned long long)s.rows_without_expert);
    hth_say("%llu updates, %llu samples;%s %llu flights not finite", (unsigned long long)s.updates,
            (unsigned long long)s.samples, experts, (unsigned long long)s.flights_not_finite);
    if (s.answers_bad + s.parts_refused > 0)
        hth_say("%llu rows in %llu request parts were not used: not finite or too large; hosts "
                "refused %llu request parts",
                (unsigned long long)s.answers_bad, (unsigned long long)s.parts_bad,
                (unsigned long long)s.parts_refused);
    if (s.share.means_refused > 0)
        hth_say("%llu means of parameters were refused: too far from the own ones",
                (unsigned long long)s.share.means_refused);
    print_contribution(t);
    print_saved(t, s.updates);
    print_head(&s.share);
    if (t->last_eval.samples > 0) {
        char text[80];
        hth_say("test: %s", eval_text(t, &t->last_eval, text, sizeof(text)));
    }
}

/* Lost lines of --metrics or a lost checkpoint make the exit code a failure: scripts rely on the
 * files. */
static int code_of(const struct train *t)
{
    bool lost = t->lines.lost > 0 || t->checkpoint_lost != HTH_OK;
    return lost && t->code == HTH_EXIT_OK ? HTH_EXIT_FAILURE : t->code;
}

static void withdrawn(void *arg)
{
    struct train *t = arg;
    hth_peer_stop(&t->peer, code_of(t));
}

static void told(void *arg)
{
    struct train *t = arg;
    if (t->announcer != NULL)
        hth_announcer_withdraw(t->announcer, withdrawn, t);
    else
        withdrawn(t);
}

static void left(void *arg)
{
    struct train *t = arg;
    if (t->code != HTH_EXIT_OK)
        told(t);
    else if (hth_train_tell_end(t->tell, told, t))
        hth_say_note("waiting a moment for those who watch the run to see its end (Ctrl-C: not)");
}

static void stopped(void *arg)
{
    struct train *t = arg;
    struct hth_train_stats stats;
    hth_trainer_stats(t->trainer, &stats);
    write_progress(t, &stats);
    hth_train_tell_progress(t->tell, &stats, hth_together_trainers(&t->together));
    hth_say_progress_end();
    print_summary(t);
    hth_train_lines_end(&t->lines, stats.updates, code_of(t));
    hth_together_leave(&t->together, left, t);
}

static void finish(struct train *t, int code)
{
    if (t->finishing)
        return;
    t->finishing = true;
    t->code = code;
    hth_trainer_stop(t->trainer, stopped, t);
}

static void on_eval(void *arg, const struct hth_eval_result *r)
{
    struct train *t = arg;
    t->last_eval = *r;
    hth_train_lines_eval(&t->lines, r);
    hth_train_tell_test(t->tell, r);
    char text[80];
    hth_say("test after %llu updates: %s", (unsigned long long)r->updates,
            eval_text(t, r, text, sizeof(text)));
}

static void say_other_settings(struct train *t)
{
    struct hth_other_settings others;
    hth_settings_others(t->together.avg.roster, &others);
    hth_cli_say_error(
        "run '%s' has trainers with another %s (%u): this trainer would start a second run on the "
        "same experts; use their run file and flags, or another name (run, --network), or "
        "--bootstrap to start anyway",
        t->peer.name, others.differ, others.trainers);
}

static void on_done(void *arg, enum hth_err err)
{
    struct train *t = arg;
    if (err == HTH_E_OTHER_SETTINGS) {
        say_other_settings(t);
        finish(t, hth_exit_of(err));
        return;
    }
    if (err != HTH_OK) {
        hth_cli_say_error("training stopped: %s", hth_err_text(err));
        finish(t, hth_exit_of(err));
        return;
    }
    finish(t, HTH_EXIT_OK); /* the final evaluation is done */
}

/* Records the outcome for the exit code; the trainer logs the cause. */
static void on_checkpoint(void *arg, uint64_t updates, enum hth_err err)
{
    struct train *t = arg;
    t->checkpoint_lost = err;
    if (err != HTH_OK)
        return;
    t->saved_at = updates;
    hth_train_tell_saved(t->tell, updates);
    hth_metric_set(hth_gauge(t->peer.env->metrics, "hearth_checkpoint_time_seconds",
                             "Unix time of the last good checkpoint"),
                   (double)hth_wall_us(t->peer.env) / 1e6);
}

static void on_drain(void *arg)
{
    struct train *t = arg;
    if (!t->finishing)
        hth_say_note("stopping: finishing the flights, saving (Ctrl-C again quits at once)");
    hth_train_tell_cut(t->tell);
    finish(t, HTH_EXIT_INTERRUPTED);
}

static char *status_json(void *arg)
{
    const struct train *t = arg;
    struct hth_train_stats stats;
    hth_trainer_stats(t->trainer, &stats);
    return hth_together_page(&t->together, t->peer.env->metrics, &stats);
}

static void tell(void *arg, struct hth_about *out)
{
    const struct train *t = arg;
    struct hth_train_stats stats;
    hth_trainer_stats(t->trainer, &stats);
    out->unsaved_since_us = stats.unsaved_since_us;
    hth_about_refuse(out, "claim", stats.claims_refused);
    hth_about_refuse(out, "mean", stats.share.means_refused);
    hth_about_refuse(out, "state", stats.share.states_refused);
}

/* Why its work may be lost. */
static char *trouble(void *arg)
{
    const struct train *t = arg;
    struct hth_train_stats stats;
    char span[16];
    hth_trainer_stats(t->trainer, &stats);
    if (stats.unsaved_since_us == 0)
        return NULL;
    return hth_asprintf("checkpoints can't be saved for %s: the log says why",
                        hth_cli_span_text(hth_wall_us(t->peer.env) - stats.unsaved_since_us, span));
}

/* ---- the start ----------------------------------------------------------------------------- */

/* Publishes the beacon, once the peer has joined: a trainer that is turned away must leave no
 * beacon, by which the next trainer would take the run for a live one. */
static void announce(struct train *t)
{
    struct hth_announcer_opts opts = HTH_ANNOUNCER_OPTS_INIT;
    opts.network = t->peer.network;
    opts.role = HTH_ROLE_TRAINER;
    opts.info.addr[0] = t->peer.announce;
    opts.info.addr_count = t->flags.client ? 0 : 1;
    snprintf(opts.info.version, sizeof(opts.info.version), "%s", HTH_VERSION);
    enum hth_err err = hth_announcer_new(t->peer.env, t->peer.dht, &opts, &t->announcer);
    if (err != HTH_OK)
        hth_cli_say_error("beacon: %s", hth_err_text(err));
}

static void on_joined(void *arg)
{
    struct train *t = arg;
    if (t->started)
        return;
    t->started = true;
    if (!t->flags.local)
        announce(t);
    hth_together_join(&t->together);
    t->last_update_us = hth_now_us(t->peer.env);
    hth_trainer_start(t->trainer);
}

/* The seed of this peer's order of the data: --peer-seed, else from its key. */
static uint64_t data_peer(const struct train *t)
{
    uint64_t from_key;
    memcpy(&from_key, t->peer.env->self.b, sizeof(from_key));
    return t->flags.peer_seed != 0 ? t->flags.peer_seed : from_key;
}

static const char *way_out(const struct train *t, enum hth_err err)
{
    if (err == HTH_E_WRONG_RUN)
        return "use its own run file and flags, or another --dir";
    if (err == HTH_E_NO_FILE && t->flags.local)
        return "if it learnt in a swarm, leave out --local; else put good copies there, or give "
               "another --dir to begin anew";
    return "put good copies there, or give another --dir to begin anew";
}

static void say_no_trainer(const struct train *t, const struct hth_trainer_opts *o,
                           enum hth_err err)
{
    if (o->why->text[0] != '\0')
        hth_cli_say_error("checkpoint %s: %s; %s", t->checkpoint, o->why->text, way_out(t, err));
    else if (err == HTH_E_NO_FILE && o->data.kind == HTH_DATA_TEXT)
        hth_cli_say_error(
            "no text at '%s', nor one of that name beside the run file; give any text file "
            "with --data FILE",
            o->data.text);
    else if (err == HTH_E_NO_FILE && o->data.kind == HTH_DATA_IMAGES)
        hth_cli_say_error("'%s' or one of the other three idx files beside it is missing; install "
                          "dataset-fashion-mnist, or give --data DIR",
                          o->data.images);
    else
        hth_cli_say_error("can't make the trainer: %s", hth_err_text(err));
}

/* Whether the folder has files whose names have this ending. */
static bool has_files(const char *folder, const char *ending)
{
    DIR *dir = opendir(folder);
    struct dirent *entry;
    bool found = false;
    while (dir != NULL && !found && (entry = readdir(dir)) != NULL) {
        const char *at = strstr(entry->d_name, ending);
        found = at != NULL && strcmp(at, ending) == 0;
    }
    if (dir != NULL)
        closedir(dir);
    return found;
}

static void say_resumed(const struct train *t)
{
    struct hth_train_stats s;
    hth_trainer_stats(t->trainer, &s);
    if (s.updates > 0)
        hth_say("continuing %s from update %llu", t->checkpoint, (unsigned long long)s.updates);
    else
        hth_say("nothing to resume at %s: starting anew", t->checkpoint);
    bool uses = t->flags.local && !t->flags.without_experts;
    if (s.updates > 0 && !uses && has_files(t->experts, ".safetensors"))
        hth_cli_say_error("the experts in %s stay unused: %s", t->experts,
                          t->flags.local ? "leave out --without-experts to go on with them"
                                         : "hosts have others; --local goes on with these");
}

/* Says what sharing saves: an average sends each set once. */
static void say_sharing(const struct hth_model_opts *o)
{
    struct hth_model_opts unshared = *o;
    uint64_t n, all;
    unshared.share = 0;
    if (o->share > 0 && hth_model_count(o, &n) == HTH_OK &&
        hth_model_count(&unshared, &all) == HTH_OK)
        hth_say("%u layers share %u sets of weights: %llu parameters, 1/%.1f of those without "
                "sharing, and as much less to average",
                o->layers, hth_model_sets(o), (unsigned long long)n, (double)all / (double)n);
}

static enum hth_err make_trainer(struct train *t)
{
    struct hth_trainer_opts opts = HTH_TRAINER_OPTS_INIT;
    char model_why[HTH_MODEL_WHY_MAX];
    struct hth_why why = {""};
    hth_config_model(t->run, &opts.model);
    enum hth_err err = hth_model_check(&opts.model, t->backend, model_why);
    if (err != HTH_OK) {
        hth_cli_say_error("run '%s': %s", t->run->run, model_why);
        return err == HTH_E_UNSUPPORTED ? HTH_E_NO_DEVICE : HTH_E_CONFIG;
    }
    say_sharing(&opts.model);
    hth_config_data(t->run, data_peer(t), &t->paths, &opts.data, &opts.eval_data);
    hth_config_optim(&t->run->optimizer, &opts.optim);
    hth_config_optim(&t->run->experts.optimizer, &opts.local_optim);
    opts.has_eval_data = true;
    opts.backend = t->backend;
    opts.rpc = t->peer.rpc;
    opts.directory = t->directory;
    if (t->together.avg.roster != NULL) {
        opts.averager = &t->together.avg.averager;
        hth_together_share(&t->together, &t->run->averaging, &opts.share);
        opts.share.bootstrap = t->flags.bootstrap;
        opts.share.strangers = t->flags.net.open_to_anyone;
    }
    opts.micro_batch = t->run->train.rows;
    opts.flights = t->run->train.flights;
    opts.updates_max = t->run->train.steps;
    opts.eval_every = t->run->train.eval_every;
    opts.eval_samples = t->run->train.eval_rows;
    opts.eval_samples_last = UINT64_MAX; /* the final evaluation uses the whole test set */
    opts.checkpoint_path = t->checkpoint;
    opts.run_text = t->run->text;
    opts.experts_dir = t->experts;
    opts.checkpoint_every = t->run->train.checkpoint_every;
    opts.disk_bytes_max = t->flags.back.disk_bytes;
    opts.keep = t->flags.keep;
    opts.resume = t->flags.resume;
    opts.run = t->run->run;
    opts.why = &why;
    opts.grace_us = (int64_t)(t->run->train.grace_s * 1e6);
    opts.timeout_us = (int64_t)(t->run->train.timeout_s * 1e6);
    opts.wire = hth_runfile_wire(t->run);
    opts.local = t->flags.local;
    opts.without_experts = t->flags.without_experts;
    opts.local_step_rows = t->run->experts.step_rows;
    opts.on = (struct hth_train_callbacks){.on_update = on_update,
                                           .on_eval = on_eval,
                                           .on_checkpoint = on_checkpoint,
                                           .on_done = on_done,
                                           .arg = t};
    err = hth_trainer_new(t->peer.env, &opts, &t->trainer);
    if (err != HTH_OK)
        say_no_trainer(t, &opts, err);
    else if (t->flags.resume)
        say_resumed(t);
    /* The run file names data that is not there. */
    return err == HTH_E_NO_FILE && why.text[0] == '\0' ? HTH_E_CONFIG : err;
}

static enum hth_err build(struct train *t)
{
    t->checkpoint = hth_asprintf(TRUNK, t->peer.dir);
    t->experts = hth_asprintf(EXPERTS, t->peer.dir);
    t->timer = hth_timer_new(t->peer.env, on_timer, t);
    t->metrics = t->flags.metrics_path != NULL ? hth_strdup(t->flags.metrics_path)
                                               : hth_asprintf(METRICS, t->peer.dir);
    HTH_TRY(
        hth_train_lines_open(&t->lines, t->peer.env, t->metrics, t->flags.metrics_path == NULL));
    if (!t->flags.local) {
        struct hth_directory_opts opts = HTH_DIRECTORY_OPTS_INIT;
        opts.network = t->peer.network;
        opts.prove = true;
        HTH_TRY(hth_directory_new(t->peer.env, t->peer.dht, &opts, &t->directory));
    }
    if (!t->flags.local && t->run->averaging.mode != HTH_RUN_OFF)
        HTH_TRY(hth_together_open(&t->together, &t->peer, &t->run->averaging,
                                  t->flags.client ? HTH_AVG_CLIENT : HTH_AVG_TRAINER,
                                  t->flags.up_mbit));
    const struct hth_train_tell_opts tell_opts = {.tensorboard = t->flags.tensorboard_dir,
                                                  .steps = t->run->train.steps,
                                                  .is_text = t->run->model.kind == HTH_RUN_LM};
    HTH_TRY(hth_train_tell_new(&t->peer, &tell_opts, &t->tell));
    HTH_TRY(make_trainer(t));
    t->together.trainer = t->trainer;
    hth_timer_set(t->peer.env, t->timer, METRICS_PERIOD_US);
    return HTH_OK;
}

static void destroy(struct train *t)
{
    hth_say_progress_end();
    hth_peer_jobs_end(&t->peer);
    t->together.trainer = NULL;
    hth_trainer_free(t->trainer);
    hth_train_tell_free(t->tell);
    hth_together_close(&t->together);
    hth_directory_free(t->directory);
    hth_announcer_free(t->announcer);
    hth_timer_free(t->peer.env, t->timer);
    hth_peer_close(&t->peer);
    hth_config_data_clear(&t->paths);
    hth_free(t->checkpoint);
    hth_free(t->experts);
    hth_train_lines_close(&t->lines);
    hth_free(t->metrics);
}

static bool is_file(const char *path)
{
    struct stat st;
    return stat(path, &st) == 0 && S_ISREG(st.st_mode);
}

/* Refuses to begin anew where a model is: training would replace it, and nobody asked for that. */
static enum hth_err refuse_to_replace(void *arg, const char *dir)
{
    const struct train *t = arg;
    char *trunk = hth_asprintf(TRUNK, dir), *experts = hth_asprintf(EXPERTS, dir), *found = NULL;
    if (is_file(trunk))
        found = trunk;
    else if (t->flags.local && !t->flags.without_experts && has_files(experts, ".safetensors"))
        found = experts;
    if (t->flags.resume)
        found = NULL;
    if (found != NULL)
        hth_cli_say_error("%s is of an earlier run: add --resume to continue it, or give another "
                          "--dir to begin anew",
                          found);
    hth_free(trunk);
    hth_free(experts);
    return found != NULL ? HTH_E_USAGE : HTH_OK;
}

static int run_trainer(struct train *t)
{
    const struct hth_peer_opts peer_opts = {
        .check_dir = refuse_to_replace,
        .check_arg = t,
        .verb = "train",
        .net = &t->flags.net,
        .log = &t->flags.log,
        .run = t->run,
        .roles = HTH_MAY_TRAIN,
        .rpc_listens = !t->flags.client,
        .dials_only = t->flags.client,
        .offline = t->flags.local,
    };
    enum hth_err err = hth_device_choose(&t->flags.device, hth_config_compute(t->run), &t->backend);
    if (err != HTH_OK)
        return HTH_EXIT_DEVICE;
    int code = hth_peer_open(&peer_opts, &t->peer);
    if (code != HTH_EXIT_OK)
        return code;
    t->peer.on_joined = on_joined;
    t->peer.on_drain = on_drain;
    t->peer.status_json = status_json;
    t->peer.trouble = trouble;
    t->peer.tell = tell;
    t->peer.arg = t;
    err = hth_back(&t->flags.back, t->peer.env, t->peer.dir, true,
                   t->flags.local && !t->flags.without_experts);
    err = err == HTH_OK ? build(t) : err;
    code = err == HTH_OK ? hth_peer_run(&t->peer) : hth_exit_of(err);
    destroy(t);
    return code;
}

int hth_verb_train(int argc, char **argv)
{
    struct train t = {.flags = HTH_TRAIN_FLAGS_INIT};
    if (argp_parse(&hth_train_argp, argc, argv, 0, NULL, &t.flags) != 0)
        return HTH_EXIT_USAGE;
    t.flags.resume = t.flags.resume || t.flags.back.back_us > 0;
    int code = hth_run_file_open(t.flags.run_path, &t.flags.net, &t.flags.log, &t.run);
    if (code == HTH_EXIT_OK)
        code = hth_exit_of(hth_train_flags_apply(&t.flags, t.run));
    if (code == HTH_EXIT_OK)
        code = run_trainer(&t);
    hth_runfile_free(t.run);
    return code;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* train_lines.c: the lines of --metrics. */
#include "app/train_lines.h"

#include "cli/cli.h"
#include "cli/json.h"

#include <errno.h>
#include <string.h>

#define THIN_PART   100
#define THIN_MIN_US (500 * HTH_US_PER_MS)
#define THIN_MAX_US (60 * HTH_US_PER_S)

enum hth_err hth_train_lines_open(struct hth_train_lines *l, struct hth_env *env, const char *path,
                                  bool thin)
{
    *l = (struct hth_train_lines){.file = fopen(path, "a"),
                                  .path = path,
                                  .env = env,
                                  .thin = thin,
                                  .begun_us = hth_now_us(env)};
    if (l->file != NULL)
        return HTH_OK;
    hth_cli_say_error("%s: %s", path, strerror(errno));
    return HTH_E_IO;
}

bool hth_train_lines_due(struct hth_train_lines *l)
{
    int64_t now = hth_now_us(l->env);
    if (l->thin && now < l->next_us)
        return false;
    l->next_us = now + HTH_MIN(HTH_MAX((now - l->begun_us) / THIN_PART, THIN_MIN_US), THIN_MAX_US);
    return true;
}

static json_t *line_of(struct hth_train_lines *l, const char *kind, uint64_t step)
{
    json_t *o = json_object();
    hth_json_text(o, "kind", kind);
    hth_json_real(o, "t", (double)hth_wall_us(l->env) / 1e6);
    hth_json_count(o, "step", step);
    return o;
}

static void write_take(struct hth_train_lines *l, json_t *line)
{
    hth_json_print_take(l->file, line);
    fputc('\n', l->file);
    if (fflush(l->file) == 0 && ferror(l->file) == 0)
        return;
    if (l->lost++ == 0)
        hth_cli_say_error("%s: %s; training continues without these lines", l->path,
                          strerror(errno));
    clearerr(l->file);
    fputc('\n', l->file); /* ends a line that was written in part */
}

void hth_train_lines_progress(struct hth_train_lines *l, struct hth_together *together,
                              const struct hth_train_stats *s, int64_t gap_us)
{
    const struct hth_averager_stats *averages = &s->share.run.averages;
    if (l->file == NULL)
        return;
    json_t *o = line_of(l, "progress", s->updates);
    hth_json_count(o, "samples", s->samples);
    hth_json_real(o, "loss", s->loss_ema);
    hth_json_real(o, "accuracy", s->accuracy_ema);
    hth_json_real(o, "samples_per_s", s->samples_per_s);
    hth_json_real(o, "gap_ms", (double)gap_us / 1e3);
    hth_json_count(o, "calls", s->requests);
    hth_json_count(o, "calls_failed", s->requests_failed);
    hth_json_count(o, "calls_retried", s->retries);
    hth_json_count(o, "bytes", s->bytes_in + s->bytes_out);
    hth_json_count(o, "rows_mixed", s->rows_mixed);
    hth_json_count(o, "rows_lost", s->rows_without_expert);
    hth_json_count(o, "not_finite", s->flights_not_finite);
    hth_json_count(o, "answers_bad", s->answers_bad);
    hth_json_count(o, "parts_bad", s->parts_bad);
    hth_json_count(o, "parts_refused", s->parts_refused);
    hth_json_count(o, "experts_live", s->live_experts);
    hth_json_real(o, "staleness_mean", s->staleness_mean);
    hth_json_count(o, "trainers", hth_together_trainers(together));
    hth_json_count(o, "rounds", averages->rounds);
    hth_json_count(o, "rounds_failed", averages->failed);
    hth_json_count(o, "means_refused", s->share.means_refused);
    hth_json_real(o, "distance", s->share.norm > 0 ? s->share.distance / s->share.norm : 0);
    hth_json_real(o, "codec_error", averages->last.codec_error);
    hth_json_real(o, "weight_fraction", averages->last.weight_fraction);
    hth_json_text(o, "phase", hth_share_phase_name(s->share.run.phase));
    write_take(l, o);
}

void hth_train_lines_eval(struct hth_train_lines *l, const struct hth_eval_result *r)
{
    if (l->file == NULL)
        return;
    json_t *o = line_of(l, "eval", r->updates);
    hth_json_count(o, "samples", r->samples);
    hth_json_real(o, "loss", r->loss);
    hth_json_real(o, "accuracy", r->accuracy);
    hth_json_real(o, "bits_per_byte", r->bits_per_byte);
    if (r->bits_per_code > 0)
        hth_json_real(o, "bits_per_code", r->bits_per_code);
    write_take(l, o);
}

void hth_train_lines_end(struct hth_train_lines *l, uint64_t step, int code)
{
    if (l->file == NULL)
        return;
    json_t *o = line_of(l, "end", step);
    hth_json_count(o, "code", (uint64_t)code);
    write_take(l, o);
    if (l->lost > 0)
        hth_cli_say_error("%s: %llu lines could not be written", l->path,
                          (unsigned long long)l->lost);
}

void hth_train_lines_close(struct hth_train_lines *l)
{
    if (l->file != NULL)
        fclose(l->file);
    l->file = NULL;
}

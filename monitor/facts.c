/* SPDX-License-Identifier: Apache-2.0 */
/* facts.c: figures in words. */
#include "monitor/facts.h"

#include "cli/cli.h"
#include "core/log.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#define FIELD 32 /* bytes of a figure within a text */

static bool number(const json_t *object, const char *name, double *out)
{
    const json_t *value = json_object_get(object, name);
    if (!json_is_number(value))
        return false;
    *out = json_number_value(value);
    return isfinite(*out);
}

double hth_fact_or(const json_t *object, const char *name, double otherwise)
{
    double value;
    return number(object, name, &value) ? value : otherwise;
}

const char *hth_fact_text(const json_t *object, const char *name)
{
    const char *text = json_string_value(json_object_get(object, name));
    return text != NULL ? text : "";
}

static const char *count(const json_t *object, const char *name, char out[FIELD])
{
    double value;
    if (!number(object, name, &value) || value < 0 || value > 9e15)
        return "-";
    return hth_cli_count_text((uint64_t)value, out);
}

static const char *loss(const json_t *object, const char *name, char out[FIELD])
{
    double value;
    if (!number(object, name, &value))
        return "-";
    snprintf(out, FIELD, "%.4g", value);
    return out;
}

static const char *rate(const json_t *object, const char *name, char out[FIELD])
{
    double value;
    if (!number(object, name, &value))
        return "-";
    snprintf(out, FIELD, fabs(value) < 100 ? "%.3g" : "%.0f", value);
    return out;
}

static const char *span(const json_t *object, const char *name, char out[FIELD])
{
    double value;
    if (!number(object, name, &value) || value < 0 || value > 1e9)
        return "-";
    return hth_cli_span_text((int64_t)(value * 1e6), out);
}

/* ---- the run ------------------------------------------------------------------------------- */

static void state_fact(const json_t *run, struct hth_fact *f)
{
    static const struct {
        const char *state, *words;
    } states[] = {{"looking", "looking for peers"},
                  {"waiting", "waiting: no step for a minute"},
                  {"idle", "idle: no trainer"}};
    const char *state = hth_fact_text(run, "state");
    for (size_t i = 0; i < sizeof(states) / sizeof(states[0]); i++) {
        if (strcmp(state, states[i].state) == 0)
            state = states[i].words;
    }
    snprintf(f->text, sizeof(f->text), "%s", state[0] != '\0' ? state : "-");
}

static void step_fact(const json_t *run, struct hth_fact *f)
{
    char step[FIELD], total[FIELD], left[FIELD];
    double of = hth_fact_or(run, "total", 0), at = hth_fact_or(run, "step", -1);
    int len = snprintf(f->text, sizeof(f->text), "%s", count(run, "step", step));
    if (of <= 0 || at < 0)
        return;
    len += snprintf(f->text + len, sizeof(f->text) - (size_t)len, " of %s, %.1f %%",
                    count(run, "total", total), fmin(100, 100 * at / of));
    if (hth_fact_or(run, "left_s", 0) > 0)
        snprintf(f->text + len, sizeof(f->text) - (size_t)len, ", %s left",
                 span(run, "left_s", left));
}

static void test_fact(const json_t *run, struct hth_fact *f)
{
    const json_t *test = json_object_get(run, "test");
    char nats[FIELD], step[FIELD], bits[FIELD], more[FIELD + 16] = "";
    double right;
    if (number(test, "accuracy", &right))
        snprintf(more, sizeof(more), ", %.1f %% right", 100 * fmin(fmax(right, 0), 1));
    else if (json_is_number(json_object_get(test, "bits_per_byte")))
        snprintf(more, sizeof(more), ", %s bits a byte", loss(test, "bits_per_byte", bits));
    if (json_is_object(test))
        snprintf(f->text, sizeof(f->text), "%s%s, at step %s", loss(test, "loss", nats), more,
                 count(test, "step", step));
    else
        snprintf(f->text, sizeof(f->text), "-");
}

void hth_fact_time(double t, char out[HTH_FACT_TEXT])
{
    char utc[HTH_UTC_TEXT_MAX];
    snprintf(out, HTH_FACT_TEXT, "-");
    if (t > 0 && t < 4e9) {
        hth_utc_text((int64_t)(t * 1e6), utc);
        snprintf(out, HTH_FACT_TEXT, "%.10s %.5s UTC", utc, utc + 11);
    }
}

static void checkpoint_fact(const json_t *run, struct hth_fact *f)
{
    const json_t *saved = json_object_get(run, "checkpoint");
    char step[FIELD], at[HTH_FACT_TEXT];
    hth_fact_time(hth_fact_or(saved, "t", 0), at);
    if (json_is_object(saved))
        snprintf(f->text, sizeof(f->text), "step %s, %.24s", count(saved, "step", step), at);
    else
        snprintf(f->text, sizeof(f->text), "-");
}

static void experts_fact(const json_t *run, struct hth_fact *f)
{
    char served[FIELD], places[FIELD];
    double missing = hth_fact_or(run, "places", 0) - hth_fact_or(run, "served", 0);
    f->alarm = missing > 0;
    int len = snprintf(f->text, sizeof(f->text), "%s of %s served", count(run, "served", served),
                       count(run, "places", places));
    if (f->alarm)
        snprintf(f->text + len, sizeof(f->text) - (size_t)len, ", %.0f missing", missing);
}

void hth_facts(const json_t *run, struct hth_fact out[HTH_FACTS])
{
    static const char *const names[HTH_FACTS] = {
        "state", "step",         "loss",    "test loss",  "samples",
        "speed", "participants", "experts", "checkpoint", "training since"};
    char a[FIELD], b[FIELD], c[FIELD];
    for (size_t i = 0; i < HTH_FACTS; i++)
        out[i] = (struct hth_fact){.name = names[i]};
    state_fact(run, &out[0]);
    step_fact(run, &out[1]);
    snprintf(out[2].text, sizeof(out[2].text), "%s", loss(run, "loss", a));
    test_fact(run, &out[3]);
    snprintf(out[4].text, sizeof(out[4].text), "%s", count(run, "samples", a));
    snprintf(out[5].text, sizeof(out[5].text), "%s samples/s, %s rows/s",
             rate(run, "samples_per_s", a), rate(run, "rows_per_s", b));
    snprintf(out[6].text, sizeof(out[6].text), "trainers %s, hosts %s, helpers %s",
             count(run, "trainers", a), count(run, "hosts", b), count(run, "helpers", c));
    experts_fact(run, &out[7]);
    checkpoint_fact(run, &out[8]);
    hth_fact_time(hth_fact_or(run, "since_at_s", 0), out[9].text);
}

/* ---- peers --------------------------------------------------------------------------------- */

const char *const hth_peer_heads[HTH_PEER_CELLS] = {"peer",    "role",         "speed",  "step",
                                                    "experts", "last average", "version"};

/* The state of a peer that is not as it should be, or its special work; "": neither. */
static void remark(const json_t *peer, char out[HTH_FACT_TEXT])
{
    const char *state = hth_fact_text(peer, "state"), *does = hth_fact_text(peer, "does");
    char text[FIELD];
    out[0] = '\0';
    if (strcmp(state, "silent") == 0)
        snprintf(out, HTH_FACT_TEXT, ": silent for %s", span(peer, "seen_s", text));
    else if (strcmp(state, "unreachable") == 0)
        snprintf(out, HTH_FACT_TEXT, ": can't be reached");
    else if (hth_fact_or(peer, "unsaved_s", 0) > 0)
        snprintf(out, HTH_FACT_TEXT, ": can't save for %s", span(peer, "unsaved_s", text));
    else if (does[0] != '\0' && strcmp(does, "training") != 0)
        snprintf(out, HTH_FACT_TEXT, ": %.16s", does);
}

static void average_cell(const json_t *peer, bool trainer, char out[HTH_FACT_TEXT])
{
    const json_t *average = json_object_get(peer, "average");
    const char *reason = hth_fact_text(average, "reason");
    double members = hth_fact_or(average, "members", 0);
    if (!json_is_object(average))
        snprintf(out, HTH_FACT_TEXT, "%s", trainer ? "none yet" : "");
    else if (strcmp(reason, "OK") == 0)
        snprintf(out, HTH_FACT_TEXT, "with %.0f other%s", fmax(members - 1, 0),
                 members == 2 ? "" : "s");
    else
        snprintf(out, HTH_FACT_TEXT, "%.24s", reason);
}

void hth_peer_cells(const json_t *peer, char out[HTH_PEER_CELLS][HTH_FACT_TEXT])
{
    const char *role = hth_fact_text(peer, "role"), *name = hth_fact_text(peer, "name");
    bool trainer = strcmp(role, "trainer") == 0, host = strcmp(role, "host") == 0;
    char more[HTH_FACT_TEXT], figure[FIELD];
    remark(peer, more);
    for (size_t i = 0; i < HTH_PEER_CELLS; i++)
        out[i][0] = '\0';
    snprintf(out[0], HTH_FACT_TEXT, "%.64s", name[0] != '\0' ? name : hth_fact_text(peer, "id"));
    snprintf(out[1], HTH_FACT_TEXT, "%.16s%.64s", role, more);
    if (trainer)
        snprintf(out[2], HTH_FACT_TEXT, "%s samples/s", rate(peer, "samples_per_s", figure));
    else if (host && json_is_number(json_object_get(peer, "rows_per_s")))
        snprintf(out[2], HTH_FACT_TEXT, "%s rows/s", rate(peer, "rows_per_s", figure));
    if (trainer)
        snprintf(out[3], HTH_FACT_TEXT, "%s", count(peer, "step", figure));
    if (host)
        snprintf(out[4], HTH_FACT_TEXT, "%s", count(peer, "experts", figure));
    average_cell(peer, trainer, out[5]);
    snprintf(out[6], HTH_FACT_TEXT, "%.31s", hth_fact_text(peer, "version"));
}

/* ---- experts ------------------------------------------------------------------------------- */

void hth_fact_uid(const json_t *layer, uint64_t index, char out[HTH_FACT_TEXT])
{
    const json_t *grid = json_object_get(layer, "grid");
    uint64_t at[3] = {0};
    size_t axes = json_array_size(grid) < 3 ? json_array_size(grid) : 3;
    for (size_t d = axes; d-- > 0;) {
        json_int_t dim = json_integer_value(json_array_get(grid, d));
        at[d] = dim > 0 ? index % (uint64_t)dim : index;
        index = dim > 0 ? index / (uint64_t)dim : 0;
    }
    int len = snprintf(out, HTH_FACT_TEXT, "%.24s", hth_fact_text(layer, "name"));
    for (size_t d = 0; d < axes; d++)
        len += snprintf(out + len, HTH_FACT_TEXT - (size_t)len, ".%llu", (unsigned long long)at[d]);
}

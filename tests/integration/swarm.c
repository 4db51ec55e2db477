/* SPDX-License-Identifier: Apache-2.0 */
/* swarm.c: starts averagers as processes and reads their results. */
#define _POSIX_C_SOURCE 200809L
#include "integration/swarm.h"

#include "benchmarks/avg_node.h"
#include "core/mem.h"

#include <signal.h>
#include <stdlib.h>

#define ARGS_MAX 20

/* ---- the start ----------------------------------------------------------------------------- */

static uint32_t host_of(const struct swarm *s, uint32_t i)
{
    return i == s->opts.peers ? SWARM_NEWCOMER : i;
}

static const char *address(struct swarm *s, uint32_t i)
{
    if (s->opts.lab)
        return place_text(s->place, "10.77.0.%u:%d", host_of(s, i) + 1, SWARM_PORT);
    return place_addr(s->place);
}

/* In a lab netlab starts the process on its host, where it becomes the averager. */
static struct proc *start_one(struct swarm *s, uint32_t i, const char *name,
                              const char *const *args)
{
    const char *all[ARGS_MAX + 4] = {"at", place_text(s->place, "h%u", host_of(s, i)),
                                     HTH_TEST_AVERAGER};
    size_t n = 3;

    if (!s->opts.lab)
        return place_start_program(s->place, HTH_TEST_AVERAGER, name, args);
    for (; *args != NULL; args++)
        all[n++] = *args;
    return place_start_program(s->place, HTH_TEST_NETLAB, name, all);
}

static void start_peer(struct swarm *s, uint32_t i, bool newcomer)
{
    const struct swarm_opts *o = &s->opts;
    struct place *p = s->place;
    const char *args[ARGS_MAX] = {NULL}, *addr = address(s, i);
    bool helps = o->helper > 0 && i + 1 == o->peers;
    size_t n = 0;

    snprintf(s->addr[i], sizeof(s->addr[i]), "%s", addr);
    snprintf(s->out[i], sizeof(s->out[i]), "%s/%u.bin", p->root, i);
    args[n++] = place_text(p, "listen=%s", addr);
    if (i > 0)
        args[n++] = place_text(p, "join=%s", s->addr[0]);
    args[n++] = place_text(p, "shape=%s", o->shape);
    args[n++] = place_text(p, "rank=%u", newcomer ? 0 : i);
    args[n++] = place_text(p, "population=%u", o->peers);
    args[n++] = place_text(p, "count=%zu", o->count);
    args[n++] = place_text(p, "format=%s", o->format);
    args[n++] = place_text(p, "out=%s", s->out[i]);
    if (o->patience_s > 0)
        args[n++] = place_text(p, "patience=%d", o->patience_s);
    if (helps)
        args[n++] = place_text(p, "helper=%.0f", o->helper);
    else if (o->state_bytes > 0)
        args[n++] = place_text(p, "state=%llu", (unsigned long long)o->state_bytes);
    if (newcomer) {
        args[n++] = "fetch=1";
    } else if (o->die != NULL && i >= o->die_first && i <= o->die_last) {
        args[n++] = place_text(p, "die=%s", o->die);
        args[n++] = place_text(p, "role=%s", o->role);
        args[n++] = place_text(p, "phase=%s", o->phase);
        args[n++] = place_text(p, "calm=%u", o->calm);
    }
    s->proc[i] = start_one(s, i, newcomer ? "newcomer" : place_text(p, "%u", i), args);
}

void swarm_start(struct swarm *s, struct place *p, const struct swarm_opts *opts)
{
    memset(s, 0, sizeof(*s));
    s->place = p;
    s->opts = *opts;
    assert_true(opts->peers < SWARM_MAX);
    for (uint32_t i = 0; i < opts->peers; i++) {
        start_peer(s, i, false);
        if (i == 0)
            proc_wait_text(s->proc[0], "listening");
    }
    if (opts->state_bytes > 0) {
        start_peer(s, opts->peers, true);
        s->newcomer = s->proc[opts->peers];
    }
    for (uint32_t i = 0; i < opts->peers; i++)
        proc_wait_text(s->proc[i], "ready");
    if (s->newcomer != NULL)
        proc_wait_text(s->newcomer, "ready");
}

/* ---- sweeps -------------------------------------------------------------------------------- */

void swarm_begin(struct swarm *s, bool anew)
{
    s->sweeps++;
    s->began_us = place_now_us();
    for (uint32_t i = 0; i < s->opts.peers; i++)
        if (!s->gone[i])
            proc_signal(s->proc[i], anew ? SIGUSR2 : SIGUSR1);
}

void swarm_end(struct swarm *s)
{
    for (uint32_t i = 0; i < s->opts.peers; i++)
        if (!s->gone[i])
            proc_wait_text(s->proc[i], place_text(s->place, "sweep %u ", s->sweeps));
}

int64_t swarm_sweep(struct swarm *s, bool anew)
{
    swarm_begin(s, anew);
    swarm_end(s);
    return swarm_ended_us(s) - s->began_us;
}

int64_t proc_number(struct proc *proc, const char *since, const char *before)
{
    char *text = place_read(proc->out, NULL);
    const char *at = text != NULL ? strstr(text, since) : NULL;
    const char *end = at != NULL ? strchr(at, '\n') : NULL;
    int64_t value = -1;

    while (end != NULL && (at = strstr(at, before)) != NULL && at < end) {
        at += strlen(before);
        value = strtoll(at, NULL, 10);
    }
    free(text);
    return value;
}

int64_t swarm_ended_us(struct swarm *s)
{
    const char *line = place_text(s->place, "sweep %u ", s->sweeps);
    int64_t last_us = 0;

    for (uint32_t i = 0; i < s->opts.peers; i++)
        if (!s->gone[i])
            last_us = HTH_MAX(last_us, proc_number(s->proc[i], line, " at "));
    return last_us;
}

/* ---- values -------------------------------------------------------------------------------- */

static bool has_values(const struct swarm *s, uint32_t i)
{
    return !s->gone[i] && (s->opts.helper == 0 || i + 1 < s->opts.peers);
}

static float *values_of(const struct swarm *s, uint32_t i)
{
    size_t len;
    char *bytes = place_read(s->out[i], &len);

    assert_non_null(bytes);
    assert_int_equal(len, s->opts.count * sizeof(float));
    float *values = (float *)(void *)bytes;
    for (size_t j = 0; j < s->opts.count; j++)
        assert_true(isfinite(values[j]));
    return values;
}

double swarm_deviation(const struct swarm *s)
{
    size_t count = s->opts.count;
    double *mean = hth_new_array(double, count), worst = 0;
    float *x = hth_new_array(float, count);

    for (uint32_t i = 0; i < s->opts.peers; i++) {
        hth_avg_node_values(1, i, x, count);
        for (size_t j = 0; j < count; j++)
            mean[j] += (double)x[j] / s->opts.peers;
    }
    for (uint32_t i = 0; i < s->opts.peers; i++) {
        float *y = values_of(s, i);
        for (size_t j = 0; j < count; j++)
            worst = hth_worse(worst, fabs((double)y[j] - mean[j]));
        free(y);
    }
    hth_free(mean);
    hth_free(x);
    return worst;
}

double swarm_spread(const struct swarm *s)
{
    size_t count = s->opts.count;
    float *low = hth_new_array(float, count), *high = hth_new_array(float, count);
    double worst = 0;
    bool first = true;

    for (uint32_t i = 0; i < s->opts.peers; i++) {
        float *y = has_values(s, i) ? values_of(s, i) : NULL;
        for (size_t j = 0; y != NULL && j < count; j++) {
            low[j] = first ? y[j] : (float)-hth_worse(-(double)low[j], -(double)y[j]);
            high[j] = first ? y[j] : (float)hth_worse((double)high[j], (double)y[j]);
        }
        first = first && y == NULL;
        free(y);
    }
    for (size_t j = 0; j < count; j++)
        worst = hth_worse(worst, (double)high[j] - (double)low[j]);
    hth_free(low);
    hth_free(high);
    return worst;
}

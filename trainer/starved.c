/* SPDX-License-Identifier: Apache-2.0 */
/*
 * starved.c: no experts, no step. Hosts that can be reached and answer nothing look like experts. A
 * trunk that goes on without them learns to do without, fast, as nothing holds it up; so when more
 * than half of the rows of the last HTH_STARVED_FLIGHTS micro-batches had no expert, training
 * pauses. One micro-batch goes out now and then to see; it is used when most of its rows had one,
 * and ends the pause.
 */
#include "core/mem.h"
#include "trainer/trainer_int.h"

#define TRY_MIN_US HTH_US_PER_S
#define TRY_MAX_US (30 * HTH_US_PER_S)

static bool is_hungry(uint64_t empty, uint64_t rows)
{
    return 2 * empty > rows;
}

static void pause(struct hth_trainer *t)
{
    const struct hth_transport_stats *s = &t->transport->stats;

    hth_transport_gauge(t->transport);
    t->starved.wait_us = TRY_MIN_US;
    t->starved.try_us = hth_now_us(t->env) + TRY_MIN_US;
    t->stats.starved = true;
    HTH_LOG(
        t->env, HTH_WARN, HTH_SUB_TRAIN,
        "training pauses: more than half of the rows of the last %u micro-batches had no expert's "
        "answer; %u of %u hosts can't be used, %llu requests failed, %llu parts were refused and "
        "%llu had bad answers so far; it goes on when experts answer",
        HTH_STARVED_FLIGHTS, s->hosts_dead, s->hosts, (unsigned long long)s->requests_failed,
        (unsigned long long)s->parts_refused, (unsigned long long)s->parts_bad);
}

static void resume(struct hth_trainer *t)
{
    t->starved = (struct hth_starved){.flights = 0};
    t->stats.starved = false;
    HTH_LOG(t->env, HTH_INFO, HTH_SUB_TRAIN, "experts answer again: training goes on");
}

bool hth_starved_note(struct hth_trainer *t, uint64_t empty, uint64_t rows)
{
    struct hth_starved *s = &t->starved;
    uint32_t at = s->flights++ % HTH_STARVED_FLIGHTS;
    uint64_t all_empty = 0, all_rows = 0;

    if (t->stats.starved && !is_hungry(empty, rows)) {
        resume(t);
        return true;
    }
    s->empty[at] = empty;
    s->rows[at] = rows;
    for (uint32_t i = 0; i < HTH_STARVED_FLIGHTS; i++) {
        all_empty += s->empty[i];
        all_rows += s->rows[i];
    }
    if (!t->stats.starved && s->flights >= HTH_STARVED_FLIGHTS && is_hungry(all_empty, all_rows))
        pause(t);
    return !t->stats.starved;
}

bool hth_starved_waits(struct hth_trainer *t)
{
    struct hth_starved *s = &t->starved;
    int64_t now = hth_now_us(t->env);

    if (!t->stats.starved)
        return false;
    if (t->training > 0 || now < s->try_us)
        return true;
    s->wait_us = HTH_MIN(2 * s->wait_us, (int64_t)TRY_MAX_US);
    s->try_us = now + s->wait_us;
    return false;
}

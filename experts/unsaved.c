/* SPDX-License-Identifier: Apache-2.0 */
/* unsaved.c: log lines about checkpoints that can't be written. */
#include "experts/unsaved.h"

#define REPEAT_US (10 * 60 * HTH_US_PER_S)

static long long minutes_since(const struct hth_unsaved *u, struct hth_env *env)
{
    return (long long)((hth_now_us(env) - u->begun_us) / (60 * HTH_US_PER_S));
}

void hth_unsaved_failed(struct hth_unsaved *u, struct hth_env *env, enum hth_log_sub sub,
                        const char *path, enum hth_err err)
{
    int64_t now = hth_now_us(env);

    if (u->since_us == 0) {
        u->since_us = hth_wall_us(env);
        u->begun_us = u->said_us = now;
        HTH_LOG(env, HTH_ERROR, sub,
                "%s: checkpoint not written: %s; training goes on and saving is tried again: until "
                "it works, a crash loses what is learnt from here on",
                path, hth_err_text(err));
    } else if (now - u->said_us >= REPEAT_US) {
        u->said_us = now;
        HTH_LOG(env, HTH_ERROR, sub, "%s: checkpoint not written for %lld minutes: %s", path,
                minutes_since(u, env), hth_err_text(err));
    }
}

void hth_unsaved_good(struct hth_unsaved *u, struct hth_env *env, enum hth_log_sub sub)
{
    if (u->since_us == 0)
        return;
    HTH_LOG(env, HTH_INFO, sub, "checkpoints are written again, after %lld minutes",
            minutes_since(u, env));
    *u = (struct hth_unsaved){.since_us = 0};
}

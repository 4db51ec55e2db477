/* SPDX-License-Identifier: Apache-2.0 */
/*
 * unsaved.h: says when checkpoints can't be written: once when it begins, then every 10 minutes,
 * and once when all are written again. A full disk fails every save of every expert, and a log full
 * of that hides all else.
 *
 * Loop thread. All zero: every save was good.
 */
#ifndef HTH_EXPERTS_UNSAVED_H
#define HTH_EXPERTS_UNSAVED_H

#include "core/env.h"

struct hth_unsaved {
    int64_t since_us; /* wall clock of the first failure; 0: every save is good */
    int64_t begun_us, said_us;
};

/* A save of this file failed. */
void hth_unsaved_failed(struct hth_unsaved *u, struct hth_env *env, enum hth_log_sub sub,
                        const char *path, enum hth_err err);
/* All that should be on disk is there. */
void hth_unsaved_good(struct hth_unsaved *u, struct hth_env *env, enum hth_log_sub sub);

#endif

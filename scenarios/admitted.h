/* SPDX-License-Identifier: Apache-2.0 */
/*
 * admitted.h: admission as simulated worlds play it. Invites and classes matter there, signatures
 * do not: credentials are a serial, which is its own invite, and a class. All roles, for ever.
 *
 * Any thread.
 */
#ifndef HTH_SCENARIOS_ADMITTED_H
#define HTH_SCENARIOS_ADMITTED_H

#include "rpc/rpc.h"

#include <string.h>

static inline enum hth_err hth_admitted_admit(void *arg, const struct hth_peer_id *peer,
                                              const void *creds, size_t len, struct hth_grant *out)
{
    (void)arg;
    (void)peer;
    *out = (struct hth_grant){.roles = HTH_MAY_ALL, .until_us = INT64_MAX};
    if (len != sizeof(out->serial) + 1)
        return HTH_E_NOT_ADMITTED;
    memcpy(&out->serial, creds, sizeof(out->serial));
    out->invite = out->serial;
    out->class = ((const uint8_t *)creds)[sizeof(out->serial)];
    return HTH_OK;
}

static inline enum hth_err hth_admitted_holds(void *arg, const struct hth_grant *grant)
{
    (void)arg;
    (void)grant;
    return HTH_OK;
}

/* Shows this invite and class, and lets in all that show one. */
static inline struct hth_admission hth_admitted(uint64_t serial, enum hth_member_class class)
{
    struct hth_admission a = {
        .admit = hth_admitted_admit, .holds = hth_admitted_holds, .creds_len = sizeof(serial) + 1};

    memcpy(a.creds, &serial, sizeof(serial));
    a.creds[sizeof(serial)] = (uint8_t) class;
    return a;
}

#endif

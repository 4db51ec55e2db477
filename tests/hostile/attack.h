/* SPDX-License-Identifier: Apache-2.0 */
/*
 * attack.h: the common parts of the hostile programs: they read an invite (strangers only its run's
 * name), have keys that follow from numbers, and attack nothing outside loopback.
 */
#ifndef HTH_TESTS_HOSTILE_ATTACK_H
#define HTH_TESTS_HOSTILE_ATTACK_H

#include "admission/invite.h"
#include "core/name.h"

/* Reads the invite in this file; false: it is none. `network` gets its run's network. */
bool attack_invite(const char *path, struct hth_invite *out, char network[HTH_NAME_LEN_MAX + 1]);
/* False unless it is an address of loopback. */
bool attack_addr(const char *text, struct hth_addr *out);
void attack_key(uint32_t number, struct hth_secret *out);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * owner.h: what --own needs of the owner's key, which stays in app/owner.c. Main thread; all may
 * block for a moment, and print what fails.
 */
#ifndef HTH_APP_OWNER_H
#define HTH_APP_OWNER_H

#include "admission/invite.h"

struct hth_runfile;

/* The folder of the key and of the list of invites; heap string. */
char *hth_owner_dir(void);
/* Makes the key if there is none, and adds its lines to a run file that names no owner. Errors:
 * E_CONFIG (it names another one), those of hth_config_load and of keys, E_IO. */
enum hth_err hth_owner_close(const char *run_path) HTH_MUST;
/* Signs an invite with all roles but `invite`, without addresses, and puts it into the list. */
enum hth_err hth_owner_sign(const char *run_path, const struct hth_runfile *run, const char *name,
                            int64_t days, struct hth_invite *out) HTH_MUST;

#endif

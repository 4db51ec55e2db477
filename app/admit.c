/* SPDX-License-Identifier: Apache-2.0 */
/* admit.c: judges our own pass first: a bad invite is named before anybody is dialled. */
#include "app/admit.h"

#include "cli/config.h"
#include "core/bytes.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

const char *hth_admit_date(int64_t wall_us, char out[32])
{
    time_t s = (time_t)(wall_us / HTH_US_PER_S);
    struct tm tm;
    if (gmtime_r(&s, &tm) == NULL || strftime(out, 32, "%Y-%m-%d %H:%M UTC", &tm) == 0)
        snprintf(out, 32, "?");
    return out;
}

void hth_admit_print(const struct hth_invite *invite)
{
    struct hth_cert cert;
    char roles[48], from[32], until[32], hex[65], addr[HTH_ADDR_TEXT_MAX];
    hth_invite_cert(invite, &cert);
    hth_say("run      %s", invite->run);
    hth_say("name     %s", cert.name);
    hth_say("may      %s%s", hth_roles_text(cert.roles, roles),
            cert.class == HTH_PROBATION ? " (on probation)" : "");
    hth_say("valid    %s to %s", hth_admit_date(cert.not_before_us, from),
            hth_admit_date(cert.not_after_us, until));
    hth_say("serial   %llu", (unsigned long long)cert.serial);
    hth_hex(invite->owner.b, sizeof(invite->owner.b), hex);
    hth_say("owner    %s", hex);
    hth_hex(invite->run_file.b, sizeof(invite->run_file.b), hex);
    hth_say("run file %s", hex);
    for (size_t i = 0; i < invite->addr_count; i++)
        hth_say("joins    %s", hth_addr_text(&invite->addr[i], addr));
}

static void say_bad(enum hth_err err, const struct hth_invite *invite, const char *run,
                    uint8_t roles)
{
    struct hth_cert cert;
    char has[48], needs[48], date[32];
    hth_invite_cert(invite, &cert);
    hth_roles_text(cert.roles, has);
    if (err == HTH_E_PASS_ROLE && roles != 0)
        hth_cli_say_error("--invite: %s: it gives %s, and this needs %s", hth_err_text(err), has,
                          hth_roles_text(roles, needs));
    else if (err == HTH_E_PASS_OTHER_RUN)
        hth_cli_say_error("--invite: %s: it is for run '%s', this is run '%s' (hearth invite show "
                          "prints the hash of its run file)",
                          hth_err_text(err), invite->run, run);
    else if (err == HTH_E_PASS_EXPIRED || err == HTH_E_PASS_EARLY)
        hth_cli_say_error(
            "--invite: %s (%s %s)", hth_err_text(err), err == HTH_E_PASS_EARLY ? "from" : "until",
            hth_admit_date(err == HTH_E_PASS_EARLY ? cert.not_before_us : cert.not_after_us, date));
    else
        hth_cli_say_error("--invite: %s", hth_err_text(err));
}

/* The run to be admitted to. E_CANCELED: there is none, it is open. */
static enum hth_err find_run(struct hth_env *env, const struct hth_cli_net *net,
                             const struct hth_runfile *run, struct hth_closed_run *out)
{
    struct hth_hash run_file;
    bool closed = run != NULL && hth_config_closed(run, env->crypto, &run_file, out);
    if (run == NULL && net->invited)
        hth_invite_run(env->crypto, &net->invite, out);
    if (closed && !net->invited) {
        hth_cli_say_error("run '%s' is closed: only peers that its owner invited take part; give "
                          "--invite TEXT, or --invite @FILE",
                          run->run);
        return HTH_E_NOT_ADMITTED;
    }
    if (run != NULL && !closed && net->invited) {
        hth_cli_say_error("--invite: the run file names no admission.owner, so run '%s' is open "
                          "and asks for none",
                          run->run);
        return HTH_E_USAGE;
    }
    return net->invited ? HTH_OK : HTH_E_CANCELED;
}

enum hth_err hth_admit_open(struct hth_env *env, const struct hth_cli_net *net,
                            const struct hth_runfile *run, uint8_t roles, struct hth_admit *out)
{
    struct hth_closed_run closed;
    struct hth_grant grant;
    int64_t wall_us = hth_wall_us(env);
    memset(out, 0, sizeof(*out));
    enum hth_err err = find_run(env, net, run, &closed);
    if (err != HTH_OK)
        return err == HTH_E_CANCELED ? HTH_OK : err;
    struct hth_admission *a = &out->admission;
    a->creds_len = hth_invite_creds(env->crypto, &net->invite, &env->pubkey, wall_us, a->creds);
    err =
        hth_creds_check(env->crypto, &closed, &env->self, a->creds, a->creds_len, wall_us, &grant);
    if (err == HTH_OK && roles != 0 && (grant.roles & roles) == 0)
        err = HTH_E_PASS_ROLE;
    if (err != HTH_OK) {
        say_bad(err, &net->invite, run != NULL ? run->run : net->invite.run, roles);
        return err;
    }
    out->gate = hth_gate_new(env, &closed);
    a->admit = hth_gate_check;
    a->arg = out->gate;
    return HTH_OK;
}

void hth_admit_close(struct hth_admit *admit)
{
    hth_gate_free(admit->gate);
    admit->gate = NULL;
}

const struct hth_admission *hth_admit_rpc(const struct hth_admit *admit)
{
    return admit->gate != NULL ? &admit->admission : NULL;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* admit.c: judges our own pass first: a bad invite is named before anybody is dialled. */
#include "app/admit.h"

#include "cli/config.h"
#include "core/bytes.h"
#include "core/mem.h"

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

static const char *kind(const struct hth_cert *cert)
{
    if ((cert->flags & HTH_CERT_SUCCESSOR) != 0)
        return "successor of the owner";
    if ((cert->flags & HTH_CERT_PUBLIC) != 0)
        return "public invite: anybody may use it";
    return (cert->roles & HTH_MAY_INVITE) != 0 ? "deputy: may invite" : "invite";
}

void hth_admit_print(const struct hth_invite *invite)
{
    struct hth_cert cert;
    char roles[48], from[32], until[32], hex[65], addr[HTH_ADDR_TEXT_MAX];
    hth_invite_cert(invite, &cert);
    hth_say("run      %s%s", invite->run, invite->is_private ? " (private)" : "");
    hth_say("name     %s", cert.name);
    hth_say("may      %s%s", hth_roles_text(cert.roles, roles),
            cert.class == HTH_PROBATION ? " (on probation)" : "");
    hth_say("kind     %s%s", kind(&cert), hth_invite_is_bound(invite) ? ", for one key alone" : "");
    hth_say("valid    %s to %s", hth_admit_date(hth_cert_from_us(&cert), from),
            hth_admit_date(cert.not_after_us, until));
    hth_say("serial   %llu", (unsigned long long)cert.serial);
    hth_hex(invite->owner.b, sizeof(invite->owner.b), hex);
    hth_say("owner    %s", hex);
    hth_hex(invite->run_file.b, sizeof(invite->run_file.b), hex);
    hth_say("run file %s", hex);
    for (size_t i = 0; i < invite->addr_count; i++)
        hth_say("joins    %s", hth_addr_text(&invite->addr[i], addr));
}

static void say_bad(enum hth_err err, const struct hth_invite *invite,
                    const struct hth_grant *grant, const char *run, uint8_t roles)
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
    else if (err == HTH_E_PASS_EARLY && grant->by.successor != 0)
        hth_cli_say_error("--invite: %s: a successor signed it, and the owner is not silent",
                          hth_err_text(err));
    else if (err == HTH_E_PASS_EXPIRED || err == HTH_E_PASS_EARLY)
        hth_cli_say_error(
            "--invite: %s (%s %s)", hth_err_text(err), err == HTH_E_PASS_EARLY ? "from" : "until",
            hth_admit_date(err == HTH_E_PASS_EARLY ? hth_cert_from_us(&cert) : cert.not_after_us,
                           date));
    else if (err == HTH_E_PASS_FORGED && hth_invite_is_bound(invite))
        hth_cli_say_error("--invite: it is for the key of one peer, and this process has another: "
                          "give that peer's --dir; status and others without a folder take the "
                          "invite by which it came first");
    else
        hth_cli_say_error("--invite: %s", hth_err_text(err));
}

/* The run to be admitted to. E_CANCELED: there is none, it is open. */
static enum hth_err find_run(struct hth_env *env, const struct hth_cli_net *net,
                             const struct hth_runfile *run, struct hth_closed_run *out)
{
    struct hth_hash run_file;
    bool closed = run != NULL && hth_config_closed(run, env->crypto, &run_file, out);
    if ((closed || net->invited) && net->network != NULL) {
        hth_cli_say_error("--network: the run file and the invites name a closed run: leave it "
                          "out");
        return HTH_E_USAGE;
    }
    if ((closed || net->invited) && net->open_to_anyone) {
        hth_cli_say_error("--open-to-anyone: the run has an owner, who invites: leave it out");
        return HTH_E_USAGE;
    }
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
    if (closed && run->admission.is_private && !net->invite.is_private) {
        hth_cli_say_error("--invite: run '%s' is private, and its secret is not in this invite: "
                          "ask for another one",
                          run->run);
        return HTH_E_PASS_OTHER_RUN;
    }
    return net->invited ? HTH_OK : HTH_E_CANCELED;
}

/* ---- revoked invites ----------------------------------------------------------------------- */

/* Lists that can't be read are left out: the others have them. */
static void load_lists(struct hth_env *env, struct hth_admit *a)
{
    struct hth_blob *blob;
    size_t news;
    enum hth_err err = hth_file_read(env, a->path, HTH_REVOKED_PACK_MAX, &blob);
    if (err == HTH_OK) {
        err = hth_revoked_set_unpack(a->revoked, blob->data, blob->size, &news);
        hth_blob_unref(blob);
    }
    if (err != HTH_OK && err != HTH_E_NO_FILE)
        HTH_LOG(env, HTH_WARN, HTH_SUB_APP, "%s: %s; it is left out", a->path, hth_err_text(err));
}

enum hth_err hth_admit_revoked(struct hth_env *env, struct hth_admit *a)
{
    if (a->path != NULL) {
        uint8_t *bytes = hth_new_array(uint8_t, HTH_REVOKED_PACK_MAX);
        struct hth_blob *blob =
            hth_blob_copy(bytes, hth_revoked_set_pack(a->revoked, NULL, 0, bytes));
        struct hth_span span = {blob, 0, blob->size};
        enum hth_err err = hth_file_write(env, a->path, &span, 1);
        hth_blob_unref(blob);
        hth_free(bytes);
        if (err != HTH_OK)
            HTH_LOG(env, HTH_WARN, HTH_SUB_APP, "%s: %s", a->path, hth_err_text(err));
    }
    return hth_grant_check(&a->grant, &a->run, hth_wall_us(env));
}

/* ---- life ---------------------------------------------------------------------------------- */

static enum hth_err judge_own(struct hth_env *env, const struct hth_cli_net *net, uint8_t roles,
                              struct hth_admit *a)
{
    struct hth_admission *own = &a->admission;
    struct hth_closed_run named;
    int64_t wall_us = hth_wall_us(env);
    hth_invite_run(env->crypto, &net->invite, &named);
    if (memcmp(named.id.b, a->run.id.b, sizeof(named.id.b)) != 0)
        return HTH_E_PASS_OTHER_RUN;
    own->creds_len = hth_invite_creds(env->crypto, &net->invite, &env->secret, wall_us, own->creds);
    HTH_TRY(hth_creds_check(env->crypto, &a->run, &env->self, own->creds, own->creds_len, wall_us,
                            &a->grant));
    return roles != 0 && (a->grant.roles & roles) == 0 ? HTH_E_PASS_ROLE : HTH_OK;
}

enum hth_err hth_admit_open(struct hth_env *env, const struct hth_cli_net *net,
                            const struct hth_runfile *run, uint8_t roles, const char *dir,
                            struct hth_admit *out)
{
    memset(out, 0, sizeof(*out));
    enum hth_err err = find_run(env, net, run, &out->run);
    if (err != HTH_OK)
        return err == HTH_E_CANCELED ? HTH_OK : err;
    out->revoked = hth_revoked_set_new(env->crypto, &out->run);
    out->run.revoked = out->revoked;
    if (dir != NULL) {
        out->path = hth_asprintf("%s/revoked", dir);
        load_lists(env, out);
    }
    err = judge_own(env, net, roles, out);
    if (err != HTH_OK) {
        say_bad(err, &net->invite, &out->grant, run != NULL ? run->run : net->invite.run, roles);
        return err;
    }
    out->gate = hth_gate_new(env, &out->run);
    out->admission.admit = hth_gate_check;
    out->admission.holds = hth_gate_holds;
    out->admission.arg = out->gate;
    return HTH_OK;
}

void hth_admit_close(struct hth_admit *admit)
{
    hth_gate_free(admit->gate);
    hth_revoked_set_free(admit->revoked);
    hth_free(admit->path);
    admit->revoked = NULL;
    admit->gate = NULL;
    admit->path = NULL;
}

char *hth_admit_join(const struct hth_admit *admit, const struct hth_cli_net *net,
                     char ask[HTH_CERT_NAME_MAX + 16])
{
    char text[HTH_INVITE_TEXT_MAX];
    struct hth_cert deputy;
    size_t used;
    ask[0] = '\0';
    if (admit->gate == NULL)
        return NULL;
    if ((admit->grant.flags & HTH_CERT_PUBLIC) != 0 &&
        hth_invite_write(&net->invite, text) == HTH_OK)
        return hth_asprintf("--invite %s", text);
    bool by_deputy =
        admit->grant.by.deputy != 0 &&
        hth_cert_read(net->invite.chain, net->invite.chain_len, &deputy, &used) == HTH_OK;
    snprintf(ask, HTH_CERT_NAME_MAX + 16, "%s", by_deputy ? deputy.name : "the run's owner");
    return hth_strdup("--invite INVITE");
}

const struct hth_admission *hth_admit_rpc(const struct hth_admit *admit)
{
    return admit->gate != NULL ? &admit->admission : NULL;
}

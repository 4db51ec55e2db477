/* SPDX-License-Identifier: Apache-2.0 */
/*
 * owner_sign.c: the key, who signs, and hearth owner invite, deputy, successor, promote KEY: each
 * signs one certificate, and prints a text that a person sends to a person.
 */
#define _DEFAULT_SOURCE
#include "app/owner_int.h"

#include "cli/config.h"
#include "core/mem.h"
#include "net/crypto.h"
#include "net/identity.h"
#include "net/net.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define DAY_US         (86400 * HTH_US_PER_S)
#define INVITE_DAYS    30
#define SUCCESSOR_DAYS 3650 /* it has to outlive its owner */

int64_t hth_owner_now_us(void)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return now.tv_sec * HTH_US_PER_S + now.tv_nsec / 1000;
}

void hth_owner_open(struct hth_owner *o)
{
    char *base = hth_cli_default_dir();
    o->own_dir = o->dir != NULL ? hth_strdup(o->dir) : hth_asprintf("%s/owner", base);
    o->dir = o->own_dir;
    o->key_path = hth_asprintf("%s/key", o->dir);
    o->list_path = hth_asprintf("%s/invites", o->dir);
    hth_free(base);
}

void hth_owner_close(struct hth_owner *o)
{
    explicit_bzero(&o->secret, sizeof(o->secret));
    explicit_bzero(&o->as, sizeof(o->as));
    explicit_bzero(&o->base, sizeof(o->base));
    hth_free(o->list_path);
    hth_free(o->key_path);
    hth_free(o->own_dir);
}

/* Renamed when it is whole: a list that was lost would end for those who have not heard it. */
enum hth_err hth_owner_write(const char *path, const void *data, size_t len)
{
    char *aside = hth_asprintf("%s.new", path);
    bool good = hth_net_mkdirs(aside) == HTH_OK && (unlink(aside) == 0 || errno == ENOENT);
    int fd = good ? open(aside, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600) : -1;
    good = fd >= 0 && write(fd, data, len) == (ssize_t)len && fsync(fd) == 0;
    if (fd >= 0)
        good &= close(fd) == 0;
    good = good && rename(aside, path) == 0;
    if (!good)
        hth_cli_say_error("%s can't be written: %s", path, strerror(errno));
    hth_free(aside);
    return good ? HTH_OK : HTH_E_IO;
}

/* ---- the key ------------------------------------------------------------------------------- */

static enum hth_err load_key(const struct hth_owner *o, struct hth_secret *out, bool *made)
{
    char why[HTH_IDENTITY_WHY_MAX];
    enum hth_err err = hth_identity_load(o->key_path, out, made, why);
    if (err == HTH_OK)
        return HTH_OK;
    hth_cli_say_error("%s", why);
    return err == HTH_E_PERMISSION ? HTH_E_BAD_KEY : err;
}

enum hth_err hth_owner_key(const struct hth_owner *o, struct hth_secret *out)
{
    bool made;
    if (access(o->key_path, F_OK) == 0 || errno != ENOENT)
        return load_key(o, out, &made);
    hth_cli_say_error("%s: there is no owner's key yet: hearth owner init makes it, hearth owner "
                      "restore brings one back",
                      o->key_path);
    return HTH_E_BAD_KEY;
}

const char *hth_owner_key_text(const struct hth_secret *secret, char hex[2 * HTH_PUBKEY_LEN + 1])
{
    struct hth_pubkey pub;
    hth_crypto_openssl()->public_of(secret, &pub);
    hth_hex(pub.b, sizeof(pub.b), hex);
    return hex;
}

enum hth_err hth_owner_init(struct hth_owner *o)
{
    bool made;
    char hex[2 * HTH_PUBKEY_LEN + 1];
    HTH_TRY(load_key(o, &o->secret, &made));
    hth_say_note("the owner's key: %s (%s)", o->key_path, made ? "new" : "known");
    hth_say_note(
        "Nobody can make this key again. Keep a copy: hearth owner backup FILE. And name a "
        "successor while you can: hearth owner successor KEY. Without either, once it is "
        "lost, deputies go on until their time ends, nobody else can invite or revoke, and "
        "no deputy be named.");
    hth_say_note("These lines close a run; put them into its run file:");
    hth_say("admission:\n  owner: %s", hth_owner_key_text(&o->secret, hex));
    return HTH_OK;
}

/* ---- who signs ----------------------------------------------------------------------------- */

/* Checks that the run file names this owner. */
static enum hth_err by_run_file(struct hth_owner *o, const struct hth_runfile *run)
{
    char hex[2 * HTH_PUBKEY_LEN + 1];
    struct hth_pubkey pub;
    hth_crypto_openssl()->public_of(&o->secret, &pub);
    if (!hth_config_closed(run, hth_crypto_openssl(), &o->base.run_file, &o->run) ||
        memcmp(o->run.owner.b, pub.b, sizeof(pub.b)) != 0) {
        hth_cli_say_error("%s %s; for this key it needs 'admission: {owner: %s}'", o->run_path,
                          run->admission.owner == NULL ? "names no owner" : "names another owner",
                          hth_owner_key_text(&o->secret, hex));
        return HTH_E_CONFIG;
    }
    o->base.owner = pub;
    snprintf(o->base.run, sizeof(o->base.run), "%s", run->run);
    if (run->admission.is_private)
        hth_invite_hide(hth_crypto_openssl(), &o->secret, &o->base);
    return HTH_OK;
}

/* The certificate of --as joins the chain of what it signs. */
static enum hth_err by_text(struct hth_owner *o)
{
    const struct hth_invite *as = &o->as;
    const struct hth_crypto *crypto = hth_crypto_openssl();
    struct hth_pubkey pub;
    o->base = *as;
    hth_invite_run(crypto, as, &o->run);
    memcpy(o->base.chain, as->cert, as->cert_len);
    if (as->cert_len + as->chain_len > sizeof(o->base.chain))
        return HTH_E_PASS_ROLE;
    memcpy(o->base.chain + as->cert_len, as->chain, as->chain_len);
    o->base.chain_len = as->cert_len + as->chain_len;
    HTH_TRY(hth_chain_check(crypto, &o->run, o->base.chain, o->base.chain_len, &o->by));
    o->secret = as->seed;
    if (hth_invite_is_bound(as))
        HTH_TRY(hth_owner_key(o, &o->secret));
    crypto->public_of(&o->secret, &pub);
    if (memcmp(pub.b, o->by.key.b, sizeof(pub.b)) != 0)
        return HTH_E_PASS_OTHER_KEY;
    int64_t now_us = hth_owner_now_us(), from_us = o->by.from_us;
    if (o->by.successor != 0)
        from_us = HTH_MAX(from_us, hth_succession_us(NULL, &o->by));
    if (now_us < from_us)
        return HTH_E_PASS_EARLY;
    return now_us > o->by.until_us ? HTH_E_PASS_EXPIRED : HTH_OK;
}

enum hth_err hth_owner_signer(struct hth_owner *o)
{
    struct hth_runfile *run;
    if (o->made_by) {
        char date[32];
        enum hth_err err = by_text(o);
        if (err == HTH_E_PASS_EARLY && o->by.successor != 0)
            hth_cli_say_error("--as: %s: this successor signs from %s on, if the owner is silent "
                              "until then",
                              hth_err_text(err),
                              hth_admit_date(hth_succession_us(NULL, &o->by), date));
        else if (err == HTH_E_PASS_OTHER_KEY)
            hth_cli_say_error("--as: %s is not the key that its text was made for", o->key_path);
        else if (err == HTH_E_PASS_ROLE)
            hth_cli_say_error("--as: %s: only the text of a deputy or a successor can sign",
                              hth_err_text(err));
        else if (err != HTH_OK && err != HTH_E_BAD_KEY)
            hth_cli_say_error("--as: %s", hth_err_text(err));
        return err;
    }
    HTH_TRY(hth_owner_key(o, &o->secret));
    enum hth_err err = hth_config_load(o->run_path, &run);
    if (err != HTH_OK)
        return err == HTH_E_NO_FILE ? HTH_E_CONFIG : err;
    err = by_run_file(o, run);
    hth_runfile_free(run);
    HTH_TRY(err);
    return hth_chain_check(hth_crypto_openssl(), &o->run, NULL, 0, &o->by);
}

/* ---- certificates -------------------------------------------------------------------------- */

/* Serials are microseconds of the clock, and rise: they stay unique if the list is lost, and among
 * owner and deputies. A revoked peer's id may be any number. No later than needed: a certificate
 * begins with its serial, and this clock may have gone back. */
static uint64_t next_serial(const struct hth_owner *o)
{
    uint64_t serial = (uint64_t)hth_owner_now_us();
    size_t count;
    struct hth_owner_entry *all = hth_owner_lines(o, &count);
    for (size_t i = 0; i < count;) {
        bool taken = !all[i].revokes && all[i].serial == serial;
        serial += taken;
        i = taken ? 0 : i + 1;
    }
    hth_free(all);
    return serial;
}

/* Written before the invite is shown: none is made that the list does not know. */
static enum hth_err note(const struct hth_owner *o, const struct hth_cert *cert)
{
    struct hth_owner_entry e = {
        .serial = cert->serial, .until_s = cert->not_after_us / HTH_US_PER_S, .class = cert->class};
    hth_roles_text(cert->roles, e.roles);
    snprintf(e.run, sizeof(e.run), "%s", o->base.run);
    snprintf(e.name, sizeof(e.name), "%s", cert->name);
    snprintf(e.kind, sizeof(e.kind), "%s",
             o->public          ? "public"
             : o->auto_promotes ? HTH_OWNER_AUTO
                                : o->word);
    return hth_owner_note(o, &e);
}

static enum hth_err resolve(const struct hth_owner *o, struct hth_invite *out)
{
    if (o->address_count > 0)
        out->addr_count = 0;
    for (size_t i = 0; i < o->address_count; i++) {
        size_t got = 0;
        enum hth_err err = hth_net_resolve(o->address[i], &out->addr[out->addr_count], 1, &got);
        if (err != HTH_OK) {
            hth_cli_say_unresolved("--address", o->address[i], err);
            return HTH_E_USAGE;
        }
        out->addr_count += got;
    }
    return HTH_OK;
}

static bool is(const struct hth_owner *o, const char *word)
{
    return strcmp(o->word, word) == 0;
}

/* Writes into the certificate what the word and the flags ask for. */
static void fill(const struct hth_owner *o, struct hth_cert *cert)
{
    uint8_t most = o->by.roles & (uint8_t) ~(HTH_MAY_INVITE | (o->public ? HTH_MAY_REDUCE : 0));
    int64_t days = o->days != 0 ? o->days : is(o, "successor") ? SUCCESSOR_DAYS : INVITE_DAYS;
    cert->run = o->run.id;
    cert->serial = next_serial(o);
    cert->not_after_us = HTH_MIN(hth_cert_from_us(cert) + days * DAY_US, o->by.until_us);
    cert->class = o->probation || o->public ? HTH_PROBATION : HTH_MEMBER;
    cert->roles = o->roles != 0 ? o->roles : most;
    cert->flags = o->public ? HTH_CERT_PUBLIC : 0;
    if (is(o, "deputy"))
        cert->roles |= HTH_MAY_INVITE;
    if (is(o, "successor")) {
        cert->roles = HTH_MAY_ALL;
        cert->flags = HTH_CERT_SUCCESSOR;
        cert->silence_s = (uint32_t)(o->silence_days * 86400);
    }
    snprintf(cert->name, sizeof(cert->name), "%s", o->name);
}

/* Says what the signer can't give. */
static enum hth_err check_rights(const struct hth_owner *o, const struct hth_cert *cert)
{
    char has[48], asked[48];
    bool names = (cert->roles & ~o->by.roles & HTH_MAY_INVITE) != 0 ||
                 ((cert->flags & HTH_CERT_SUCCESSOR) != 0 && o->made_by);
    hth_roles_text(o->by.roles, has);
    hth_roles_text(cert->roles, asked);
    if (names)
        hth_cli_say_error("--as: %s: a %s can't name a %s", hth_err_text(HTH_E_PASS_ROLE),
                          o->by.deputy != 0 ? "deputy" : "successor", o->word);
    else if ((cert->roles & ~o->by.roles) != 0)
        hth_cli_say_error("--roles: %s: this deputy has %s, and can't give %s",
                          hth_err_text(HTH_E_PASS_ROLE), has, asked);
    else if (cert->class > o->by.class)
        hth_cli_say_error("--as: %s: this deputy is on probation itself; give --probation",
                          hth_err_text(HTH_E_PASS_ROLE));
    else
        return HTH_OK;
    return HTH_E_PASS_ROLE;
}

/* The key that the certificate is for: a new one, whose seed travels in the text, or the one that
 * was named. */
static enum hth_err find_key(const struct hth_owner *o, struct hth_invite *out,
                             struct hth_pubkey *key)
{
    memset(&out->seed, 0, sizeof(out->seed));
    if (o->what == NULL) {
        HTH_TRY(hth_identity_random(&out->seed));
        hth_crypto_openssl()->public_of(&out->seed, key);
        return HTH_OK;
    }
    if (strlen(o->what) == 2 * sizeof(key->b) &&
        hth_unhex(o->what, key->b, sizeof(key->b)) == HTH_OK)
        return HTH_OK;
    hth_cli_say_error("%s '%s': expected the 64 hex digits of a public key: the third line of the "
                      "file 'key' in its state folder",
                      o->word, o->what);
    return HTH_E_USAGE;
}

static void explain(const struct hth_owner *o, const struct hth_cert *cert, size_t addr_count)
{
    char date[32];
    unsigned long long serial = cert->serial;
    hth_admit_date(cert->not_after_us, date);
    if (is(o, "successor") && o->silence_days == 0)
        hth_say_note("Send this text to %s, who may sign as you do from now on, until %s, or until "
                     "serial %llu is revoked.",
                     o->name, date, serial);
    else if (is(o, "successor"))
        hth_say_note(
            "Send this text to %s, who may sign as you do while the last that you revoked, "
            "or said with hearth owner alive, is %lld days old; until %s, or until serial "
            "%llu is revoked.",
            o->name, (long long)o->silence_days, date, serial);
    else if (o->public)
        hth_say_note("Put this text where all can read it: everybody may join by it on probation, "
                     "until %s, or until serial %llu is revoked.",
                     date, serial);
    else if (o->what != NULL)
        hth_say_note("Send this text to %s: only the holder of that key can use it, until %s, or "
                     "until serial %llu is revoked.",
                     o->name, date, serial);
    else
        hth_say_note("Send this text to %s by a way that nobody else reads: everybody who has it "
                     "%s '%s' until %s, or until serial %llu is revoked.",
                     o->name, is(o, "deputy") ? "can invite as" : "is let in as", o->name, date,
                     serial);
    if (o->base.is_private)
        hth_say_note("The run is private, and its secret is in the text: let nobody else read it.");
    else if (o->what != NULL)
        hth_say_note("No secret is in the text.");
    if (addr_count == 0 && !is(o, "successor"))
        hth_say_note("No address is in it: give --address HOST:PORT of a peer of the run, or %s "
                     "needs --join.",
                     o->name);
}

enum hth_err hth_owner_sign(struct hth_owner *o, struct hth_invite *out, struct hth_cert *cert)
{
    memset(cert, 0, sizeof(*cert));
    HTH_TRY(hth_owner_signer(o));
    *out = o->base;
    if (o->public && out->is_private) {
        hth_cli_say_error("--public: run '%s' is private: a text that all can read would show it",
                          out->run);
        return HTH_E_USAGE;
    }
    HTH_TRY(resolve(o, out));
    fill(o, cert);
    HTH_TRY(check_rights(o, cert));
    HTH_TRY(find_key(o, out, &cert->key));
    HTH_TRY(hth_cert_write(hth_crypto_openssl(), cert, &o->secret, out->cert, &out->cert_len));
    return note(o, cert);
}

enum hth_err hth_owner_invite(struct hth_owner *o)
{
    struct hth_cert cert;
    struct hth_invite invite;
    char text[HTH_INVITE_TEXT_MAX];
    HTH_TRY(hth_owner_sign(o, &invite, &cert));
    HTH_TRY(hth_invite_write(&invite, text));
    explain(o, &cert, invite.addr_count);
    hth_say("%s", text);
    explicit_bzero(&invite.seed, sizeof(invite.seed));
    return HTH_OK;
}

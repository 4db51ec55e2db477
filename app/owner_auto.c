/* SPDX-License-Identifier: Apache-2.0 */
/*
 * owner_auto.c: hearth owner promote --auto: signs for peers on probation that have worked well for
 * HTH_WITNESS_WORK_US, as a host or trainer beside it has seen (admission/witness.h), which hands
 * the certificates over (rpc/raise.h).
 *
 * It looks each minute, and keeps nothing itself: what was signed is in DIR/invites, and what is to
 * be handed over in the other's state folder, until it is over: at most DAY_MAX files for each of
 * its days. So it may end and start at any time.
 */
#include "app/owner_int.h"

#include "core/mem.h"
#include "rpc/raise.h"

#include <dirent.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define LOOK_S  60
#define DAY_US  (86400 * HTH_US_PER_S)
#define DAY_MAX 8 /* promoted in a day: keys are free, so who has many networks has many hours */

/* Reads a file of at most `max` bytes. Returns its length; 0: there is none. */
static size_t read_small(const char *path, uint8_t *out, size_t max)
{
    FILE *f = fopen(path, "re");
    size_t len = f != NULL ? fread(out, 1, max, f) : 0;
    if (f != NULL)
        fclose(f);
    return len;
}

/* Those that were promoted so in the last day: a serial is the time of its signature. */
static unsigned promoted_lately(const struct hth_owner *o)
{
    int64_t since_us = hth_owner_now_us() - DAY_US;
    unsigned promoted = 0;
    size_t count;
    struct hth_owner_entry *all = hth_owner_lines(o, &count);
    for (size_t i = 0; i < count; i++)
        promoted += strcmp(all[i].kind, HTH_OWNER_AUTO) == 0 && (int64_t)all[i].serial > since_us;
    hth_free(all);
    return promoted;
}

/* How long what was signed before holds from now on; 0: nothing was, or it is over. */
static int64_t holds_us(const char *path)
{
    uint8_t bytes[HTH_CERT_BYTES_MAX + HTH_CHAIN_BYTES_MAX];
    struct hth_cert cert;
    size_t used, len = read_small(path, bytes, sizeof(bytes));
    bool good = len > 0 && hth_cert_read(bytes, len, &cert, &used) == HTH_OK;
    return good ? HTH_MAX(cert.not_after_us - hth_owner_now_us(), 0) : 0;
}

/* A certificate that is over is handed to nobody. */
static void sweep(const struct hth_owner *o)
{
    DIR *list = opendir(o->beside);
    struct dirent *entry;
    while (list != NULL && (entry = readdir(list)) != NULL) {
        if (strncmp(entry->d_name, HTH_RAISE_FILE, strcspn(HTH_RAISE_FILE, "%")) != 0)
            continue;
        char *path = hth_asprintf("%s/%s", o->beside, entry->d_name);
        if (holds_us(path) == 0)
            (void)!unlink(path);
        hth_free(path);
    }
    if (list != NULL)
        closedir(list);
}

static enum hth_err sign_for(struct hth_owner *o, const char *hex, const char *path)
{
    uint8_t bytes[HTH_CERT_BYTES_MAX + HTH_CHAIN_BYTES_MAX];
    char name[HTH_CERT_NAME_MAX + 1], date[32];
    struct hth_invite invite;
    struct hth_cert cert;
    snprintf(name, sizeof(name), "raised-%.8s", hex);
    o->what = hex;
    o->name = name;
    HTH_TRY(hth_owner_sign(o, &invite, &cert));
    memcpy(bytes, invite.cert, invite.cert_len);
    memcpy(bytes + invite.cert_len, invite.chain, invite.chain_len);
    HTH_TRY(hth_owner_write(path, bytes, invite.cert_len + invite.chain_len));
    hth_say("promoted %.16s as '%s', until %s, or until serial %llu is revoked", hex, name,
            hth_admit_date(cert.not_after_us, date), (unsigned long long)cert.serial);
    return HTH_OK;
}

static enum hth_err promote(struct hth_owner *o, const struct hth_witness *witness)
{
    struct hth_pubkey key;
    char hex[2 * HTH_PUBKEY_LEN + 1];
    enum hth_err err = HTH_OK;
    for (size_t it = 0; err == HTH_OK && hth_witness_due(witness, &it, &key);) {
        hth_hex(key.b, sizeof(key.b), hex);
        char *path = hth_asprintf("%s/" HTH_RAISE_FILE, o->beside, hex);
        if (holds_us(path) <= DAY_US && promoted_lately(o) < DAY_MAX)
            err = sign_for(o, hex, path);
        hth_free(path);
    }
    return err;
}

/* The state folder of a host or trainer has a lock. */
static enum hth_err check_beside(const struct hth_owner *o)
{
    char *path = hth_asprintf("%s/lock", o->beside);
    bool found = access(path, F_OK) == 0;
    hth_free(path);
    if (found)
        return HTH_OK;
    hth_cli_say_error("--beside '%s': no host or trainer ever ran in that folder; expected a state "
                      "folder, such as ~/.local/state/hearth/fashion/serve",
                      o->beside);
    return HTH_E_USAGE;
}

/* Until it is ended, or can sign no more. */
static enum hth_err promote_on(struct hth_owner *o)
{
    uint8_t bytes[HTH_WITNESS_BYTES_MAX + 1];
    char *path = hth_asprintf("%s/" HTH_RAISE_WITNESSED, o->beside);
    enum hth_err err = check_beside(o);
    if (err == HTH_OK)
        err = hth_owner_signer(o); /* a wrong key is named at the start */
    if (err == HTH_OK)
        hth_say_note("promoting peers on probation after 4 hours of work that %s has seen, at most "
                     "%d in a day; Ctrl-C ends it",
                     o->beside, DAY_MAX);
    while (err == HTH_OK) {
        sweep(o);
        struct hth_witness *witness = hth_witness_new();
        size_t len = read_small(path, bytes, sizeof(bytes));
        if (len > 0 && hth_witness_read(witness, bytes, len) == HTH_OK)
            err = promote(o, witness);
        hth_witness_free(witness);
        if (err == HTH_OK)
            sleep(LOOK_S);
    }
    hth_free(path);
    return err;
}

enum hth_err hth_owner_promote(struct hth_owner *o)
{
    return o->auto_promotes ? promote_on(o) : hth_owner_invite(o);
}

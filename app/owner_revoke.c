/* SPDX-License-Identifier: Apache-2.0 */
/* owner_revoke.c: hearth owner revoke, alive: signs the list and publishes it. */
#include "app/owner_int.h"

#include "core/mem.h"
#include "net/crypto.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

struct revoking {
    struct hth_owner *owner;
    uint64_t entry; /* 0: none, only a sign of life */
    char *path;
    struct hth_revoked list;
};

/* The list as it was; none is an empty one. */
static enum hth_err read_list(struct revoking *r)
{
    uint8_t bytes[HTH_REVOKED_BYTES_MAX + 1];
    FILE *f = fopen(r->path, "re");
    memset(&r->list, 0, sizeof(r->list));
    if (f == NULL && errno == ENOENT)
        return HTH_OK;
    size_t len = f != NULL ? fread(bytes, 1, sizeof(bytes), f) : 0;
    if (f != NULL)
        fclose(f);
    enum hth_err err = hth_revoked_read(hth_crypto_openssl(), &r->owner->run, bytes, len, &r->list);
    if (err != HTH_OK)
        hth_cli_say_error("%s: %s; move it away: what the network has is taken over", r->path,
                          hth_err_text(err));
    return err;
}

static void drop(struct hth_revoked *list, uint64_t entry)
{
    for (uint16_t i = 0; i < list->count; i++) {
        if (list->entry[i] != entry)
            continue;
        list->count--;
        memmove(&list->entry[i], &list->entry[i + 1], (list->count - i) * sizeof(uint64_t));
        return;
    }
}

/* An invite that has ended needs no place in the list. */
static void drop_ended(struct revoking *r)
{
    int64_t now_s = hth_owner_now_us() / HTH_US_PER_S, margin_s = 86400; /* for wrong clocks */
    size_t count;
    struct hth_owner_entry *all = hth_owner_lines(r->owner, &count);
    for (size_t i = 0; i < count; i++)
        if (!all[i].revokes && all[i].until_s + margin_s < now_s)
            drop(&r->list, all[i].serial);
    hth_free(all);
}

/* A mistyped serial revokes nothing, nor does one of another run. A deputy's invites and peers' ids
 * are not in the list. Errors: E_USAGE. */
static enum hth_err check_known(const struct revoking *r)
{
    const struct hth_owner *o = r->owner;
    bool known = strlen(o->what) == 2 * HTH_HASH_LEN;
    enum hth_err err = HTH_OK;
    size_t count;
    struct hth_owner_entry *all = hth_owner_lines(o, &count);
    for (size_t i = 0; i < count && err == HTH_OK; i++) {
        bool is = all[i].serial == r->entry && !all[i].revokes;
        known |= is;
        err = is && strcmp(all[i].run, o->base.run) != 0 ? HTH_E_USAGE : HTH_OK;
        if (err != HTH_OK)
            hth_cli_say_error("revoke %s: that invite is to run '%s', and this is run '%s': give "
                              "its run file",
                              o->what, all[i].run, o->base.run);
    }
    hth_free(all);
    if (!known)
        hth_say_note("%s has no invite of serial %s: compare hearth owner list, unless a deputy "
                     "signed it",
                     o->list_path, o->what);
    return err;
}

/* Puts the entry into the list. */
static enum hth_err enter(struct revoking *r)
{
    enum hth_err err = r->entry != 0 ? hth_revoked_add(&r->list, r->entry) : HTH_OK;
    if (err == HTH_E_TOO_LARGE) {
        drop_ended(r);
        err = hth_revoked_add(&r->list, r->entry);
    }
    if (err != HTH_E_TOO_LARGE)
        return HTH_OK; /* or it is there */
    hth_cli_say_error("%s: all %d places are taken by peers and by invites that have not ended; a "
                      "run under a new owner's key begins with none",
                      r->path, HTH_REVOKED_MAX);
    return err;
}

static enum hth_err sign(void *arg, struct hth_owner_news *news)
{
    struct revoking *r = arg;
    struct hth_owner *o = r->owner;
    HTH_TRY(enter(r)); /* again: the network may have had more */
    r->list.seq = HTH_MAX(r->list.seq + 1, (uint64_t)hth_owner_now_us());
    size_t len = hth_revoked_write(hth_crypto_openssl(), &r->list, &o->run.id, &o->secret,
                                   o->base.chain, o->base.chain_len, news->bytes);
    HTH_TRY(hth_owner_write(r->path, news->bytes, len));
    struct hth_owner_entry note = {
        .serial = r->entry, .class = HTH_MEMBER, .roles = "-", .name = "-"};
    snprintf(note.run, sizeof(note.run), "%s", o->base.run);
    snprintf(note.kind, sizeof(note.kind), "%s", HTH_OWNER_REVOKED);
    if (r->entry != 0)
        HTH_TRY(hth_owner_note(o, &note));
    news->len = len;
    return HTH_OK;
}

/* Errors: E_USAGE. */
static enum hth_err read_entry(const char *what, uint64_t *out)
{
    struct hth_peer_id id;
    if (strlen(what) == 2 * sizeof(id.b) && hth_unhex(what, id.b, sizeof(id.b)) == HTH_OK) {
        *out = hth_load_u64le(id.b);
        return HTH_OK;
    }
    enum hth_err err = hth_cli_parse_u64(what, 1, INT64_MAX, out);
    if (err != HTH_OK)
        hth_cli_say_error("revoke '%s': expected the serial of an invite, such as "
                          "1795814913123456, or the 64 hex digits of a peer's id",
                          what);
    return err;
}

static enum hth_err publish(struct revoking *r)
{
    struct hth_owner *o = r->owner;
    char network[HTH_NAME_LEN_MAX + 1];
    struct hth_owner_news news = {.run = &o->run,
                                  .list = &r->list,
                                  .sign = sign,
                                  .arg = r,
                                  .through = o->base.addr,
                                  .through_count = o->base.addr_count};
    if (r->entry != 0)
        HTH_TRY(check_known(r));
    HTH_TRY(read_list(r));
    r->list.by = o->by;
    HTH_TRY(enter(r));
    o->code = hth_owner_publish(&o->net,
                                hth_invite_network(hth_crypto_openssl(), &o->base, network), &news);
    if (news.err == HTH_OK && news.len == 0) /* nobody was reached */
        news.err = sign(r, &news);
    HTH_TRY(news.err);
    if (o->code != HTH_EXIT_OK)
        hth_cli_say_error("it is in %s, but not published yet: repeat the command", r->path);
    else if (r->entry != 0)
        hth_say("revoked %s; the members of run '%s' pass it on", o->what, o->base.run);
    else
        hth_say("the members of run '%s' pass it on: its owner is here", o->base.run);
    return HTH_OK;
}

enum hth_err hth_owner_revoke(struct hth_owner *o)
{
    struct revoking r = {.owner = o};
    if (o->what != NULL)
        HTH_TRY(read_entry(o->what, &r.entry));
    HTH_TRY(hth_owner_signer(o));
    uint64_t serial = o->by.deputy != 0 ? o->by.deputy : o->by.successor;
    r.path = serial == 0 ? hth_asprintf("%s/revoked.%s", o->dir, o->base.run)
                         : hth_asprintf("%s/revoked.%s.%llu", o->dir, o->base.run,
                                        (unsigned long long)serial);
    enum hth_err err = publish(&r);
    hth_free(r.path);
    return err;
}

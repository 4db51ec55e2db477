/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_admission.c: a closed run as its people see it. The owner makes a key and invites; invited
 * peers train together; everybody else is told why not, by name and exit code.
 */
#define _XOPEN_SOURCE 700
#include "integration/toy.h"

#include "admission/invite.h"
#include "admission/revoke.h"
#include "core/bytes.h"
#include "core/name.h"
#include "net/crypto.h"
#include "net/identity.h"
#include "support/suite.h"

#include <stdlib.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define NETWORK_CODE   4
#define ADMISSION_CODE 6

/* Begins the run with one command: its node owns it, with that flag or NULL. Returns the invite for
 * everybody, as a flag takes it. */
static const char *own_run(struct toy *t, const char *flag)
{
    struct place *p = t->place;
    size_t len;
    t->owner_dir = "hearth/owner";
    char *open = place_read(t->run, &len);
    place_write(p, "open.yaml", open, len);
    free(open);
    t->node = START(p, "node", "node", "--own", "--run", t->run, "--listen", t->addr[1], "--dir",
                    place_path(p, "node"), flag);
    proc_wait_text(t->node, "you are the first of run 'toy'");
    proc_must_say(t->node, "run 'toy' has an owner now");
    /* A core of it has no memory, and no key. */
    char *cores = place_read(place_text(p, "/proc/%ld/coredump_filter", (long)t->node->pid), &len);
    assert_string_equal(cores, "00000010\n");
    free(cores);
    char *said = place_read(t->node->out, &len), *path = strstr(said, "--invite ");
    assert_non_null(path);
    const char *invite = place_text(p, "%.*s", (int)strcspn(path + 9, "\n"), path + 9);
    free(said);
    return invite;
}

static void read_invite(const char *path, struct hth_invite *out)
{
    size_t len;
    char *text = place_read(path + 1, &len);
    assert_ok(hth_invite_read(text, len, out));
    free(text);
}

/* The network that an invite is for, until the next call. */
static const char *network(const char *path)
{
    static char text[HTH_NAME_LEN_MAX + 1];
    struct hth_invite got;
    struct hth_closed_run run;
    read_invite(path, &got);
    hth_invite_run(hth_crypto_openssl(), &got, &run);
    return hth_network_of(got.run, &run.id, text);
}

/* Writes the invite again, signed by the owner with that change. */
static const char *forge(struct toy *t, const char *from, const char *name, int64_t ends_us)
{
    struct place *p = t->place;
    struct hth_invite got;
    struct hth_closed_run run;
    struct hth_cert cert;
    struct hth_secret owner;
    char why[HTH_IDENTITY_WHY_MAX], text[HTH_INVITE_TEXT_MAX];
    read_invite(from, &got);
    assert_ok(hth_identity_load(place_path(p, "owner/key"), &owner, NULL, why));
    hth_invite_cert(&got, &cert);
    hth_invite_run(hth_crypto_openssl(), &got, &run);
    cert.run = run.id;
    cert.serial = (uint64_t)ends_us;
    cert.not_after_us = ends_us;
    assert_ok(hth_cert_write(hth_crypto_openssl(), &cert, &owner, got.cert, &got.cert_len));
    assert_ok(hth_invite_write(&got, text));
    place_write(p, place_text(p, "%s.invite", name), text, strlen(text));
    return place_text(p, "@%s/%s.invite", p->root, name);
}

/* Runs `hearth owner` with these words in a folder, and expects the exit code. */
#define OWNER(p, name, code, ...) owner_run(p, name, code, (const char *[]){__VA_ARGS__, NULL})
static struct proc *owner_run(struct place *p, const char *name, int code, const char *const *words)
{
    const char *argv[24] = {"owner"};
    size_t n = 1;
    for (; words[n - 1] != NULL; n++)
        argv[n] = words[n - 1];
    struct proc *proc = place_start(p, name, argv);
    assert_int_equal(proc_wait(proc), code);
    return proc;
}

static void must_hold(struct place *p, const char *invite)
{
    struct proc *proc = START(p, "show", "invite", "show", invite);
    assert_int_equal(proc_wait(proc), 0);
    proc_must_say(proc, "It holds.");
}

/* The public key in a folder. */
static const char *public_key(struct place *p, const char *dir)
{
    size_t len;
    char *key = place_read(place_path(p, place_text(p, "%s/key", dir)), &len);
    const char *hex = place_text(p, "%.64s", key + len - 65);
    free(key);
    return hex;
}

/* The list says how others join: by the public invite of the one who looks, or through whom. And an
 * invite whose addresses are dead is mended by any member, with the owner's machine off. */
static void others_learn_how_to_join(struct toy *t, const char *ben)
{
    struct place *p = t->place;
    const char *dir = place_path(p, t->owner_dir);
    struct proc *proc = START(p, "look", "status", "--invite", ben);
    assert_int_equal(proc_wait(proc), 0);
    proc_must_say(proc, " 100%\n"); /* of the experts are served */
    proc_must_say(proc, " all              member     train,serve,reduce,watch\n");
    proc_must_say(proc, " refused E_NOT_ADMITTED "); /* the intruder */
    proc_must_say(proc, "to join, ask the run's owner for an invite");
    const char *all = toy_keep(p,
                               OWNER(p, "all", 0, "invite", "--dir", dir, "--run", t->run, "--name",
                                     "all", "--public", "--address", t->addr[1]),
                               "all");
    proc = START(p, "public", "status", "--invite", all);
    assert_int_equal(proc_wait(proc), 0);
    proc_must_say(proc, "anybody may join: hearth serve --experts 8 --invite hearth1.");
    proc = START(p, "outside", "status", "--join", t->addr[1], "--network", network(ben));
    assert_int_equal(proc_wait(proc), 0);
    proc_must_say(proc, " tell only members how they are: the run is closed; give --invite\n");
    const char *dead = toy_keep(p,
                                OWNER(p, "dead", 0, "invite", "--dir", dir, "--run", t->run,
                                      "--name", "zoe", "--address", t->addr[4]),
                                "dead");
    proc = START(p, "mend", "invite", "refresh", dead, "--invite", ben);
    assert_int_equal(proc_wait(proc), 0);
    must_hold(p, toy_keep(p, proc, "mended"));
    proc_must_say(&p->proc[p->proc_count - 1], place_text(p, "joins    %s\n", t->addr[1]));
}

/* An invite's text is data, which goes to standard output alone: no message and no log has it. */
static void no_log_has_an_invite(struct place *p)
{
    for (size_t i = 0; i < p->proc_count; i++) {
        size_t len;
        char *text = place_read(p->proc[i].err, &len);
        if (strstr(text, "hearth1.AQ") != NULL) /* its first byte is the version */
            fail_msg("%s says an invite", p->proc[i].name);
        free(text);
    }
}

PLACE_TEST(invited_peers_train)
{
    struct place *p = *state;
    struct toy t;
    toy_init(&t, p, 100);
    const char *ana = own_run(&t, NULL), *ben = toy_invite(&t, "ben", "train");
    /* The invite is all that a host needs: the node gives it the run file. */
    t.host[0] = START(p, "host", "serve", "--invite", ana, "--listen", t.addr[2], "--dir",
                      place_path(p, "host"), "--threads", "1", "--experts", "8");
    proc_wait_text(t.host[0], "serving 8 experts");
    proc_must_say(t.host[0], place_text(p, "joining %s", t.addr[1]));
    assert_int_equal(place_count(p, "host", ".yaml"), 1);

    /* With the run file alone, and without the owner's key, nobody begins ... */
    const char *owner = place_path(p, t.owner_dir), *away = place_path(p, "away");
    assert_int_equal(rename(owner, away), 0);
    struct proc *proc = START(p, "stranger", "train", "--run", t.run, "--join", t.addr[1],
                              "--listen", t.addr[3], "--dir", place_path(p, "stranger"));
    assert_int_equal(proc_wait(proc), ADMISSION_CODE);
    proc_must_say(proc, "run 'toy' is closed");
    assert_int_equal(rename(away, owner), 0);
    /* ... a peer with another run file is in another network, and hears which ... */
    proc = START(p, "other", "train", "--run", place_path(p, "open.yaml"), "--join", t.addr[1],
                 "--listen", t.addr[3], "--dir", place_path(p, "other"));
    assert_int_equal(proc_wait(proc), NETWORK_CODE);
    proc_must_say(proc, place_text(p, "nodes answer, but in network \"%s\"", network(ana)));
    /* ... and a stranger that names theirs is turned away by the others. */
    proc = START(p, "intruder", "train", "--run", place_path(p, "open.yaml"), "--network",
                 network(ana), "--join", t.addr[1], "--listen", t.addr[3], "--once", "--dir",
                 place_path(p, "intruder"));
    assert_int_equal(proc_wait(proc), ADMISSION_CODE);
    proc_must_say(proc, "turns this one away");
    proc_must_say(proc, hth_err_text(HTH_E_NOT_ADMITTED));

    /* The trainer has an invite for its own key: no other process may use it. */
    OWNER(p, "key", 0, "init", "--dir", place_path(p, "trainer"));
    const char *bound =
        toy_keep(p,
                 OWNER(p, "promote", 0, "promote", public_key(p, "trainer"), "--dir",
                       place_path(p, t.owner_dir), "--run", t.run, "--name", "hal"),
                 "bound");
    proc = START(p, "not hal", "status", "--invite", bound, "--join", t.addr[1]);
    assert_int_equal(proc_wait(proc), ADMISSION_CODE);
    proc_must_say(proc, "it is for the key of one peer");
    const char *const more[] = {"--invite", bound, NULL};
    toy_start_trainer(&t, "trainer", more);
    assert_int_equal(proc_wait(t.trainer), 0);
    struct toy_metrics m;
    toy_metrics_load(&t, "trainer", &m);
    assert_true(toy_number(m.last_progress, "experts_live") == 8);
    assert_true(toy_number(m.last_progress, "calls") > 0);
    assert_true(toy_number(m.last_progress, "calls_failed") == 0);
    toy_metrics_clear(&m);

    others_learn_how_to_join(&t, ben);
    proc = START(p, "list", "owner", "list", "--dir", place_path(p, t.owner_dir));
    assert_int_equal(proc_wait(proc), 0);
    proc_must_say(proc, "ben");
    place_end(p);
    no_log_has_an_invite(p);
}

/* Without an invite nothing of a private run is seen, but by its owner. */
PLACE_TEST(private_run_is_hidden)
{
    struct place *p = *state;
    struct toy t;
    toy_init(&t, p, 100);
    struct proc *proc = START(p, "member", "status", "--invite", own_run(&t, "--private"));
    assert_int_equal(proc_wait(proc), 0);
    proc_must_say(proc, "run 'toy': 1 peer");
    proc = START(p, "owner", "status", "--run", t.run);
    assert_int_equal(proc_wait(proc), 0);
    proc_must_say(proc, "run 'toy': 1 peer");
    proc = START(p, "stranger", "status", "--join", t.addr[1], "--wait", "2s");
    assert_int_equal(proc_wait(proc), NETWORK_CODE);
    assert_false(proc_said(proc, "toy"));
    place_end(p);
}

/* Deputies and a successor sign, each within its rights; no word of it needs a network. */
PLACE_TEST(others_sign_for_the_owner)
{
    struct place *p = *state;
    struct toy t;
    toy_init(&t, p, 100);
    toy_own(&t);
    const char *dir = place_path(p, "owner"), *none = place_path(p, "none");
    const char *sara_dir = place_path(p, "sara"), *role = hth_err_text(HTH_E_PASS_ROLE);
    const char *dora = toy_keep(p,
                                OWNER(p, "dora", 0, "deputy", "--dir", dir, "--run", t.run,
                                      "--name", "dora", "--roles", "train,serve"),
                                "dora");
    const char *ben = toy_keep(
        p, OWNER(p, "ben", 0, "invite", "--as", dora, "--dir", none, "--name", "ben"), "ben");
    must_hold(p, ben);
    struct proc *proc = OWNER(p, "more", ADMISSION_CODE, "invite", "--as", dora, "--dir", none,
                              "--name", "zoe", "--roles", "watch");
    proc_must_say(proc, "this deputy has train,serve, and can't give watch");
    proc_must_say(proc, role);
    proc =
        OWNER(p, "depth", ADMISSION_CODE, "deputy", "--as", dora, "--dir", none, "--name", "zoe");
    proc_must_say(proc, "a deputy can't name a deputy");
    proc =
        OWNER(p, "member", ADMISSION_CODE, "invite", "--as", ben, "--dir", none, "--name", "zoe");
    proc_must_say(proc, "only the text of a deputy or a successor can sign");

    OWNER(p, "key", 0, "init", "--dir", sara_dir);
    const char *key = public_key(p, "sara");
    const char *heir = toy_keep(
        p, OWNER(p, "heir", 0, "successor", key, "--dir", dir, "--run", t.run, "--name", "sara"),
        "heir");
    proc = OWNER(p, "early", ADMISSION_CODE, "invite", "--as", heir, "--dir", sara_dir, "--name",
                 "zoe");
    proc_must_say(proc, hth_err_text(HTH_E_PASS_EARLY));
    heir = toy_keep(p,
                    OWNER(p, "now", 0, "successor", key, "--dir", dir, "--run", t.run, "--name",
                          "sara", "--silence", "0"),
                    "heir");
    proc = OWNER(p, "other", ADMISSION_CODE, "invite", "--as", heir, "--dir", dir, "--name", "zoe");
    proc_must_say(proc, "is not the key that its text was made for");
    const char *dave = toy_keep(
        p, OWNER(p, "dave", 0, "deputy", "--as", heir, "--dir", sara_dir, "--name", "dave"),
        "dave");
    must_hold(
        p, toy_keep(p, OWNER(p, "eve", 0, "invite", "--as", dave, "--dir", none, "--name", "eve"),
                    "eve"));
    proc = OWNER(p, "third", ADMISSION_CODE, "successor", key, "--as", heir, "--dir", sara_dir,
                 "--name", "zoe");
    proc_must_say(proc, "a successor can't name a successor");
    place_end(p);
}

/* A deputy's process signs for whom the host beside it has seen for four hours, and for nobody
 * else. The certificate lies where that host looks for it. */
PLACE_TEST(deputy_promotes_by_itself)
{
    struct place *p = *state;
    struct toy t;
    struct hth_closed_run run;
    struct hth_cert cert;
    struct hth_grant grant;
    struct hth_invite all;
    uint8_t seen[6 + 2 * 44] = {'H', 'W', 'I', 'T', 1, 2};
    static const uint32_t worked_s[] = {4 * 3600 - 1, 4 * 3600};
    size_t len;
    toy_init(&t, p, 100);
    toy_own(&t);
    const char *owner = place_path(p, "owner"), *dir = place_path(p, "deputy");
    const char *dora = toy_keep(
        p, OWNER(p, "dora", 0, "deputy", "--dir", owner, "--run", t.run, "--name", "dora"), "dora");
    const char *words[] = {
        "owner", "promote", "--auto", "--as", dora, "--dir", dir, "--beside", place_path(p, "host"),
        NULL};
    struct proc *proc = place_start(p, "nowhere", words);
    assert_int_equal(proc_wait(proc), 2);
    proc_must_say(proc, "no host or trainer ever ran in that folder");
    for (uint8_t i = 0; i < 2; i++) {
        seen[6 + 44 * i] = (uint8_t)(0xa0 + i);
        hth_store_u32le(&seen[6 + 44 * i + 40], worked_s[i]);
    }
    assert_int_equal(mkdir(place_path(p, "host"), 0700), 0);
    place_write(p, "host/lock", "", 0);
    place_write(p, "host/witnessed", seen, sizeof(seen));
    read_invite(forge(&t, dora, "over", 1), &all);
    place_write(p, "host/raise-b000000000000000", all.cert, all.cert_len);
    proc = place_start(p, "promote", words);
    proc_wait_text(proc, "promoted a100000000000000 as 'raised-a1000000'");
    proc_stop(proc);
    assert_int_equal(access(place_path(p, "host/raise-a000000000000000"), F_OK), -1);
    assert_int_equal(access(place_path(p, "host/raise-b000000000000000"), F_OK), -1); /* over */
    char *certs = place_read(place_path(p, "host/raise-a100000000000000"), &len);
    read_invite(dora, &all);
    hth_invite_run(hth_crypto_openssl(), &all, &run);
    assert_ok(hth_cert_check(hth_crypto_openssl(), &run, certs, len, &cert, &grant));
    assert_int_equal(cert.class, HTH_MEMBER);
    assert_memory_equal(cert.key.b, &seen[6 + 44], sizeof(cert.key.b));
    free(certs);
    proc_must_say(OWNER(p, "list", 0, "list", "--dir", dir), "auto      raised-a1000000");
    /* Once: another start finds it. */
    proc = place_start(p, "again", words);
    proc_wait_text(proc, "promoting peers on probation");
    proc_stop(proc);
    assert_false(proc_said(proc, "promoted"));
    place_end(p);
}

/* The owner's key comes back from its copy, with the passphrase alone, and is said nowhere. */
PLACE_TEST(key_comes_back)
{
    struct place *p = *state;
    struct stat st;
    size_t len, n;
    const char *dir = place_path(p, "owner"), *file = place_path(p, "copy");
    const char *pass = place_text(p, "@%s/pass", p->root);
    OWNER(p, "init", 0, "init", "--dir", dir);
    place_write(p, "pass", "open sesame\n", 12);
    place_write(p, "shortpass", "sesame\n", 7);
    proc_must_say(OWNER(p, "short", 2, "backup", file, "--dir", dir, "--passphrase",
                        place_text(p, "@%s/shortpass", p->root)),
                  "at least 8 bytes");
    OWNER(p, "backup", 0, "backup", file, "--dir", dir, "--passphrase", pass);
    assert_int_equal(stat(file, &st), 0);
    assert_int_equal(st.st_mode & 07777, 0600);
    proc_must_say(OWNER(p, "twice", 1, "backup", file, "--dir", dir, "--passphrase", pass),
                  "it exists");
    proc_must_say(OWNER(p, "there", 3, "restore", file, "--dir", dir, "--passphrase", pass),
                  "there is a key already");
    const char *back = place_path(p, "back");
    char *copy = place_read(file, &n);
    place_write(p, "cut", copy, n - 40);
    proc_must_say(
        OWNER(p, "cut", 3, "restore", place_path(p, "cut"), "--dir", back, "--passphrase", pass),
        "the backup is cut");
    OWNER(p, "restore", 0, "restore", file, "--dir", back, "--passphrase", pass);
    char *key = place_read(place_path(p, "owner/key"), &len);
    char *again = place_read(place_path(p, "back/key"), &n);
    assert_int_equal(len, n);
    assert_memory_equal(key, again, len);
    assert_int_equal(stat(place_path(p, "back/key"), &st), 0);
    assert_int_equal(st.st_mode & 07777, 0600);
    char *secret = strchr(key, '\n') + 1;
    secret[64] = '\0';
    assert_null(strstr(copy, secret));
    for (size_t i = 0; i < p->proc_count; i++)
        assert_false(proc_said(&p->proc[i], secret) || proc_said(&p->proc[i], "open sesam"));
    free(copy);
    free(again);
    free(key);
    place_end(p);
}

/* The signer's list in the folder `lost`. */
static void must_have_two_entries(struct place *p, const char *signer)
{
    struct hth_invite got;
    struct hth_cert cert;
    size_t len;
    char *text = place_read(signer + 1, &len);
    assert_ok(hth_invite_read(text, len, &got));
    free(text);
    hth_invite_cert(&got, &cert);
    text = place_read(
        place_path(p, place_text(p, "lost/revoked.toy.%llu", (unsigned long long)cert.serial)),
        &len);
    assert_true(len > 48);
    assert_int_equal(text[6], 2);
    free(text);
}

/* Gives the owner a list without a free place; returns one of its serials. */
static uint64_t fill_list(struct toy *t, const char *from)
{
    struct place *p = t->place;
    const struct hth_crypto *crypto = hth_crypto_openssl();
    struct hth_invite got;
    struct hth_closed_run run;
    struct hth_secret owner;
    struct hth_revoked list = {.seq = 1};
    uint8_t bytes[HTH_REVOKED_BYTES_MAX];
    char why[HTH_IDENTITY_WHY_MAX];
    size_t len;
    char *text = place_read(from + 1, &len);
    assert_ok(hth_invite_read(text, len, &got));
    free(text);
    hth_invite_run(crypto, &got, &run);
    assert_ok(hth_identity_load(place_path(p, "owner/key"), &owner, NULL, why));
    for (uint64_t i = 1; i <= HTH_REVOKED_MAX; i++)
        assert_ok(hth_revoked_add(&list, 1000 + i));
    len = hth_revoked_write(crypto, &list, &run.id, &owner, NULL, 0, bytes);
    place_write(p, "owner/revoked.toy", bytes, len);
    return list.entry[7];
}

/* A full list takes no more, until an invite that it names has ended. */
static void full_list_makes_room(struct toy *t, const char *from)
{
    struct place *p = t->place;
    const char *dir = place_path(p, "owner");
    uint64_t ended = fill_list(t, from);
    size_t len;
    proc_must_say(OWNER(p, "full", 1, "revoke", "7", "--dir", dir, "--run", t->run),
                  "all 400 places are taken");
    char *list = place_read(place_path(p, "owner/invites"), &len);
    const char *more =
        place_text(p,
                   "%llu 1700000000 2 train toy old invite\n"
                   "9 2000000000 2 train far ana invite\n",
                   (unsigned long long)ended);
    list = realloc(list, len + strlen(more));
    assert_non_null(list);
    memcpy(list + len, more, strlen(more));
    place_write(p, "owner/invites", list, len + strlen(more));
    free(list);
    proc_must_say(OWNER(p, "far", 2, "revoke", "9", "--dir", dir, "--run", t->run),
                  "that invite is to run 'far', and this is run 'toy'");
    /* It finds the run through this user's processes. */
    proc_must_say(OWNER(p, "room", 0, "revoke", "7", "--dir", dir, "--run", t->run),
                  "has no invite of serial 7");
    proc_must_say(OWNER(p, "list", 0, "list", "--dir", dir), "old");
}

/* A deputy's word ends a member's part in the run, and the others keep that word. */
PLACE_TEST(revoked_member_ends)
{
    struct place *p = *state;
    struct toy t;
    struct hth_invite got;
    struct hth_cert cert;
    toy_init(&t, p, 1000000);
    toy_own(&t);
    const char *ana = toy_invite(&t, "ana", "serve"), *none = place_path(p, "none");
    /* A deputy invited ben, and ends it. */
    const char *dora = toy_keep(p,
                                OWNER(p, "dora", 0, "deputy", "--dir", place_path(p, "owner"),
                                      "--run", t.run, "--name", "dora", "--address", t.addr[1]),
                                "dora");
    const char *ben = toy_keep(p,
                               OWNER(p, "ben", 0, "invite", "--as", dora, "--dir", none, "--name",
                                     "ben", "--roles", "train"),
                               "ben");
    t.node = START(p, "node", "node", "--invite", ana, "--listen", t.addr[1], "--dir",
                   place_path(p, "node"));
    proc_wait_text(t.node, "you are the first of run 'toy'");
    t.host[0] = START(p, "host", "serve", "--run", t.run, "--invite", ana, "--listen", t.addr[2],
                      "--dir", place_path(p, "host"), "--threads", "1", "--experts", "8");
    proc_wait_text(t.host[0], "serving 8 experts");
    const char *const more[] = {"--invite", ben, NULL};
    toy_start_trainer(&t, "trainer", more);
    proc_wait_text(t.trainer, "test after 100 updates");

    read_invite(ben, &got);
    hth_invite_cert(&got, &cert);
    struct proc *proc =
        OWNER(p, "revoke", 0, "revoke", place_text(p, "%llu", (unsigned long long)cert.serial),
              "--as", dora, "--dir", none);
    proc_must_say(proc, "revoked");
    proc_must_say(OWNER(p, "list", 0, "list", "--dir", none), "(revoked)");
    /* With another folder, which has no copy of that list, it takes over what the network knows. */
    OWNER(p, "more", 0, "revoke", "5", "--as", dora, "--dir", place_path(p, "lost"));
    must_have_two_entries(p, dora);
    assert_int_equal(proc_wait(t.trainer), ADMISSION_CODE);
    proc_must_say(t.trainer, hth_err_text(HTH_E_PASS_REVOKED));
    /* The host knows, and tells a fresh folder of ben's. */
    struct wait w = {0};
    while (!place_exists(p, "host/revoked"))
        wait_step(&w, "the host's list");
    proc = START(p, "again", "train", "--run", t.run, "--invite", ben, "--listen", t.addr[3],
                 "--dir", place_path(p, "again"));
    assert_int_equal(proc_wait(proc), ADMISSION_CODE);
    proc_must_say(proc, hth_err_text(HTH_E_PASS_REVOKED));
    full_list_makes_room(&t, ana);
    place_end(p);
}

/* Starts a trainer with the invite and expects its words and the exit code. */
static void must_not_train(struct toy *t, const char *with, int code, const char *text)
{
    struct place *p = t->place;
    struct proc *proc = START(p, "refused", "train", "--run", t->run, "--invite", with, "--listen",
                              t->addr[4], "--dir", place_path(p, "refused"));
    assert_int_equal(proc_wait(proc), code);
    proc_must_say(proc, text);
}

PLACE_TEST(bad_invites_are_named)
{
    struct place *p = *state;
    struct toy t;
    size_t len;
    toy_init(&t, p, 100);
    toy_own(&t);
    const char *ana = toy_invite(&t, "ana", "train,serve"), *zoe = toy_invite(&t, "zoe", "serve");
    /* A member's program ends with its invite: in 3 s, by which clocks may differ. */
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    t.node = START(p, "node", "node", "--run", t.run, "--invite",
                   forge(&t, ana, "short", now.tv_sec * HTH_US_PER_S), "--listen", t.addr[1],
                   "--dir", place_path(p, "node"));
    must_not_train(&t, zoe, ADMISSION_CODE, "it gives serve, and this needs train");
    must_not_train(&t, forge(&t, ana, "old", INT64_C(1700000000) * HTH_US_PER_S), ADMISSION_CODE,
                   hth_err_text(HTH_E_PASS_EXPIRED));
    must_not_train(&t, forge(&t, ana, "new", INT64_C(4102444800) * HTH_US_PER_S), ADMISSION_CODE,
                   hth_err_text(HTH_E_PASS_EARLY));
    char *text = place_read(ana + 1, &len);
    must_not_train(&t, place_text(p, "%.40s", text), 2, "the invite is cut");
    text[len / 2] = text[len / 2] == 'A' ? 'B' : 'A';
    place_write(p, "typo.invite", text, len);
    free(text);
    must_not_train(&t, place_text(p, "@%s/typo.invite", p->root), 2, "the invite is mistyped");
    must_not_train(&t, place_text(p, "@%s/none", p->root), 2, hth_err_text(HTH_E_NO_FILE));
    /* Another run file is another run. */
    char *run = place_read(t.run, &len);
    char *seed = strstr(run, "seed: 1");
    assert_non_null(seed);
    seed[6] = '2';
    place_write(p, "other.yaml", run, len);
    free(run);
    snprintf(t.run, sizeof(t.run), "%s/other.yaml", p->root);
    must_not_train(&t, ana, ADMISSION_CODE, hth_err_text(HTH_E_PASS_OTHER_RUN));
    snprintf(t.run, sizeof(t.run), "%s/open.yaml", p->root);
    must_not_train(&t, ana, 2, "the run file names no admission.owner");
    assert_int_equal(proc_wait(t.node), ADMISSION_CODE);
    proc_must_say(t.node, hth_err_text(HTH_E_PASS_EXPIRED));
    place_end(p);
    no_log_has_an_invite(p);
}

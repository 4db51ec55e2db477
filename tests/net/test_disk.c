/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_disk.c: files, the identity's key file, the lock, and the
 * crypto table against published vectors.
 *
 * Works for root and other users: where a permission has to be missing, root becomes nobody for
 * that call.
 */
#define _GNU_SOURCE

#include "core/bytes.h"
#include "core/mem.h"
#include "net/backup.h"
#include "net/crypto.h"
#include "net/identity.h"
#include "net/lock.h"
#include "net/net.h"
#include "support/suite.h"

#include <dirent.h>
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#define NOBODY 65534

struct disk {
    struct hth_env *env;
    char dir[64];
    char path[128];
};

static int set_up(void **state)
{
    struct hth_net_opts opts = HTH_NET_OPTS_INIT;
    struct disk *d = hth_new(struct disk);
    int at = snprintf(d->dir, sizeof(d->dir), "/tmp/hearth-test-");
    memset(d->dir + at, 'X', 6); /* the part that mkdtemp chooses */
    if (mkdtemp(d->dir) == NULL || hth_net_new(&opts, &d->env) != HTH_OK)
        return -1;
    snprintf(d->path, sizeof(d->path), "%s/a/b/file", d->dir);
    *state = d;
    return 0;
}

static void remove_tree(const char *path, int depth)
{
    DIR *dir = depth < 8 ? opendir(path) : NULL;
    struct dirent *e;
    while (dir != NULL && (e = readdir(dir)) != NULL) {
        if (strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0)
            continue;
        char *sub = hth_asprintf("%s/%s", path, e->d_name);
        if (unlink(sub) != 0)
            remove_tree(sub, depth + 1);
        hth_free(sub);
    }
    if (dir != NULL)
        closedir(dir);
    rmdir(path);
}

static int tear_down(void **state)
{
    struct disk *d = *state;
    remove_tree(d->dir, 0);
    hth_net_free(d->env);
    hth_free(d);
    return 0;
}

/* Files in the folder of path. */
static int count_files(const char *dir_path)
{
    DIR *dir = opendir(dir_path);
    int n = 0;
    assert_non_null(dir);
    while (readdir(dir) != NULL)
        n++;
    closedir(dir);
    return n - 2;
}

static enum hth_err write_text(struct disk *d, const char *path, const char *text)
{
    struct hth_blob *blob = hth_blob_copy(text, strlen(text));
    size_t half = strlen(text) / 2;
    struct hth_span spans[3] = {{blob, 0, half}, {blob, half, 0}, {blob, half, blob->size - half}};
    enum hth_err err = hth_file_write(d->env, path, spans, 3);
    hth_blob_unref(blob);
    return err;
}

static void assert_text(struct disk *d, const char *path, const char *text)
{
    struct hth_blob *blob;
    assert_ok(hth_file_read(d->env, path, 1000, &blob));
    assert_int_equal(blob->size, strlen(text));
    if (blob->size > 0)
        assert_memory_equal(blob->data, text, blob->size);
    hth_blob_unref(blob);
}

/* ---- files ----------------------------------------------------------------------------------- */

TEST_WITH(files_are_written_read_and_removed, set_up, tear_down)
{
    struct disk *d = *state;
    struct hth_blob *blob;
    uint64_t size;
    char buf[16];
    size_t got;
    assert_err(HTH_E_NO_FILE, hth_file_size(d->env, d->path, &size));
    assert_err(HTH_E_NO_FILE, hth_file_pread(d->env, d->path, 0, buf, 4, &got));
    assert_err(HTH_E_NO_FILE, hth_file_remove(d->env, d->path));
    assert_ok(write_text(d, d->path, "0123456789")); /* makes a/ and a/b/ */
    assert_ok(hth_file_size(d->env, d->path, &size));
    assert_int_equal(size, 10);
    assert_text(d, d->path, "0123456789");
    assert_ok(hth_file_pread(d->env, d->path, 4, buf, 3, &got));
    assert_int_equal(got, 3);
    assert_memory_equal(buf, "456", 3);
    assert_ok(hth_file_pread(d->env, d->path, 8, buf, 16, &got));
    assert_int_equal(got, 2);
    assert_ok(hth_file_pread(d->env, d->path, 99, buf, 16, &got));
    assert_int_equal(got, 0);
    assert_ok(hth_file_pread(d->env, d->path, UINT64_MAX, buf, 16, &got));
    assert_int_equal(got, 0);
    assert_err(HTH_E_TOO_LARGE, hth_file_read(d->env, d->path, 9, &blob));
    assert_ok(write_text(d, d->path, "new"));
    assert_text(d, d->path, "new");
    assert_ok(write_text(d, d->path, ""));
    assert_text(d, d->path, "");
    assert_ok(hth_file_remove(d->env, d->path));
    assert_err(HTH_E_NO_FILE, hth_file_size(d->env, d->path, &size));
}

TEST_WITH(folders_and_pipes_are_errors, set_up, tear_down)
{
    struct disk *d = *state;
    char sub[160];
    uint64_t size;
    char buf[4];
    size_t got;
    assert_err(HTH_E_IO, hth_file_size(d->env, d->dir, &size));
    assert_err(HTH_E_IO, hth_file_pread(d->env, d->dir, 0, buf, 4, &got));
    assert_err(HTH_E_IO, write_text(d, d->dir, "over a folder"));
    assert_ok(write_text(d, d->path, "x"));
    snprintf(sub, sizeof(sub), "%s/below", d->path);
    assert_err(HTH_E_NO_FILE, hth_file_size(d->env, sub, &size));
    assert_err(HTH_E_NO_FILE, write_text(d, sub, "below a file"));
    /* A pipe without a writer must not block. */
    snprintf(sub, sizeof(sub), "%s/pipe", d->dir);
    assert_int_equal(mkfifo(sub, 0600), 0);
    assert_err(HTH_E_IO, hth_file_pread(d->env, sub, 0, buf, 4, &got));
}

static void become(uid_t uid)
{
    if (getuid() == 0)
        assert_int_equal(seteuid(uid), 0);
}

TEST_WITH(missing_permissions_are_errors, set_up, tear_down)
{
    struct disk *d = *state;
    uint64_t size;
    assert_ok(write_text(d, d->path, "secret"));
    assert_int_equal(chmod(d->path, 0), 0);
    assert_int_equal(chmod(d->dir, 0755), 0);
    become(NOBODY);
    enum hth_err read_err = hth_file_size(d->env, d->path, &size);
    become(0);
    assert_int_equal(read_err, HTH_E_PERMISSION);
    char dir[128];
    snprintf(dir, sizeof(dir), "%s/a/b", d->dir);
    assert_int_equal(chmod(dir, 0555), 0);
    become(NOBODY);
    enum hth_err write_err = write_text(d, d->path, "mine now");
    enum hth_err remove_err = hth_file_remove(d->env, d->path);
    become(0);
    assert_int_equal(chmod(dir, 0755), 0);
    assert_int_equal(write_err, HTH_E_PERMISSION);
    assert_int_equal(remove_err, HTH_E_PERMISSION);
    assert_int_equal(chmod(d->path, 0644), 0);
    assert_text(d, d->path, "secret");
}

/* A write that fails half-way leaves the old content, and nothing beside it. */
TEST_WITH(failed_write_keeps_old_content, set_up, tear_down)
{
    struct disk *d = *state;
    struct rlimit old, small;
    char dir[128];
    struct hth_blob *blob = hth_blob_try_new(100000);
    struct hth_span span = {blob, 0, 100000};
    assert_non_null(blob);
    memset(blob->data, 'x', blob->size);
    snprintf(dir, sizeof(dir), "%s/a/b", d->dir);
    assert_ok(write_text(d, d->path, "old"));
    signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &old), 0);
    small = old;
    small.rlim_cur = 4096;
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
    enum hth_err err = hth_file_write(d->env, d->path, &span, 1);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &old), 0);
    assert_int_equal(err, HTH_E_DISK_FULL);
    assert_text(d, d->path, "old");
    assert_int_equal(count_files(dir), 1);
    hth_blob_unref(blob);
}

/* ---- durable writes: the calls that reach the kernel, in order, and the n-th of them fails -- */

enum { CALLS_MAX = 8 };

static struct {
    bool watched;
    int fail_at, fail_errno; /* counted from 1; 0: none */
    int count;
    char call[CALLS_MAX][400];
} calls;

/* Records a call; false: it must fail. */
static bool record_call(const char *name, const char *a, const char *b)
{
    if (!calls.watched)
        return true;
    assert_true(calls.count < CALLS_MAX);
    snprintf(calls.call[calls.count++], sizeof(calls.call[0]), "%s %s%s%s", name, a,
             b != NULL ? " " : "", b != NULL ? b : "");
    errno = calls.fail_errno;
    return calls.count != calls.fail_at;
}

/* The linker puts these in the place of the system's (CMakeLists.txt). */
int __real_fsync(int fd);
int __wrap_fsync(int fd);
int __real_rename(const char *from, const char *to);
int __wrap_rename(const char *from, const char *to);
int __real_link(const char *from, const char *to);
int __wrap_link(const char *from, const char *to);

int __wrap_fsync(int fd)
{
    char link_path[64], path[256];
    snprintf(link_path, sizeof(link_path), "/proc/self/fd/%d", fd);
    ssize_t len = readlink(link_path, path, sizeof(path) - 1);
    assert_true(len > 0);
    path[len] = '\0';
    return record_call("fsync", path, NULL) ? __real_fsync(fd) : -1;
}

int __wrap_rename(const char *from, const char *to)
{
    return record_call("rename", from, to) ? __real_rename(from, to) : -1;
}

int __wrap_link(const char *from, const char *to)
{
    return record_call("link", from, to) ? __real_link(from, to) : -1;
}

static enum hth_err write_watched(struct disk *d, const char *text, int fail_at, int fail_errno)
{
    memset(&calls, 0, sizeof(calls));
    calls.watched = true;
    calls.fail_at = fail_at;
    calls.fail_errno = fail_errno;
    enum hth_err err = write_text(d, d->path, text);
    calls.watched = false;
    return err;
}

/* Checks the three calls of a durable write: fsync of the temporary file, its rename or link, and
 * fsync of the folder. */
static void assert_durable(const struct disk *d, const char *names)
{
    char tmp[300], want[800], dir[200];
    snprintf(dir, sizeof(dir), "%.*s", (int)(strrchr(d->path, '/') - d->path), d->path);
    assert_int_equal(calls.count, 3);
    assert_int_equal(sscanf(calls.call[0], "fsync %299s", tmp), 1);
    snprintf(want, sizeof(want), "%s.tmp-", d->path);
    assert_memory_equal(tmp, want, strlen(want));
    snprintf(want, sizeof(want), "%s %s %s", names, tmp, d->path);
    assert_string_equal(calls.call[1], want);
    snprintf(want, sizeof(want), "fsync %s", dir);
    assert_string_equal(calls.call[2], want);
}

TEST_WITH(write_syncs_renames_and_syncs_folder, set_up, tear_down)
{
    struct disk *d = *state;
    assert_ok(write_watched(d, "first", 0, 0));
    assert_durable(d, "rename");
    assert_ok(write_watched(d, "second", 0, 0));
    assert_durable(d, "rename");
    assert_text(d, d->path, "second");
}

TEST_WITH(new_key_is_synced_with_its_name, set_up, tear_down)
{
    struct disk *d = *state;
    struct hth_secret secret;
    char why[HTH_IDENTITY_WHY_MAX];
    memset(&calls, 0, sizeof(calls));
    calls.watched = true;
    enum hth_err err = hth_identity_load(d->path, &secret, NULL, why);
    calls.watched = false;
    assert_ok(err);
    assert_durable(d, "link");
}

/* Before the rename a failure leaves the old content. After it the new content has the name, and
 * the error means that a crash may still restore the old one. */
TEST_WITH(failing_sync_is_an_error_and_loses_nothing, set_up, tear_down)
{
    static const struct {
        int call, code;
        enum hth_err want;
        const char *left;
    } cases[] = {
        {1, EIO, HTH_E_IO, "old"},
        {1, ENOSPC, HTH_E_DISK_FULL, "old"},
        {1, EINVAL, HTH_E_IO, "old"},
        {2, EIO, HTH_E_IO, "old"},
        {2, EACCES, HTH_E_PERMISSION, "old"},
        {3, EIO, HTH_E_IO, "new"},
        {3, EINVAL, HTH_OK, "new"}, /* a file system that has nothing to sync for a folder */
    };
    struct disk *d = *state;
    char dir[128];
    snprintf(dir, sizeof(dir), "%s/a/b", d->dir);
    for (size_t i = 0; i < HTH_ARRAY_LEN(cases); i++) {
        assert_ok(write_text(d, d->path, "old"));
        assert_err(cases[i].want, write_watched(d, "new", cases[i].call, cases[i].code));
        assert_int_equal(calls.count, cases[i].call);
        assert_text(d, d->path, cases[i].left);
        assert_int_equal(count_files(dir), 1);
    }
}

/* ---- identity ------------------------------------------------------------------------------- */

TEST_WITH(identity_is_made_once, set_up, tear_down)
{
    struct disk *d = *state;
    struct hth_secret first, again;
    char why[HTH_IDENTITY_WHY_MAX], dir[128];
    struct stat st;
    bool created;
    mode_t mask = umask(0); /* the mode must not depend on it */
    assert_ok(hth_identity_load(d->path, &first, &created, why));
    umask(mask);
    assert_true(created);
    assert_int_equal(stat(d->path, &st), 0);
    assert_int_equal(st.st_mode & 07777, 0600);
    assert_ok(hth_identity_load(d->path, &again, &created, why));
    assert_false(created);
    assert_memory_equal(first.b, again.b, sizeof(first.b));
    snprintf(dir, sizeof(dir), "%s/a/b", d->dir);
    assert_int_equal(count_files(dir), 1);
    /* Another file is another identity. */
    strcat(d->path, "2");
    assert_ok(hth_identity_load(d->path, &again, NULL, why));
    assert_memory_not_equal(first.b, again.b, sizeof(first.b));
}

TEST_WITH(identity_readable_by_others_is_refused, set_up, tear_down)
{
    static const mode_t bad[] = {0640, 0604, 0660, 0666, 0644, 0610};
    struct disk *d = *state;
    struct hth_secret secret;
    char why[HTH_IDENTITY_WHY_MAX];
    assert_ok(hth_identity_load(d->path, &secret, NULL, why));
    for (size_t i = 0; i < HTH_ARRAY_LEN(bad); i++) {
        assert_int_equal(chmod(d->path, bad[i]), 0);
        assert_err(HTH_E_PERMISSION, hth_identity_load(d->path, &secret, NULL, why));
        assert_non_null(strstr(why, "chmod 600"));
    }
    assert_int_equal(chmod(d->path, 0400), 0);
    assert_ok(hth_identity_load(d->path, &secret, NULL, why));
    assert_string_equal(why, "");
    assert_err(HTH_E_BAD_KEY, hth_identity_load(d->dir, &secret, NULL, why));
    /* A link to nowhere is neither loaded nor replaced. */
    char link_path[160];
    snprintf(link_path, sizeof(link_path), "%s/proc/identity", "/proc/1/no-such-folder");
    assert_true(hth_identity_load(link_path, &secret, NULL, why) != HTH_OK);
    assert_true(strlen(why) > 0);
}

static void put_key_file(struct disk *d, const void *data, size_t len)
{
    FILE *f = fopen(d->path, "w");
    assert_non_null(f);
    assert_int_equal(fwrite(data, 1, len, f), len);
    assert_int_equal(fclose(f), 0);
    assert_int_equal(chmod(d->path, 0600), 0);
}

/* Every other length and every damaged byte is refused, and no secret is returned. */
TEST_WITH(damaged_identity_is_refused, set_up, tear_down)
{
    struct disk *d = *state;
    static const struct hth_secret zero;
    struct hth_secret secret;
    char why[HTH_IDENTITY_WHY_MAX];
    struct hth_blob *blob;
    assert_ok(hth_identity_load(d->path, &secret, NULL, why));
    assert_ok(hth_file_read(d->env, d->path, 1000, &blob));
    assert_ok(hth_identity_parse(blob->data, blob->size, &secret));
    for (size_t len = 0; len < blob->size; len++)
        assert_err(HTH_E_BAD_KEY, hth_identity_parse(blob->data, len, &secret));
    for (size_t i = 0; i < blob->size; i++) {
        blob->data[i] ^= 1;
        assert_err(HTH_E_BAD_KEY, hth_identity_parse(blob->data, blob->size, &secret));
        assert_memory_equal(secret.b, zero.b, sizeof(zero.b));
        blob->data[i] ^= 1;
    }
    put_key_file(d, blob->data, blob->size - 1);
    assert_err(HTH_E_BAD_KEY, hth_identity_load(d->path, &secret, NULL, why));
    assert_non_null(strstr(why, "damaged"));
    put_key_file(d, "", 0);
    assert_err(HTH_E_BAD_KEY, hth_identity_load(d->path, &secret, NULL, why));
    char big[5000];
    memset(big, 'a', sizeof(big));
    memcpy(big, blob->data, blob->size);
    put_key_file(d, big, sizeof(big));
    assert_err(HTH_E_BAD_KEY, hth_identity_load(d->path, &secret, NULL, why));
    hth_blob_unref(blob);
}

struct racer {
    const char *path;
    pthread_t thread;
    pthread_barrier_t *start;
    struct hth_secret secret;
    enum hth_err err;
    bool created;
};

static void *race(void *arg)
{
    struct racer *r = arg;
    char why[HTH_IDENTITY_WHY_MAX];
    pthread_barrier_wait(r->start);
    r->err = hth_identity_load(r->path, &r->secret, &r->created, why);
    return NULL;
}

/* Four threads that start together get one key, made by one of them. */
TEST_WITH(racing_starts_get_one_identity, set_up, tear_down)
{
    struct disk *d = *state;
    struct racer r[4];
    pthread_barrier_t start;
    int created = 0;
    pthread_barrier_init(&start, NULL, 4);
    for (int i = 0; i < 4; i++) {
        r[i] = (struct racer){.path = d->path, .start = &start};
        assert_int_equal(pthread_create(&r[i].thread, NULL, race, &r[i]), 0);
    }
    for (int i = 0; i < 4; i++)
        pthread_join(r[i].thread, NULL);
    for (int i = 0; i < 4; i++) {
        assert_ok(r[i].err);
        assert_memory_equal(r[i].secret.b, r[0].secret.b, sizeof(r[0].secret.b));
        created += r[i].created;
    }
    assert_int_equal(created, 1);
    pthread_barrier_destroy(&start);
}

/* ---- crypto: published vectors -------------------------------------------------------------- */

TEST(sha256_gives_fips_vectors)
{
    static const struct {
        const char *text, *hash;
    } kat[] = {
        {"", "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"},
        {"abc", "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"},
        {"abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq",
         "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1"},
    };
    struct hth_hash h;
    char hex[65];
    (void)state;
    for (size_t i = 0; i < HTH_ARRAY_LEN(kat); i++) {
        hth_crypto_openssl()->hash(kat[i].text, strlen(kat[i].text), &h);
        hth_hex(h.b, 32, hex);
        assert_string_equal(hex, kat[i].hash);
    }
    char *million = hth_calloc(1, 1000000);
    memset(million, 'a', 1000000);
    hth_crypto_openssl()->hash(million, 1000000, &h);
    hth_hex(h.b, 32, hex);
    assert_string_equal(hex, "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
    hth_free(million);
}

static const struct {
    const char *secret, *pub, *sig;
    uint8_t msg[2];
    size_t len;
} rfc8032[] = {
    {"9d61b19deffd5a60ba844af492ec2cc44449c5697b326919703bac031cae7f60",
     "d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a",
     "e5564300c360ac729086e2cc806e828a84877f1eb8e5d974d873e065224901555fb8821590a33bacc61e39701cf9"
     "b46bd25bf5f0595bbe24655141438e7a100b",
     {0},
     0},
    {"4ccd089b28ff96da9db6c346ec114e0f5b8a319f35aba624da8cf6ed4fb8a6fb",
     "3d4017c3e843895a92b70aa74d1b7ebc9c982ccf2ec4968cc0cd55f12af4660c",
     "92a009a9f0d4cab8720e820b5f642540a2b27b5416503f8fb3762223ebdb69da085ac1e43e15996e458f3613d0f1"
     "1d8c387b2eaeb4302aeeb00d291612bb0c00",
     {0x72},
     1},
    {"c5aa8df43f9f837bedb7442f31dcb7b166d38535076f094b85ce3a2e0b4458f7",
     "fc51cd8e6218a1a38da47ed00230f0580816ed13ba3303ac5deb911548908025",
     "6291d657deec24024827e69c3abe01a30ce548a284743a445e3680d7db5ac3ac18ff9b538d16f290ae67f760984d"
     "c6594a7c15e9716ed28dc027beceea1ec40a",
     {0xaf, 0x82},
     2},
};

/* Also from several threads at once: contexts are per thread. */
static void *ed25519_all(void *arg)
{
    const struct hth_crypto *c = hth_crypto_openssl();
    int *failures = arg;
    for (int round = 0; round < 30; round++) {
        size_t i = (size_t)round % HTH_ARRAY_LEN(rfc8032);
        struct hth_secret secret;
        struct hth_pubkey pub, want;
        uint8_t sig[HTH_SIG_LEN], want_sig[HTH_SIG_LEN];
        *failures += hth_unhex(rfc8032[i].secret, secret.b, 32) != HTH_OK;
        *failures += hth_unhex(rfc8032[i].pub, want.b, 32) != HTH_OK;
        *failures += hth_unhex(rfc8032[i].sig, want_sig, 64) != HTH_OK;
        c->public_of(&secret, &pub);
        *failures += memcmp(pub.b, want.b, 32) != 0;
        c->sign(&secret, rfc8032[i].msg, rfc8032[i].len, sig);
        *failures += memcmp(sig, want_sig, 64) != 0;
        *failures += c->verify(&pub, rfc8032[i].msg, rfc8032[i].len, sig) != HTH_OK;
        sig[round] ^= 4;
        *failures += c->verify(&pub, rfc8032[i].msg, rfc8032[i].len, sig) != HTH_E_BAD_SIGNATURE;
        sig[round] ^= 4;
        *failures += c->verify(&pub, "other", 5, sig) != HTH_E_BAD_SIGNATURE;
        pub.b[round] ^= 2;
        *failures += c->verify(&pub, rfc8032[i].msg, rfc8032[i].len, sig) != HTH_E_BAD_SIGNATURE;
    }
    return NULL;
}

TEST(ed25519_gives_rfc8032_vectors)
{
    pthread_t thread[3];
    int failures[4] = {0};
    (void)state;
    for (int i = 0; i < 3; i++)
        assert_int_equal(pthread_create(&thread[i], NULL, ed25519_all, &failures[i]), 0);
    ed25519_all(&failures[3]);
    for (int i = 0; i < 3; i++)
        pthread_join(thread[i], NULL);
    for (int i = 0; i < 4; i++)
        assert_int_equal(failures[i], 0);
}

/* The file of a lock tells others its holder's process and note, if it has both. */
static void read_notes(struct disk *d)
{
    static const struct {
        const char *text, *note; /* NULL: refused */
    } cases[] = {{"hearth serve, process 42\n10.0.0.7:4700 ab\n", "10.0.0.7:4700 ab"},
                 {"hearth serve, process 42\nan unfinished line", "an unfinished line"},
                 {"hearth serve, process 42\n", NULL},
                 {"hearth serve, process 42", NULL},
                 {"\nnote, process 42\n", NULL},
                 {"", NULL}};
    char note[HTH_LOCK_NOTE_MAX], holder[HTH_LOCK_HOLDER_MAX], long_note[HTH_LOCK_NOTE_MAX + 1];
    struct hth_lock *lock;
    long pid;
    for (size_t i = 0; i < HTH_ARRAY_LEN(cases); i++) {
        FILE *file = fopen(d->path, "w");
        assert_non_null(file);
        fputs(cases[i].text, file);
        assert_int_equal(fclose(file), 0);
        assert_err(cases[i].note != NULL ? HTH_OK : HTH_E_MALFORMED,
                   hth_lock_read(d->path, &pid, note));
        if (cases[i].note != NULL)
            assert_string_equal(note, cases[i].note);
    }
    assert_ok(hth_lock_take(d->path, "hearth three", &lock, holder));
    assert_err(HTH_E_MALFORMED, hth_lock_read(d->path, &pid, note)); /* no note yet */
    hth_lock_note(lock, "one");
    hth_lock_note(lock, "two");
    assert_ok(hth_lock_read(d->path, &pid, note));
    assert_string_equal(note, "two");
    assert_int_equal(pid, getpid());
    memset(long_note, 'x', HTH_LOCK_NOTE_MAX);
    long_note[HTH_LOCK_NOTE_MAX] = '\0';
    hth_lock_note(lock, long_note);
    assert_err(HTH_E_MALFORMED, hth_lock_read(d->path, &pid, note));
    hth_lock_free(lock);
    assert_err(HTH_E_NO_FILE, hth_lock_read("/nonexistent/lock", &pid, note));
}

/* One holder at a time; the file's existence or content is no lock. */
TEST_WITH(lock_has_one_holder, set_up, tear_down)
{
    struct disk *d = *state;
    struct hth_lock *one, *two;
    char holder[HTH_LOCK_HOLDER_MAX], want[HTH_LOCK_HOLDER_MAX];
    assert_ok(hth_lock_take(d->path, "hearth one", &one, holder));
    assert_non_null(one);
    assert_string_equal(holder, "");
    assert_err(HTH_E_BUSY, hth_lock_take(d->path, "hearth two", &two, holder));
    assert_null(two);
    snprintf(want, sizeof(want), "hearth one, process %ld", (long)getpid());
    assert_string_equal(holder, want);
    /* Another program wrote into the file: the printable beginning is reported, as much as fits. */
    FILE *file = fopen(d->path, "w");
    assert_non_null(file);
    fprintf(file, "me%0100d", 0);
    assert_int_equal(fclose(file), 0);
    assert_err(HTH_E_BUSY, hth_lock_take(d->path, "hearth two", &two, holder));
    assert_int_equal(strlen(holder), HTH_LOCK_HOLDER_MAX - 1);
    file = fopen(d->path, "w");
    assert_non_null(file);
    fputs("\x1b[31mme", file);
    assert_int_equal(fclose(file), 0);
    assert_err(HTH_E_BUSY, hth_lock_take(d->path, "hearth two", &two, holder));
    assert_string_equal(holder, "");
    hth_lock_free(one);
    assert_ok(hth_lock_take(d->path, "hearth two", &two, holder));
    assert_non_null(two);
    hth_lock_free(two);
    assert_err(HTH_E_IO, hth_lock_take(d->dir, "hearth one", &one, holder)); /* a folder */
    assert_null(one);
    /* A link to another file of ours, which stays as it is. */
    char *link = hth_asprintf("%s/link", d->dir);
    char text[64] = "";
    assert_int_equal(symlink(d->path, link), 0);
    assert_err(HTH_E_IO, hth_lock_take(link, "hearth three", &one, holder));
    assert_null(one);
    file = fopen(d->path, "r");
    assert_non_null(file);
    assert_non_null(fgets(text, sizeof(text), file));
    fclose(file);
    assert_string_equal(strstr(text, "hearth two"), text);
    hth_free(link);
    read_notes(d);
    /* No folder can be made below a file. */
    char *below = hth_asprintf("%s/lock", d->path);
    assert_err(HTH_E_NO_FILE, hth_lock_take(below, "hearth one", &one, holder));
    assert_null(one);
    hth_free(below);
}

/* Made by Python's hashlib and cryptography from the format in backup.h. */
TEST(backup_has_golden_bytes)
{
    (void)state;
    static const char golden[] =
        "hearth-backup-v1\n000102030405060708090a0b0c0d0e0f101112131415161718191a1b"
        "8a88e3dd7409f195fd52db2d3cba5d72ca6709bf1d94121bf3748801b40f6f5c"
        "900d6be37c0deb41a5a53f1bf4fedfab0190d55aabbb082d202ac1a3b7931777"
        "9320e2dd268e34a47b9c4d28441d8c90\n";
    struct hth_secret got, ones, none = {{0}};
    struct hth_pubkey pub, want;
    char text[HTH_BACKUP_TEXT_MAX];
    size_t len = strlen(golden);
    memset(ones.b, 1, sizeof(ones.b));
    assert_ok(hth_backup_read(golden, len, "open sesame", 11, &got));
    assert_memory_equal(&got, &ones, sizeof(got));
    for (size_t n = 0; n < len - 1; n++)
        assert_err(n < 18 ? HTH_E_BAD_MAGIC : HTH_E_TRUNCATED, hth_backup_peek(golden, n, &pub));
    memcpy(text, golden, len + 1);
    text[15] = '2';
    assert_err(HTH_E_VERSION, hth_backup_peek(text, len, &pub));
    text[15] = '1';
    text[20] = 'x';
    assert_err(HTH_E_MALFORMED, hth_backup_peek(text, len, &pub));
    /* Each copy has its own salt; a changed digit of the public key is found by the tag. */
    assert_ok(hth_backup_write(&ones, "another one", 11, text));
    assert_memory_not_equal(text + 17, golden + 17, 32);
    assert_ok(hth_backup_peek(text, strlen(text), &pub));
    hth_crypto_openssl()->public_of(&ones, &want);
    assert_memory_equal(&pub, &want, sizeof(pub));
    text[17 + 56] ^= 1;
    assert_err(HTH_E_BAD_KEY, hth_backup_read(text, strlen(text), "another one", 11, &got));
    assert_memory_equal(&got, &none, sizeof(got));
}

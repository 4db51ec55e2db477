/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Hostile clients against a live host while a trainer uses it: connections that are held, that say
 * garbage, that say nothing. The host's memory stays bounded and the trainer goes on.
 */
#define _XOPEN_SOURCE 700
#include "integration/toy.h"
#include "support/suite.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#define HELD_MAX    2000
#define SOURCES     10 /* source addresses, so that the limit per address is not reached */
#define GARBAGE_MAX 400

/* A busy host keeps 256 MiB of results for retried backwards (hth_server_opts), which the trainer
 * alone fills: 430 MB in all, as measured. Strangers may add a quarter of a gigabyte. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define RSS_KIB_MAX (2048 * 1024L) /* a sanitizer keeps what was freed */
#else
#define RSS_KIB_MAX (700 * 1024L)
#endif

/* Raises the limit of descriptors; returns how many connections this process can hold. */
static size_t raise_descriptors(void)
{
    struct rlimit limit;
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &limit), 0);
    limit.rlim_cur = HTH_MIN(limit.rlim_max, (rlim_t)(HELD_MAX + 200));
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &limit), 0);
    return (size_t)limit.rlim_cur - 100;
}

static int fds[HELD_MAX];
static size_t held;

static void release(void)
{
    while (held > 0)
        close(fds[--held]);
}

static void hold(struct place *p, const char *addr, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        const char *from = place_text(p, "127.%u.%u.%zu", p->x, p->y, 100 + i % SOURCES);
        fds[held] = place_dial(addr, from);
        held += fds[held] >= 0;
    }
}

/* Sends bytes that look like TLS, like our frames, like HTTP, or random ones. */
static void say_garbage(struct place *p, const char *addr, unsigned i)
{
    static const char *const words[] = {
        "\x16\x03\x01\xff\xff\x01",         "GET / HTTP/1.1\r\n\r\n",
        "HRTH\x01\x00\xff\xff\xff\xff",     "\x16\x03\x03\x40\x00\x02",
        "\xff\xff\xff\xff\xff\xff\xff\xff", "SSH-2.0-x\r\n"};
    char bytes[2048];
    const char *word = words[i % HTH_ARRAY_LEN(words)];
    const char *from = place_text(p, "127.%u.%u.%u", p->x, p->y, 200 + i % SOURCES);
    size_t len = strlen(word);
    memset(bytes, (int)(i * 37 % 256), sizeof(bytes));
    memcpy(bytes, word, len);
    int fd = place_dial(addr, from);
    assert_true(fd >= 0);
    /* The host may accept or refuse the bytes; only its survival is tested. */
    if (send(fd, bytes, sizeof(bytes), MSG_NOSIGNAL) < 0)
        assert_true(errno == EAGAIN || errno == EPIPE || errno == ECONNRESET || errno == ENOTCONN);
    close(fd);
}

static void wait_for_progress(struct toy *t, double steps)
{
    struct wait w = {0};
    double goal = toy_step(t, "trainer") + steps;
    while (toy_step(t, "trainer") < goal) {
        assert_true(proc_runs(t->trainer));
        wait_step(&w, "progress of the trainer");
    }
}

/* Closes the connections of a failed test, which would fail the next one. */
static int setup(void **state)
{
    static struct rlimit first;
    release();
    if (first.rlim_max == 0 && getrlimit(RLIMIT_NOFILE, &first) != 0)
        return -1;
    return setrlimit(RLIMIT_NOFILE, &first) == 0 ? place_setup(state) : -1;
}

TEST_WITH(test_a_host_outlives_strangers, setup, place_teardown)
{
    struct place *p = *state;
    struct toy t;
    struct toy_metrics m;
    struct wait w = {0};
    size_t room = raise_descriptors(), before, most;
    toy_init(&t, p, 1000000);
    toy_start_node(&t);
    toy_start_host(&t, 0);
    toy_start_trainer(&t, "trainer", NULL);
    proc_wait_text(t.trainer, "test after 100 updates");

    before = proc_descriptors(t.host[0]);
    hold(p, t.addr[2], HTH_MIN(room, (size_t)HELD_MAX));
    assert_true(held >= HTH_MIN(room, (size_t)HELD_MAX) / 2);
    for (unsigned i = 0; i < GARBAGE_MAX; i++)
        say_garbage(p, t.addr[2], i);
    wait_for_progress(&t, 200);
    most = proc_descriptors(t.host[0]);
    assert_true(most > before + 200);
    assert_true(proc_runs(t.host[0]));
    assert_true(proc_rss_kib(t.host[0]) < RSS_KIB_MAX);

    /* The host closes silent connections after the time for a handshake. Its descriptors are
     * counted, because our kernel may think that a closed connection is open. */
    while (proc_descriptors(t.host[0]) > before + 50)
        wait_step(&w, "the end of the silent connections");
    release();
    wait_for_progress(&t, 200);
    assert_true(proc_rss_kib(t.host[0]) < RSS_KIB_MAX);

    proc_signal(t.trainer, SIGINT);
    assert_int_equal(proc_wait(t.trainer), 130);
    toy_metrics_load(&t, "trainer", &m);
    assert_true(toy_number(m.last_progress, "not_finite") == 0);
    assert_true(toy_number(m.last_progress, "accuracy") > 0.9);
    assert_true(toy_number(m.last_progress, "experts_live") == 4);
    toy_metrics_clear(&m);
    place_end(p);
}

/* A host with room for few connections must refuse the others, not end. */
TEST_WITH(test_few_descriptors, setup, place_teardown)
{
    struct place *p = *state;
    struct toy t;
    struct rlimit limit, few;
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &limit), 0);
    toy_init(&t, p, 150);
    toy_start_node(&t);
    few = (struct rlimit){.rlim_cur = 128, .rlim_max = limit.rlim_max};
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &few), 0);
    toy_start_host(&t, 0);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &limit), 0);
    hold(p, t.addr[2], 300);
    assert_true(held > 150);
    assert_true(proc_runs(t.host[0]));
    release();
    toy_start_trainer(&t, "trainer", NULL);
    assert_int_equal(proc_wait(t.trainer), 0);
    place_end(p);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* test_joining.c: joining a node that comes late, and through peers that a process remembers. */
#include "integration/toy.h"
#define SUITE_RUN place_run_at_once
#include "support/suite.h"

#include <signal.h>

static struct proc *start_host(struct toy *t, const char *more)
{
    return START(t->place, "host", "serve", "--run", t->run, "--listen", t->addr[2], "--dir",
                 place_path(t->place, "host"), "--threads", "1", "--experts", "8", more,
                 more != NULL ? t->addr[1] : NULL);
}

PLACE_TEST(joining_is_tried_until_the_node_comes)
{
    struct place *p = *state;
    struct toy t;
    toy_init(&t, p, 10);
    struct proc *host = start_host(&t, "--join");
    proc_wait_text(host, place_text(p, "joining %s ...", t.addr[1]));
    proc_wait_text(host, "neither UDP nor TCP is answered");
    proc_wait_text(host, "trying again in 2 s");
    toy_start_node(&t);
    proc_wait_text(host, "joined in");
    proc_wait_text(host, "serving 8 experts");
    place_end(p);
}

PLACE_TEST(once_ends_when_nothing_answers)
{
    struct place *p = *state;
    struct toy t;
    toy_init(&t, p, 10);
    struct proc *node = START(p, "node", "node", "--once", "--join", t.addr[1], "--listen",
                              t.addr[2], "--dir", place_path(p, "node"));
    assert_int_equal(proc_wait(node), 4);
    proc_must_say(node, hth_err_text(HTH_E_JOIN_NOTHING_LISTENS));
    assert_false(proc_said(node, "trying again"));
    place_end(p);
}

static bool remembers(struct place *p, const char *peer, const char *addr)
{
    char *text = place_read(place_path(p, place_text(p, "%s/peers", peer)), NULL);
    bool found = text != NULL && strstr(text, addr) != NULL;
    free(text);
    return found;
}

/* Each of these processes ends or is killed and starts again, the second time without --join. */
PLACE_TEST(all_remember_the_peers_they_met)
{
    struct place *p = *state;
    struct toy t;
    toy_init(&t, p, 20);
    toy_start_node(&t);
    struct proc *host = start_host(&t, "--join");
    proc_wait_text(host, "serving 8 experts");
    toy_start_trainer(&t, "trainer", NULL);
    assert_int_equal(proc_wait(t.trainer), 0);

    /* Half a minute at most: not by the save of each minute. */
    struct wait w = {.begin_us = place_now_us() - (WAIT_S - 30) * INT64_C(1000000)};
    while (!remembers(p, "node", t.addr[2]))
        wait_step(&w, "the node to know the host");
    proc_signal(t.node, SIGKILL);
    proc_wait(t.node);
    t.node = START(p, "node", "node", "--network", "toy", "--listen", t.addr[1], "--dir",
                   place_path(p, "node"));
    proc_wait_text(t.node, "joined in");
    proc_signal(host, SIGKILL);
    proc_wait(host);
    host = start_host(&t, NULL);
    proc_wait_text(host, "joined in");
    proc_wait_text(host, "serving 8 experts");
    struct proc *trainer = START(p, "again", "train", "--run", t.run, "--listen", t.addr[4],
                                 "--dir", place_path(p, "trainer"), "--resume");
    proc_wait_text(trainer, "joined in");
    assert_int_equal(proc_wait(trainer), 0);
    struct proc *status =
        START(p, "status", "status", "--wait", "10s", "--dir", place_path(p, "host"));
    assert_int_equal(proc_wait(status), 0);
    proc_must_say(status, "run 'toy'");
    place_end(p);
}

/* Without --dir and --join, processes of one machine find one another. */
PLACE_TEST(processes_of_a_machine_find_one_another)
{
    struct place *p = *state;
    struct toy t;
    toy_init(&t, p, 10);
    struct proc *status = START(p, "status", "status");
    assert_int_equal(proc_wait(status), 2);
    proc_must_say(status, "no peer is remembered");
    t.node = START(p, "node", "node", "--listen", t.addr[1]);
    proc_wait_text(t.node, "a new swarm");
    struct proc *host = START(p, "host", "serve", "--run", t.run, "--listen", t.addr[2],
                              "--threads", "1", "--experts", "8");
    proc_wait_text(host, "joining through 1 remembered peer ...");
    proc_wait_text(host, "you are the first of run 'toy'");
    proc_wait_text(host, "serving 8 experts");
    status = START(p, "status", "status", "--wait", "10s");
    assert_int_equal(proc_wait(status), 0);
    proc_must_say(status, "run 'toy'");
    assert_int_equal(proc_stop(host), 0);
    assert_int_equal(proc_stop(t.node), 0);
    host = START(p, "host", "serve", "--run", t.run, "--threads", "1", "--experts", "8");
    proc_wait_text(host, "listening  127.0.0.1:4"); /* the run has no owner */
    proc_wait_text(host, place_text(p, "1 remembered peer does not answer (%s)",
                                    place_path(p, "hearth/toy/serve/peers")));
    proc_wait_text(host, "serving 8 experts");
    place_end(p);
}

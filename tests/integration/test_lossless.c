/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_lossless.c: nothing that was learnt is lost by a flag, a terminal that closes or a restart,
 * and a program says where it is. And all that is printed is JSON where that is asked for.
 */
#define _XOPEN_SOURCE 700
#include "integration/toy.h"
#define SUITE_RUN place_run_at_once
#include "support/suite.h"

#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

static void assert_same_file(const char *path, const char *before, size_t before_len)
{
    size_t len;
    char *after = place_read(path, &len);
    assert_non_null(after);
    assert_int_equal(len, before_len);
    assert_memory_equal(after, before, len);
    free(after);
}

static struct proc *train_local(struct toy *t, const char *dir, const char *flag)
{
    return START(t->place, "local", "train", "--local", "--run", t->run, "--threads", "1", "--dir",
                 dir, flag, "--steps", "60");
}

PLACE_TEST(test_a_model_is_not_replaced_unasked)
{
    struct place *p = *state;
    struct toy t;
    size_t len;
    toy_init(&t, p, 1000);
    const char *dir = place_path(p, "run"), *trunk = place_path(p, "run/trunk.safetensors");
    assert_int_equal(proc_wait(train_local(&t, dir, "--threads=1")), 0);
    char *before = place_read(trunk, &len);
    assert_non_null(before);
    static const char *const flags[] = {"--threads=1", "--without-experts"};
    for (size_t i = 0; i < HTH_ARRAY_LEN(flags); i++) {
        struct proc *again = train_local(&t, dir, flags[i]);
        assert_int_equal(proc_wait(again), 2);
        proc_must_say(again, place_text(p, "%s is of an earlier run: add --resume", trunk));
        proc_must_say(again, "give another --dir");
    }
    struct proc *swarm = START(p, "swarm", "train", "--run", t.run, "--join", t.addr[1], "--dir",
                               dir, "--bootstrap");
    assert_int_equal(proc_wait(swarm), 2);
    assert_same_file(trunk, before, len);
    free(before);

    /* A host's folder has experts and no trunk. */
    assert_int_equal(unlink(trunk), 0);
    assert_int_equal(proc_wait(train_local(&t, dir, "--threads=1")), 2);
    assert_int_equal(proc_wait(train_local(&t, dir, "--without-experts")), 0);
    place_end(p);
}

/* The line "test: 83.10 % right, loss 0.4712" of a trainer. */
static char *verdict_of(struct proc *proc)
{
    char *text = place_read(proc->out, NULL), *line = strstr(text, "test: ");
    assert_non_null(line);
    line = strndup(line, strcspn(line, "\n"));
    free(text);
    return line;
}

PLACE_TEST(test_local_experts_are_kept_as_a_host_keeps_them)
{
    struct place *p = *state;
    struct toy t;
    toy_init(&t, p, 1000);
    const char *dir = place_path(p, "run");
    struct proc *first = train_local(&t, dir, "--threads=1");
    assert_int_equal(proc_wait(first), 0);
    proc_must_say(first, place_text(p, "saved %s/trunk.safetensors (update 60)", dir));
    assert_int_equal(place_count(p, "run/experts", ".safetensors"), 8);

    struct proc *second = train_local(&t, dir, "--resume");
    assert_int_equal(proc_wait(second), 0);
    proc_must_say(second, place_text(p, "continuing %s/trunk.safetensors from update 60", dir));
    proc_must_say(second, "trunk.safetensors has update 60 already");
    char *before = verdict_of(first), *after = verdict_of(second);
    assert_string_equal(before, after);
    free(before);
    free(after);

    toy_start_node(&t);
    struct proc *host = START(p, "host", "serve", "--run", t.run, "--join", t.addr[1], "--listen",
                              t.addr[2], "--dir", dir, "--experts", TOY_HALF_1);
    proc_wait_text(host, "serving 4 experts (4 from checkpoints)");
    assert_int_equal(proc_stop(host), 0);

    /* Without its experts the trunk is worth nothing, so new ones are never put in their place. */
    assert_int_equal(unlink(place_path(p, "run/experts/ffn0.1.2.safetensors")), 0);
    struct proc *third = train_local(&t, dir, "--resume");
    assert_int_equal(proc_wait(third), 1);
    proc_must_say(third, "its expert ffn0.1.2 can't be loaded from ");

    /* The copies that the first save left have it. The file is one of a killed process. */
    const char *left = "run/experts/ffn0.1.2.safetensors.tmp-4194305-1";
    place_write(p, left, "half", 4);
    struct proc *fourth = train_local(&t, dir, "--roll-back=9h");
    assert_int_equal(proc_wait(fourth), 2);
    proc_must_say(fourth, "no copy in ");
    proc_must_say(fourth, "removed 1 unfinished files of processes that were killed");
    assert_false(place_exists(p, left));
    struct proc *fifth = train_local(&t, dir, "--roll-back=10ms");
    assert_int_equal(proc_wait(fifth), 0);
    proc_must_say(fifth, "rolled back 9 checkpoints, to what they held ");
    proc_must_say(fifth, place_text(p, "continuing %s/trunk.safetensors from update ", dir));
    assert_true(place_exists(p, "run/trunk.safetensors.undone"));
    place_end(p);
}

/* The shell may send the signal again. */
static void hang_up(struct proc *proc)
{
    proc_signal(proc, SIGSTOP);
    proc_signal(proc, SIGHUP);
    proc_signal(proc, SIGCONT);
    if (proc_runs(proc))
        proc_signal(proc, SIGHUP);
}

PLACE_TEST(test_a_closed_terminal_drains_every_role)
{
    struct place *p = *state;
    struct toy t;
    toy_init(&t, p, 1000000);
    toy_start_node(&t);
    toy_start_host(&t, 0);
    toy_start_trainer(&t, "trainer", NULL);
    proc_wait_text(t.trainer, "test after 100 updates");
    hang_up(t.trainer);
    assert_int_equal(proc_wait(t.trainer), 130);
    proc_must_say(t.trainer, "stopping: finishing the flights");
    proc_must_say(t.trainer,
                  place_text(p, "saved %s (update ", place_path(p, "trainer/trunk.safetensors")));
    hang_up(t.host[0]);
    assert_int_equal(proc_wait(t.host[0]), 0);
    proc_must_say(t.host[0], "draining: ");
    assert_int_equal(place_count(p, "host0/experts", ".safetensors"), 4);
    hang_up(t.node);
    assert_int_equal(proc_wait(t.node), 0);

    const char *line = place_text(p, "trap '' HUP; exec '%s' node --listen %s --dir '%s'",
                                  HTH_TEST_PROGRAM, t.addr[1], place_path(p, "nohup"));
    struct proc *nohup =
        place_start_program(p, "/bin/sh", "nohup", (const char *const[]){"-c", line, NULL});
    proc_wait_text(nohup, "listening");
    proc_signal(nohup, SIGHUP);
    assert_int_equal(proc_stop(nohup), 0); /* it was there to be stopped */
    place_end(p);
}

static size_t assert_all_json(const char *path)
{
    char *text = place_read(path, NULL), *rest = text, *line;
    size_t lines = 0;
    assert_non_null(text);
    while ((line = strtok_r(rest, "\n", &rest)) != NULL) {
        static const char *const keys[] = {"time", "level", "sub", "node", "msg"};
        json_error_t error;
        json_t *object = json_loads(line, JSON_REJECT_DUPLICATES, &error);
        if (object == NULL)
            fail_msg("%s: %s in %s", path, error.text, line);
        for (size_t i = 0; i < HTH_ARRAY_LEN(keys); i++)
            if (!json_is_string(json_object_get(object, keys[i])))
                fail_msg("%s: no %s in %s", path, keys[i], line);
        json_decref(object);
        lines++;
    }
    free(text);
    return lines;
}

PLACE_TEST(test_all_that_is_printed_is_json_if_asked)
{
    struct place *p = *state;
    struct toy t;
    toy_init(&t, p, 200);
    t.node = START(p, "node", "node", "--network", "toy", "--listen", t.addr[1], "--dir",
                   place_path(p, "node"), "--log-format", "json");
    proc_wait_text(t.node, "listening");
    t.host[0] = START(p, "host", "serve", "--run", t.run, "--join", t.addr[1], "--listen",
                      t.addr[2], "--dir", place_path(p, "host0"), "--experts", "8", "--log-format",
                      "json", "--log", "debug");
    proc_wait_text(t.host[0], "serving 8 experts");
    toy_start_trainer(&t, "trainer",
                      (const char *const[]){"--log-format", "json", "--log", "debug", NULL});
    assert_int_equal(proc_wait(t.trainer), 0);
    assert_int_equal(proc_stop(t.host[0]), 0);
    assert_int_equal(proc_stop(t.node), 0);
    struct proc *refused = START(p, "refused", "train", "--local", "--run", t.run, "--dir",
                                 place_path(p, "trainer"), "--log-format", "json");
    assert_int_equal(proc_wait(refused), 2);
    struct proc *const all[] = {t.node, t.host[0], t.trainer, refused};
    for (size_t i = 0; i < HTH_ARRAY_LEN(all); i++)
        assert_true(assert_all_json(all[i]->out) + assert_all_json(all[i]->err) > 0);
    place_end(p);
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * env_conformance.h: the promises of core/env.h, as tests that run over any environment.
 *
 * The same functions run over the simulated and the real environment, so that code tested in one
 * behaves alike in the other. A runner provides two environments that can reach each other (they
 * may be one), a way to let time pass, and an address to listen on.
 */
#ifndef HTH_TESTS_SUPPORT_ENV_CONFORMANCE_H
#define HTH_TESTS_SUPPORT_ENV_CONFORMANCE_H

#include "core/env.h"

struct conform {
    struct hth_env *a;       /* dials */
    struct hth_env *b;       /* listens */
    struct hth_addr listen;  /* of b, port 0 */
    const char *file_prefix; /* for paths, with its slash */
    /* Lets the world run until done(arg), or max_us of its time have passed; returns done(arg). */
    bool (*run)(struct conform *c, bool (*done)(void *arg), void *arg, int64_t max_us);
    void *runner;
};

/* Each test makes and frees all it needs, and fails through cmocka's asserts. */
#define CONFORMANCE_MAP(X)                                                                         \
    X(timers)                                                                                      \
    X(posts)                                                                                       \
    X(jobs)                                                                                        \
    X(echo)                                                                                        \
    X(level_triggered)                                                                             \
    X(strangers_say_little)                                                                        \
    X(failed_dials)                                                                                \
    X(ends)                                                                                        \
    X(closing_in_callbacks)                                                                        \
    X(unattached)                                                                                  \
    X(pressure)                                                                                    \
    X(listeners)                                                                                   \
    X(files)                                                                                       \
    X(payloads)

#define CONFORMANCE_DECLARE(name) void conform_##name(struct conform *c);
CONFORMANCE_MAP(CONFORMANCE_DECLARE)
#undef CONFORMANCE_DECLARE

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * suite.h: included by the file of a test program, which is then complete: TEST(name) and its body
 * are a test, and main runs those of the file in their order. A file that defines SUITE_RUN before
 * has its list run by that function.
 */
#ifndef HTH_TESTS_SUPPORT_SUITE_H
#define HTH_TESTS_SUPPORT_SUITE_H

#include "support/test.h"

static struct CMUnitTest hth_suite[64];
static size_t hth_suite_count;
#ifndef SUITE_RUN
static CMFixtureFunction hth_suite_up, hth_suite_down;
#define SUITE_RUN(tests, count)                                                                    \
    _cmocka_run_group_tests("tests", tests, count, hth_suite_up, hth_suite_down)
#endif

static void hth_suite_add(const char *name, CMUnitTestFunction run, CMFixtureFunction up,
                          CMFixtureFunction down)
{
    if (hth_suite_count < HTH_ARRAY_LEN(hth_suite))
        hth_suite[hth_suite_count] = (struct CMUnitTest){name, run, up, down, NULL};
    hth_suite_count++;
}

/* With functions that make its *state and free it. */
#define TEST_WITH(name, up, down)                                                                  \
    static void name(void **state);                                                                \
    __attribute__((constructor)) static void add_##name(void)                                      \
    {                                                                                              \
        hth_suite_add(#name, name, up, down);                                                      \
    }                                                                                              \
    static void name(void **state)
#define TEST(name) TEST_WITH(name, NULL, NULL)
/* With functions that make one *state for all tests, and free it. */
#define SUITE_WITH(up, down)                                                                       \
    __attribute__((constructor)) static void add_suite(void)                                       \
    {                                                                                              \
        hth_suite_up = up;                                                                         \
        hth_suite_down = down;                                                                     \
    }

int main(void)
{
    if (hth_suite_count > HTH_ARRAY_LEN(hth_suite)) {
        fprintf(stderr, "%zu tests, and suite.h has room for %zu\n", hth_suite_count,
                HTH_ARRAY_LEN(hth_suite));
        return 1;
    }
    return SUITE_RUN(hth_suite, hth_suite_count);
}

#endif

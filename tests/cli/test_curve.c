/* SPDX-License-Identifier: Apache-2.0 */
/* test_curve.c: curves of made-up lines: resumed runs, pauses, torn lines, tests between points. */
#include "cli/curve.h"
#include "support/suite.h"

#define P(t, step, samples, loss)                                                                  \
    "{\"kind\":\"progress\",\"t\":" #t ",\"step\":" #step ",\"samples\":" #samples                 \
    ",\"loss\":" #loss "}\n"
#define E(t, step, loss)                                                                           \
    "{\"kind\":\"eval\",\"t\":" #t ",\"step\":" #step ",\"samples\":10000,\"loss\":" #loss "}\n"
#define END "{\"kind\":\"end\",\"t\":1,\"step\":9,\"code\":0}\n"

/* Each point is {steps, samples, time, loss}. */
struct expected {
    const char *what, *text;
    size_t train_count, test_count;
    double train[4][4], test[4][4];
    uint64_t lines_bad;
};

static const struct expected cases[] = {
    {"nothing", "", 0, 0, {{0}}, {{0}}, 0},
    {"a run",
     P(100, 0, 0, 0) P(101, 10, 320, 2.5) P(103, 30, 960, 1.5) END,
     2,
     0,
     {{10, 320, 1, 2.5}, {30, 960, 3, 1.5}},
     {{0}},
     0},
    {"tests between and after points",
     P(100, 10, 320, 2) E(101, 15, 1.9) P(102, 20, 640, 1.8) E(104, 22, 1.7),
     2,
     2,
     {{10, 320, 0, 2}, {20, 640, 2, 1.8}},
     {{15, 480, 1, 1.9}, {22, 640, 4, 1.7}},
     0},
    {"a test before the first point",
     E(100, 5, 3) P(101, 10, 320, 2),
     1,
     1,
     {{10, 320, 1, 2}},
     {{5, 160, 0, 3}},
     0},
    {"a step said again",
     P(100, 10, 320, 2) P(101, 10, 320, 2.1),
     1,
     0,
     {{10, 320, 1, 2.1}},
     {{0}},
     0},
    {"resumed from step 10 after a pause",
     P(100, 10, 100, 3) E(100, 10, 2.9) P(110, 20, 200, 2) E(111, 20, 1.9) P(9000, 11, 110, 2.8)
         P(9002, 15, 150, 2.5),
     3,
     1,
     {{10, 100, 0, 3}, {11, 110, 11, 2.8}, {15, 150, 13, 2.5}},
     {{10, 100, 0, 2.9}},
     0},
    {"a clock that was set back",
     P(100, 1, 1, 3) P(50, 2, 2, 2) P(51, 3, 3, 1),
     3,
     0,
     {{1, 1, 0, 3}, {2, 2, 0, 2}, {3, 3, 1, 1}},
     {{0}},
     0},
    {"lines that are none",
     "torn {\n\n[1]\n{}\n{\"kind\":\"progress\",\"t\":1,\"step\":1,\"samples\":1,\"loss\":null}\n"
     "{\"kind\":\"progress\",\"t\":1,\"step\":-1,\"samples\":1,\"loss\":1}\n"
     "{\"kind\":\"eval\",\"t\":1,\"step\":1}\n" P(1, 2, 3, 4) "{\"kind\":\"progr",
     1,
     0,
     {{2, 3, 0, 4}},
     {{0}},
     7},
};

static void check(const char *what, const struct hth_curve_line *line, size_t count,
                  const double want[4][4])
{
    if (line->count != count)
        fail_msg("%s: %zu points, not %zu", what, line->count, count);
    for (size_t i = 0; i < count; i++) {
        const struct hth_curve_point *p = &line->point[i];
        const double got[4] = {p->at[0], p->at[1], p->at[2], p->loss};
        for (size_t k = 0; k < 4; k++)
            if (fabs(got[k] - want[i][k]) > 1e-9)
                fail_msg("%s: point %zu, number %zu is %g, not %g", what, i, k, got[k], want[i][k]);
    }
}

TEST(curves_are_those_of_their_lines)
{
    (void)state;
    for (size_t i = 0; i < HTH_ARRAY_LEN(cases); i++) {
        const struct expected *c = &cases[i];
        struct hth_curve curve;
        hth_curve_parse((const uint8_t *)c->text, strlen(c->text), &curve);
        check(c->what, &curve.train, c->train_count, c->train);
        check(c->what, &curve.test, c->test_count, c->test);
        if (curve.lines_bad != c->lines_bad)
            fail_msg("%s: %d bad lines", c->what, (int)curve.lines_bad);
        hth_curve_clear(&curve);
    }
}

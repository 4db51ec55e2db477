/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_published.c: every figure of scenarios/published.h against 200 seeds of our own.
 *
 * Where the exact expectation is known, it decides which of the two is off when they disagree.
 * Three published figures are off: the squared errors of 1024 peers at 1 % after rounds 3 and 4
 * (2.2 and 2.8 times what is to be expected) and at 0.1 % after round 6 (3.0 times). All three come
 * from single peers that were absent for three rounds in a row.
 */
#include "core/mem.h"
#include "scenarios/published.h"
#include "scenarios/pure_means.h"
#include "support/suite.h"

#define SEEDS 200

static void check_rounds(const struct hth_published *p, double to_1e9, double to_1e4)
{
    double off = hth_published_rounds_off(p);
    assert_close(to_1e9, p->to_1e9, 0, off);
    assert_close(to_1e4, p->to_1e4, 0, off);
}

/* Return the number of published errors that are off themselves, which are not compared with
 * ours. */
static size_t check_errors(const struct hth_published *p, const struct hth_pure_opts *opts,
                           const double *mse)
{
    double expected[HTH_PUBLISHED_ROUNDS];
    bool known = hth_pure_expected(opts, expected) == HTH_OK;
    size_t off = 0;
    for (uint32_t t = 0; t < HTH_PUBLISHED_ROUNDS && p->mse[t] > 0; t++) {
        if (known && !hth_published_mse_agrees(t, p->mse[t], expected[t]))
            off++;
        else if (!hth_published_mse_agrees(t, p->mse[t], mse[t]))
            fail_msg("%s, %u peers, p %g, round %u: %g, published %g",
                     hth_pure_method_name(p->method), p->peers, p->p_fail, t + 1, mse[t],
                     p->mse[t]);
        /* a published figure is off by less than a factor of 3 */
        assert_true(!known || p->mse[t] / expected[t] < 3);
    }
    return off;
}

TEST(all_published_figures_are_reproduced)
{
    size_t off = 0, errors = 0;
    (void)state;
    assert_int_equal(hth_published_count, 36);
    for (size_t i = 0; i < hth_published_count; i++) {
        const struct hth_published *p = &hth_published[i];
        struct hth_pure_opts opts = hth_published_opts(p);
        /* A ring takes 50 rounds with every seed, so a few seeds are enough where only that is
         * compared. */
        double *got = pure_means(&opts, p->method == HTH_PURE_GOSSIP && p->mse[0] == 0 ? 5 : SEEDS);
        check_rounds(p, got[hth_pure_at(&opts, HTH_PURE_REACHED_1E9)],
                     got[hth_pure_at(&opts, HTH_PURE_REACHED)]);
        off += check_errors(p, &opts, got);
        errors += p->mse[0] > 0;
        hth_free(got);
    }
    assert_int_equal(errors, 11);
    assert_int_equal(off, 3);
}

/* For the three published figures that are off, ours agree with the expectation as far as seeds can
 * show it. The last is a mean that 200 seeds miss by a factor of 30 and 20000 by a fifth. */
TEST(ours_agree_with_expectation_where_published_is_off)
{
    struct hth_pure_opts opts = HTH_PURE_OPTS_INIT;
    double expected[4], *got;
    (void)state;
    opts.p_fail = 0.01;
    opts.rounds = opts.cap = 4;
    assert_ok(hth_pure_expected(&opts, expected));
    got = pure_means(&opts, 1000);
    for (uint32_t t = 0; t < 4; t++)
        assert_close(got[t], expected[t], 0, 5 * got[hth_pure_row_len(&opts) + t]);
    assert_false(hth_published_mse_agrees(2, 5.2e-5, expected[2]));
    assert_false(hth_published_mse_agrees(3, 1.4e-6, expected[3]));
    hth_free(got);
}

TEST(allreduce_rounds_match_the_formula)
{
    static const uint32_t peers[] = {512, 768, 900, 1024};
    static const double p_fails[] = {0, 0.001, 0.005, 0.01};
    (void)state;
    for (size_t i = 0; i < HTH_ARRAY_LEN(peers); i++)
        for (size_t k = 0; k < HTH_ARRAY_LEN(p_fails); k++) {
            struct hth_pure_opts opts = HTH_PURE_OPTS_INIT;
            opts.method = HTH_PURE_ALLREDUCE;
            opts.peers = peers[i];
            opts.p_fail = p_fails[k];
            opts.rounds = 1;
            double *got = pure_means(&opts, SEEDS);
            assert_close(hth_pure_allreduce_rounds(&opts), pow(1 - p_fails[k], -(double)peers[i]),
                         1e-9, 0);
            assert_true(hth_published_allreduce_agrees(
                &opts, got[hth_pure_at(&opts, HTH_PURE_REACHED_1E9)]));
            hth_free(got);
        }
}

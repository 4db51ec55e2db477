/* SPDX-License-Identifier: Apache-2.0 */
/* Exact expectations of pure.h: covariances of peers that are alike, round by round. */
#include "core/mem.h"
#include "scenarios/pure_int.h"

#include <math.h>

#define KINDS_MAX (1u << HTH_AVG_DIMS_MAX)

/* E[1 / (with + K)], where K of `others` peers are there and each is absent with chance p. */
static double mean_share(uint32_t others, uint32_t with, double p)
{
    double sum = 0, ways = 0; /* the logarithm of `others` over k */
    if (p == 0)
        return 1.0 / (with + others);
    for (uint32_t k = 0; k <= others; k++) {
        sum += exp(ways + k * log1p(-p) + (others - k) * log(p)) / (with + k);
        ways += log((double)(others - k) / (k + 1)); /* -inf behind the last */
    }
    return sum;
}

/* The effect of a round on members of one group of m, each absent with chance p. `one` leads from
 * the variance of the values and the covariance with the others to a peer's own variance, `two` to
 * the covariance of two members. Both are mixtures; the number is the weight of the variance. */
struct inside {
    double one, two;
};

static struct inside inside_of(uint32_t m, double p)
{
    /* A peer keeps its value, or takes the mean of itself and k others: (c0 + k c1) / (k + 1). */
    double q = 1 - p, one = p + q * mean_share(m - 1, 1, p);
    /* Two members that are there hold the same mean; an absent one and any other still have c1. */
    return (struct inside){one, m > 1 ? q * q * mean_share(m - 2, 2, p) : 0};
}

static double mix(double weight, double a, double b)
{
    return weight * a + (1 - weight) * b;
}

/* c[s]: the covariance of peers whose cells differ along the axes of the set s. Along the round's
 * axis, pairs of one line follow `inside`. Two peers of different lines are absent independently.
 * With shares a of itself and b of each of the m - 1 others in a peer's new value, a pair refers to
 * the same place of both lines with chance a^2 + (m - 1) b^2 if it did so before the round,
 * otherwise with 2 a b + (m - 2) b^2. */
static void line_round(double *c, uint32_t kinds, uint32_t axis, uint32_t m, double p)
{
    if (m == 1)
        return; /* alone in each line */
    struct inside in = inside_of(m, p);
    double a = in.one, b = (1 - a) / (m - 1);
    double same = a * a + (m - 1) * b * b, other = 2 * a * b + (m - 2) * b * b;
    for (uint32_t s = 0; s < kinds; s++) {
        uint32_t t = s | 1u << axis;
        double near = c[s], far = c[t];
        if (s == t)
            continue;
        c[s] = s == 0 ? mix(in.one, near, far) : mix(same, near, far);
        c[t] = s == 0 ? mix(in.two, near, far) : mix(other, near, far);
    }
}

static void expect_grid(const struct hth_pure_opts *o, double *mse)
{
    double c[KINDS_MAX];
    uint32_t kinds = 1u << o->shape.dims;
    for (uint32_t s = 0; s < kinds; s++) /* deviation of a peer from the mean of all */
        c[s] = (s == 0) - 1.0 / o->peers;
    for (uint32_t t = 0; t < o->rounds; t++) {
        uint32_t axis = hth_avg_axis(&o->shape, t);
        line_round(c, kinds, axis, o->shape.size[axis], o->p_fail);
        mse[t] = c[0];
    }
}

/* Any two peers are in one group with chance (m - 1) / (N - 1), drawn again in each round. */
static void expect_random(const struct hth_pure_opts *o, double *mse)
{
    uint32_t m = o->peers / hth_pure_groups(o->peers, o->shape.size[0]);
    struct inside in = inside_of(m, o->p_fail);
    double met = m > 1 ? (m - 1.0) / (o->peers - 1.0) : 0;
    double own = 1 - 1.0 / o->peers, pair = -1.0 / o->peers;
    for (uint32_t t = 0; t < o->rounds; t++) {
        double next = mix(in.one, own, pair);
        pair = mix(met, mix(in.two, own, pair), pair);
        own = mse[t] = next;
    }
}

static void expect_gossip(const struct hth_pure_opts *o, double *mse)
{
    for (uint32_t t = 0; t < o->rounds; t++) {
        mse[t] = 0;
        for (uint32_t k = 1; k < o->peers; k++)
            mse[t] += pow((1 + 2 * cos(2 * acos(-1) * k / o->peers)) / 3, 2.0 * (t + 1)) / o->peers;
    }
}

static void expect_allreduce(const struct hth_pure_opts *o, double *mse)
{
    double missed = 1;
    for (uint32_t t = 0; t < o->rounds; t++) {
        missed *= 1 - 1 / hth_pure_allreduce_rounds(o);
        mse[t] = missed * (1 - 1.0 / o->peers);
    }
}

enum hth_err hth_pure_expected(const struct hth_pure_opts *o, double *mse)
{
    HTH_TRY(hth_pure_check(o));
    if ((o->p_fail > 0 && o->failure != HTH_PURE_ABSENT) || o->hold != 1)
        return HTH_E_UNSUPPORTED;
    if (o->method == HTH_PURE_MOSHPIT && o->peers == hth_avg_cells(&o->shape))
        expect_grid(o, mse);
    else if (o->method == HTH_PURE_RANDOM &&
             o->peers % hth_pure_groups(o->peers, o->shape.size[0]) == 0)
        expect_random(o, mse);
    else if (o->method == HTH_PURE_GOSSIP && o->p_fail == 0)
        expect_gossip(o, mse);
    else if (o->method == HTH_PURE_ALLREDUCE)
        expect_allreduce(o, mse);
    else
        return HTH_E_UNSUPPORTED;
    return HTH_OK;
}

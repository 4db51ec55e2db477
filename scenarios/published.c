/* SPDX-License-Identifier: Apache-2.0 */
/* The numbers of published.h. */
#include "scenarios/published.h"

#include <math.h>

/* clang-format off */
#define N512   512, {2, {32, 32}}
#define N1024  1024, {2, {32, 32}}
#define CUBE   512, {3, {8, 8, 8}}
#define RANDOM HTH_PURE_RANDOM
#define GOSSIP HTH_PURE_GOSSIP
#define GRID   HTH_PURE_MOSHPIT

const struct hth_published hth_published[] = {
    {GOSSIP, N512,  0,     50,   50,   {0}},
    {GOSSIP, N512,  0.001, 50,   50,   {0}},
    {GOSSIP, N512,  0.005, 50,   50,   {0}},
    {GOSSIP, N512,  0.01,  50,   50,   {0}},
    {RANDOM, N512,  0,     6.1,  3.0,  {0}},
    {RANDOM, N512,  0.001, 6.3,  3.0,  {0}},
    {RANDOM, N512,  0.005, 6.3,  3.0,  {0}},
    {RANDOM, N512,  0.01,  6.6,  3.0,  {0}},
    {GRID,   N512,  0,     8.31, 3.65, {6.13e-2, 2.0e-3, 1.3e-4, 1.1e-5, 1.0e-6, 1.0e-7}},
    {GRID,   N512,  0.001, 8.40, 3.67, {0}},
    {GRID,   N512,  0.005, 8.63, 3.83, {6.61e-2, 2.6e-3, 1.9e-4, 1.7e-5, 1.6e-6, 1.7e-7}},
    {GRID,   N512,  0.01,  8.99, 3.96, {0}},
    {GOSSIP, N1024, 0,     50,   50,   {3.35e-1, 2.4e-1, 2.0e-1, 1.7e-1, 1.5e-1, 1.4e-1}},
    {GOSSIP, N1024, 0.001, 50,   50,   {0}},
    {GOSSIP, N1024, 0.005, 50,   50,   {0}},
    {GOSSIP, N1024, 0.01,  50,   50,   {0}},
    {RANDOM, N1024, 0,     6.2,  3.0,  {3.04e-2, 9.1e-4, 2.8e-5, 8.6e-7, 2.6e-8, 7.7e-10}},
    {RANDOM, N1024, 0.001, 6.5,  3.0,  {0}},
    {RANDOM, N1024, 0.005, 6.7,  3.0,  {3.38e-2, 1.2e-3, 4.1e-5, 1.4e-6, 4.6e-8, 1.6e-9}},
    {RANDOM, N1024, 0.01,  6.9,  3.1,  {0}},
    {GRID,   N1024, 0,     2.00, 2.00, {3.02e-2}},
    {GRID,   N1024, 0.001, 3.63, 2.19, {3.11e-2, 5.8e-5, 1.0e-6, 3.6e-9, 4.2e-11, 4.3e-13}},
    {GRID,   N1024, 0.005, 5.14, 2.90, {3.49e-2, 3.1e-4, 7.2e-6, 8.1e-8, 1.6e-9, 1.4e-11}},
    {GRID,   N1024, 0.01,  5.83, 3.02, {3.99e-2, 7.2e-4, 5.2e-5, 1.4e-6, 1.3e-8, 2.7e-10}},
    {GOSSIP, CUBE,  0,     50,   50,   {0}},
    {GOSSIP, CUBE,  0.001, 50,   50,   {0}},
    {GOSSIP, CUBE,  0.005, 50,   50,   {0}},
    {GOSSIP, CUBE,  0.01,  50,   50,   {0}},
    {RANDOM, CUBE,  0,     10.2, 5.0,  {0}},
    {RANDOM, CUBE,  0.001, 10.3, 5.0,  {0}},
    {RANDOM, CUBE,  0.005, 10.7, 5.0,  {0}},
    {RANDOM, CUBE,  0.01,  10.6, 5.0,  {0}},
    {GRID,   CUBE,  0,     3.00, 3.00, {1.25e-1, 1.3e-2}},
    {GRID,   CUBE,  0.001, 5.00, 3.13, {0}},
    {GRID,   CUBE,  0.005, 7.55, 3.78, {1.30e-1, 1.4e-2, 2.4e-4, 2.2e-5, 1.8e-6, 4.2e-8}},
    {GRID,   CUBE,  0.01,  8.39, 4.07, {0}},
};
/* clang-format on */
const size_t hth_published_count = HTH_ARRAY_LEN(hth_published);

struct hth_pure_opts hth_published_opts(const struct hth_published *p)
{
    struct hth_pure_opts opts = HTH_PURE_OPTS_INIT;
    opts.method = p->method;
    opts.peers = p->peers;
    opts.shape = p->shape;
    opts.p_fail = p->p_fail;
    opts.rounds = HTH_PUBLISHED_ROUNDS;
    return opts;
}

double hth_published_rounds_off(const struct hth_published *p)
{
    return p->method == HTH_PURE_MOSHPIT ? 0.2 : 0.4;
}

bool hth_published_mse_agrees(uint32_t t, double published, double value)
{
    double ratio = value / published;
    return t == 0 ? fabs(ratio - 1) <= 0.05 : ratio >= 0.5 && ratio <= 2;
}

bool hth_published_allreduce_agrees(const struct hth_pure_opts *opts, double rounds)
{
    return fabs(rounds / hth_pure_allreduce_rounds(opts) - 1) <= 0.15;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* A member that only listens: it is told the mean, and the others never notice. */
#include "averaging/reduce_swarm.h"

#include "core/mem.h"

#define ALL   UINT32_MAX
#define COUNT 300001

/* n members, of whom one in the middle listens. */
static void listening(struct swarm *s, uint64_t seed, uint32_t n, uint32_t who)
{
    swarm_new(s, seed, n, COUNT);
    s->member[who].weight = s->member[who].bandwidth = 0;
    swarm_roles(s);
}

static uint64_t bytes_out(const struct swarm *s)
{
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < s->n; i++)
        bytes += s->peer[i].result.bytes_out;
    return bytes;
}

/* The same bits with and without it; and it costs the others its vector once. */
static void hears_the_mean(void **state)
{
    (void)state;
    for (uint32_t n = 3; n <= 6; n++) {
        struct swarm s;
        uint64_t alone;
        float *mean = hth_new_array(float, COUNT);
        swarm_defaults(&s);
        listening(&s, n, n, 1);
        s.absent = 1u << 1;
        swarm_start(&s);
        swarm_run(&s);
        memcpy(mean, average_of(&s.peer[0]), COUNT * sizeof(float));
        alone = bytes_out(&s);
        swarm_next(&s);
        s.absent = 0;
        swarm_start(&s);
        swarm_run(&s);
        assert_int_equal(bytes_out(&s), alone + COUNT * sizeof(float));
        for (uint32_t i = 0; i < n; i++) {
            const struct hth_reduce_result *r = &s.peer[i].result;
            assert_ok(r->err);
            assert_int_equal(r->dropped, 0);
            assert_int_equal(r->parts_kept, 0);
            assert_close(r->weight_fraction, 1, 1e-9, 0);
            assert_close(r->weight, n * (n + 1) / 2.0 - 2, 1e-9, 0);
            assert_memory_equal(average_of(&s.peer[i]), mean, COUNT * sizeof(float));
        }
        assert_int_equal(s.peer[1].result.bytes_out, 0);
        assert_int_equal(s.peer[1].result.bytes_in, COUNT * sizeof(float));
        hth_free(mean);
        swarm_free(&s);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(hears_the_mean),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

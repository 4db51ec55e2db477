/* SPDX-License-Identifier: Apache-2.0 */
/*
 * liar.c: hearth that lies as HOSTILE in the environment says; linked of hearth's own objects, with
 * these functions in the place of (ld --wrap) those that it calls.
 *
 *     means    brings +-1000 to each round of averaging, and computes its share with them
 *     states   hands out parameters of +-5, 40 steps ahead
 */
#include "averaging/reduce.h"
#include "averaging/state.h"
#include "core/bytes.h"

#include <stdlib.h>
#include <string.h>

#define AHEAD      40
#define AT_LENGTH  8 /* in a state's meta: floats of a part; the parameters are the first part */
#define AT_UPDATES 16

enum hth_err __real_hth_reduce_start(struct hth_reducer *reducer,
                                     const struct hth_reduce_opts *opts,
                                     struct hth_reduce_round **round);
enum hth_err __wrap_hth_reduce_start(struct hth_reducer *reducer,
                                     const struct hth_reduce_opts *opts,
                                     struct hth_reduce_round **round);
enum hth_err __real_hth_state_donor_give(struct hth_state_donor *donor, uint64_t step,
                                         const void *meta, size_t len, struct hth_blob *values);
enum hth_err __wrap_hth_state_donor_give(struct hth_state_donor *donor, uint64_t step,
                                         const void *meta, size_t len, struct hth_blob *values);

static bool lies(const char *in)
{
    const char *how = getenv("HOSTILE");
    return how != NULL && strcmp(how, in) == 0;
}

static void fill(struct hth_blob *blob, size_t count, float value)
{
    float *x = (float *)(void *)blob->data;
    for (size_t i = 0; i < count; i++)
        x[i] = i % 2 ? value : -value;
}

/* ---- means --------------------------------------------------------------------------------- */

enum hth_err __wrap_hth_reduce_start(struct hth_reducer *reducer,
                                     const struct hth_reduce_opts *opts,
                                     struct hth_reduce_round **round)
{
    struct hth_reduce_opts lie = *opts;
    if (!lies("means"))
        return __real_hth_reduce_start(reducer, opts, round);
    lie.values = hth_blob_try_new(opts->count * sizeof(float));
    if (lie.values == NULL)
        return HTH_E_NO_MEMORY;
    fill(lie.values, opts->count, 1000);
    enum hth_err err = __real_hth_reduce_start(reducer, &lie, round);
    hth_blob_unref(lie.values);
    return err;
}

/* ---- states -------------------------------------------------------------------------------- */

enum hth_err __wrap_hth_state_donor_give(struct hth_state_donor *donor, uint64_t step,
                                         const void *meta, size_t len, struct hth_blob *values)
{
    uint8_t said[HTH_STATE_META_MAX];
    if (!lies("states") || len > sizeof(said))
        return __real_hth_state_donor_give(donor, step, meta, len, values);
    struct hth_blob *poison = hth_blob_copy(values->data, values->size);
    memcpy(said, meta, len);
    fill(poison, (size_t)hth_load_u64le(said + AT_LENGTH), 5);
    hth_store_u64le(said + AT_UPDATES, hth_load_u64le(said + AT_UPDATES) + AHEAD);
    enum hth_err err = __real_hth_state_donor_give(donor, step + AHEAD, said, len, poison);
    hth_blob_unref(poison);
    return err;
}

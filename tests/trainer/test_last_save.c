/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The checkpoint of a trainer that ends by an error: the earlier file stays if the parameters may
 * be the cause or have half of a step; otherwise a new one is written.
 */
#include <math.h>
#include <string.h>

#include "core/mem.h"
#include "experts/safetensors.h"
#include "kernels/backend_int.h"
#include "support/test.h"
#include "trainer/task.h"

#define AT   30 /* updates before the error */
#define PATH "trunk.safetensors"

enum trouble { PARAMETERS, DEVICE, DATA };

struct fixture {
    struct hth_world *world;
    struct hth_node *node;
    struct task_files files;
    struct hth_trainer *trainer;
    enum trouble trouble;
    uint64_t updates;
    bool done, stopped;
    enum hth_err err, save_err; /* of on_done; of the last checkpoint */
};

/* ---- a device that fails --------------------------------------------------------------------- */

static bool broken;
static enum hth_err (*true_step)(struct hth_exec *ex, struct hth_weight *w,
                                 const struct hth_step *step);

static enum hth_err step(struct hth_exec *ex, struct hth_weight *w, const struct hth_step *s)
{
    return broken ? HTH_E_DEVICE : true_step(ex, w, s);
}

/* ---- a trainer ------------------------------------------------------------------------------- */

static void on_update(void *arg, const struct hth_train_stats *stats)
{
    struct fixture *f = arg;

    f->updates = stats->updates;
    if (f->updates < AT)
        return;
    broken = f->trouble == DEVICE;
    if (f->trouble == DATA)
        memset(f->files.labels + 8, 77, TASK_ITEMS);
    if (f->trouble == PARAMETERS) {
        struct hth_params *params = hth_model_params(hth_trainer_model(f->trainer));

        hth_params_flat(params, HTH_PART_VALUE)[0] = NAN;
        hth_params_touched(params);
    }
}

static void on_checkpoint(void *arg, uint64_t updates, enum hth_err err)
{
    ((struct fixture *)arg)->save_err = err;
}

static void on_done(void *arg, enum hth_err err)
{
    struct fixture *f = arg;

    f->done = true;
    f->err = err;
}

static void on_stopped(void *arg)
{
    ((struct fixture *)arg)->stopped = true;
}

static bool flag(void *arg)
{
    return *(bool *)arg;
}

/* The number of updates in the file. */
static uint64_t saved(const struct fixture *f)
{
    size_t len;
    const uint8_t *bytes = hth_node_disk_get(f->node, PATH, &len);
    struct hth_st_reader *r;
    uint64_t updates;

    assert_non_null(bytes);
    assert_ok(hth_st_open(bytes, len, &r));
    assert_ok(hth_st_meta_u64(r, "hearth.updates", &updates));
    hth_st_close(r);
    return updates;
}

/* Runs until the trainer has ended; returns the number of updates in its file. */
static uint64_t ends(enum trouble trouble, uint32_t every, enum hth_err err, enum hth_err save_err)
{
    struct fixture *f = hth_new(struct fixture);
    struct hth_trainer_opts o = task_classifier();
    struct hth_world_opts opts = HTH_WORLD_OPTS_INIT;
    struct hth_backend backend = *hth_backend_ref();
    uint64_t updates;

    opts.chaos = (struct hth_chaos)HTH_CHAOS_NONE;
    f->world = hth_world_new(1, &opts);
    task_mount(f->world, &f->files, 3);
    f->node = hth_world_node(f->world, "trainer", NULL);
    f->trouble = trouble;
    broken = false;
    true_step = backend.step;
    backend.step = step;
    o.backend = &backend;
    o.local = true;
    o.flights = 1;
    o.updates_max = 200;
    o.checkpoint_path = PATH;
    o.checkpoint_every = every;
    o.on = (struct hth_train_callbacks){
        .on_update = on_update, .on_checkpoint = on_checkpoint, .on_done = on_done, .arg = f};
    assert_ok(hth_trainer_new(hth_node_env(f->node), &o, &f->trainer));
    hth_trainer_start(f->trainer);
    assert_true(hth_world_run_until_true(f->world, flag, &f->done, 1000 * HTH_US_PER_S));
    assert_int_equal(f->err, err);
    assert_int_equal(f->updates, AT);
    hth_trainer_stop(f->trainer, on_stopped, f);
    assert_true(hth_world_run_until_true(f->world, flag, &f->stopped, 1000 * HTH_US_PER_S));
    assert_int_equal(f->save_err, save_err);
    updates = saved(f);
    hth_trainer_free(f->trainer);
    hth_world_run_for(f->world, HTH_US_PER_S);
    hth_world_free(f->world);
    hth_free(f);
    return updates;
}

/* The parameters give no finite loss: the earlier file stays. */
static void not_finite_parameters_keep_the_earlier_file(void **state)
{
    assert_int_equal(ends(PARAMETERS, 20, HTH_E_NOT_FINITE, HTH_OK), 20);
}

/* A checkpoint that is due at that moment is checked for finite numbers, too. */
static void due_checkpoint_of_not_finite_parameters_is_refused(void **state)
{
    assert_int_equal(ends(PARAMETERS, 15, HTH_E_NOT_FINITE, HTH_E_NOT_FINITE), 15);
}

/* The device fails in a step, which only some tensors have taken: the earlier file stays. */
static void failed_device_keeps_the_earlier_file(void **state)
{
    assert_int_equal(ends(DEVICE, 20, HTH_E_DEVICE, HTH_OK), 20);
}

/* The data fail, and the parameters are good: they are saved. */
static void failed_data_saves_the_latest_parameters(void **state)
{
    assert_int_equal(ends(DATA, 20, HTH_E_CORRUPT, HTH_OK), AT);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(not_finite_parameters_keep_the_earlier_file),
        cmocka_unit_test(due_checkpoint_of_not_finite_parameters_is_refused),
        cmocka_unit_test(failed_device_keeps_the_earlier_file),
        cmocka_unit_test(failed_data_saves_the_latest_parameters),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

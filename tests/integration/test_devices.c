/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_devices.c: hearth devices lists this machine, and a host with an unusable card computes on
 * the CPU. Both are tested with and without a card: the plug-in that is found first is damaged.
 */
#define _XOPEN_SOURCE 700
#include "integration/toy.h"
#include "support/suite.h"

#include <math.h>
#include <stdlib.h>

#include "kernels/peak.h"

/* Every device is used, with its memory, or says why not. Returns how many of the kind are used. */
static size_t check_kind(const json_t *devices, const char *kind, size_t *told)
{
    size_t used = 0;
    *told = 0;
    for (size_t i = 0; i < json_array_size(devices); i++) {
        const json_t *d = json_array_get(devices, i);
        if (strcmp(json_string_value(json_object_get(d, "kind")), kind) != 0)
            continue;
        assert_true(json_is_string(json_object_get(d, "name")));
        const json_t *why = json_object_get(d, "why");
        double memory = json_number_value(json_object_get(d, "memory_bytes"));
        if (why == NULL) {
            assert_true(memory > 0);
            used++;
        } else {
            assert_true(json_string_length(why) > 0);
            (*told)++;
        }
    }
    return used;
}

static json_t *devices_of(struct place *p, const char *name)
{
    struct proc *proc = START(p, name, "devices", "--json");
    assert_int_equal(proc_wait(proc), 0);
    json_t *all = json_load_file(proc->out, 0, NULL);
    assert_non_null(all);
    assert_true(json_is_array(json_object_get(all, "devices")));
    return all;
}

/* The chosen type follows from the two peaks that are shown. */
static void check_compute(const json_t *compute)
{
    const char *chosen = json_string_value(json_object_get(compute, "chosen"));
    double fp32 = json_number_value(json_object_get(compute, "fp32_gflops"));
    double bf16 = json_number_value(json_object_get(compute, "bf16_gflops"));
    assert_true(fp32 > 0);
    assert_string_equal(chosen, hth_matmul_name(hth_peak_quicker(fp32, bf16)));
    assert_true(json_string_length(json_object_get(compute, "isa")) > 0);
    assert_non_null(strstr(json_string_value(json_object_get(compute, "why")), chosen));
}

PLACE_TEST(devices_have_memory_or_a_reason)
{
    struct place *p = *state;
    size_t told;
    json_t *all = devices_of(p, "found");
    assert_int_equal(check_kind(json_object_get(all, "devices"), "cpu", &told), 1);
    size_t cards = check_kind(json_object_get(all, "devices"), "cuda", &told);
    assert_true(cards + told > 0); /* a machine without a card is told why */
    check_compute(json_object_get(all, "compute"));
    json_decref(all);
    struct proc *table = START(p, "table", "devices");
    assert_int_equal(proc_wait(table), 0);
    proc_must_say(table, "compute auto is ");
    proc_must_say(table, "cpu");
    proc_must_say(table, "driver");
    proc_must_say(table, "why it is not used");
    if (told > 0)
        proc_must_say(table, "not used: ");
    place_end(p);
}

/* --fit --memory computes the number of experts by the formula of docs/gpu.md. */
PLACE_TEST(fit_follows_the_formula)
{
    struct place *p = *state;
    struct proc *proc = START(p, "fit", "devices", "--fit", "d=1024", "--memory", "8", "--json");
    assert_int_equal(proc_wait(proc), 0);
    FILE *file = fopen(proc->out, "r");
    assert_non_null(file);
    json_t *fit = json_loadf(file, JSON_DISABLE_EOF_CHECK, NULL);
    assert_non_null(fit);
    double page = 2 << 20, part = ceil(4.0 * (8 * 1024 * 1024 + 7 * 1024) / page) * page;
    double values = ceil(6.0 * (8 * 1024 * 1024 + 7 * 1024) / page) * page;
    double room = 6.5 * 1024 * 1024 * 1024;
    assert_true(json_number_value(json_object_get(fit, "expert_bytes")) == values + 3 * part);
    assert_true(json_number_value(json_object_get(fit, "weights_bytes")) == room);
    assert_true(json_number_value(json_object_get(fit, "experts")) ==
                floor(room / (values + 3 * part)));
    json_decref(fit);
    fclose(file);
    struct proc *wrong = START(p, "wrong", "devices", "--fit", "1024");
    assert_int_not_equal(proc_wait(wrong), 0);
    struct proc *alone = START(p, "alone", "devices", "--memory", "8");
    assert_int_not_equal(proc_wait(alone), 0);
    proc_must_say(alone, "add --fit");
    place_end(p);
}

/* A size needs its unit's worth: "6" is six bytes of a card. */
PLACE_TEST(device_memory_is_checked)
{
    struct place *p = *state;
    struct proc *wrong =
        START(p, "wrong", "serve", "--run", "x", "--experts", "1", "--device-memory", "6");
    assert_int_not_equal(proc_wait(wrong), 0);
    proc_must_say(wrong, "--device-memory '6': expected a size of at least 64MiB");
    place_end(p);
}

static void use_damaged_plugin(struct place *p)
{
    place_write(p, "hearth-cuda.so", "not a library", 13);
    const char *folders = place_text(p, "/nonexistent:%s", p->root);
    assert_int_equal(setenv("HEARTH_PLUGINS", folders, 1), 0);
}

PLACE_TEST(damaged_plugin_is_named)
{
    struct place *p = *state;
    size_t told;
    use_damaged_plugin(p);
    json_t *all = devices_of(p, "damaged");
    assert_int_equal(check_kind(json_object_get(all, "devices"), "cuda", &told), 0);
    assert_int_equal(told, 1);
    json_decref(all);
    assert_int_equal(unsetenv("HEARTH_PLUGINS"), 0);
    place_end(p);
}

static void serve_without(struct place *p, const char *device, const char *said)
{
    struct toy t;
    use_damaged_plugin(p);
    toy_init(&t, p, 10);
    struct proc *host = START(p, "host", "serve", "--run", t.run, "--experts", "2", "--device",
                              device, "--listen", t.addr[1], "--dir", place_path(p, "host"));
    proc_wait_text(host, "serving 2 experts");
    proc_must_say(host, said);
    assert_int_equal(unsetenv("HEARTH_PLUGINS"), 0);
    place_end(p);
}

PLACE_TEST(cpu_serves_without_the_card)
{
    serve_without(*state, "cuda", "--device cuda is not used: ");
}

PLACE_TEST(cpu_serves_without_any_of_several_cards)
{
    serve_without(*state, "cuda:1,cuda:0", "--device cuda:0 is not used: ");
}

/* SPDX-License-Identifier: Apache-2.0 */
/* devices.c: hearth devices: lists the CPU and the cards, and says why a device is not used. */
#include "cli/cli.h"
#include "cli/json.h"
#include "cli/device.h"
#include "cli/quicker.h"

#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/mem.h"
#include "kernels/plugin.h"

#define HTH_FIT_DIM_MAX 65536
#define HTH_FIT_GIB_MAX 4096

/* One line of the report. */
struct row {
    const char *kind, *name, *driver, *why;
    uint64_t memory_bytes;
};

/* The processor's name as the kernel gives it. */
static void cpu_name(char *out, size_t size)
{
    char line[256];
    FILE *f = fopen("/proc/cpuinfo", "r");
    snprintf(out, size, "CPU");
    while (f != NULL && fgets(line, sizeof(line), f) != NULL) {
        char *colon = strchr(line, ':');
        if (strncmp(line, "model name", 10) != 0 || colon == NULL)
            continue;
        colon[strcspn(colon, "\n")] = '\0';
        snprintf(out, size, "%s", colon + 1 + strspn(colon + 1, " "));
        break;
    }
    if (f != NULL)
        fclose(f);
}

static json_t *row_json(const struct row *r)
{
    json_t *o = json_object();
    hth_json_text(o, "kind", r->kind);
    hth_json_text(o, "name", r->name);
    hth_json_count(o, "memory_bytes", r->memory_bytes);
    if (r->driver[0] != '\0')
        json_object_set_new(o, "driver", json_string(r->driver));
    if (r->why[0] != '\0')
        json_object_set_new(o, "why", json_string(r->why));
    return o;
}

/* The type that `compute: auto` is on the CPU, both peaks, and why. */
static json_t *compute_json(const struct hth_quicker *q, const char *why)
{
    const struct hth_quicker_type *is = q->chosen == HTH_MATMUL_BF16 ? &q->bf16 : &q->fp32;
    json_t *o = json_object();
    hth_json_text(o, "chosen", hth_matmul_name(q->chosen));
    hth_json_text(o, "isa", is->isa);
    hth_json_real(o, "fp32_gflops", q->fp32.gflops);
    hth_json_real(o, "bf16_gflops", q->bf16.gflops);
    hth_json_text(o, "why", why);
    hth_json_text(o, "amxbf16", hth_quicker_tiles());
    return o;
}

static void print_json(const struct row *rows, size_t count, json_t *compute)
{
    json_t *list = json_array();
    for (size_t i = 0; i < count; i++)
        json_array_append_new(list, row_json(&rows[i]));
    json_t *all = json_object();
    hth_json_take(all, "devices", list);
    hth_json_take(all, "compute", compute);
    char *text = json_dumps(all, JSON_COMPACT);
    puts(text);
    free(text);
    json_decref(all);
}

static void print_table(const struct row *rows, size_t count)
{
    printf("%-12s %-44s %10s  %-8s %s\n", "kind", "name", "memory", "driver", "why it is not used");
    for (size_t i = 0; i < count; i++) {
        char memory[16] = "-";
        if (rows[i].memory_bytes > 0)
            hth_cli_bytes_text((double)rows[i].memory_bytes, memory);
        printf("%-12s %-44s %10s  %-8s %s%s\n", rows[i].kind,
               rows[i].name[0] != '\0' ? rows[i].name : "-", memory,
               rows[i].driver[0] != '\0' ? rows[i].driver : "-",
               rows[i].why[0] != '\0' ? "not used: " : "", rows[i].why);
    }
}

static void report(bool json)
{
    struct hth_device_info found[HTH_DEVICES_MAX];
    struct hth_backend_info backends[8];
    struct row rows[HTH_DEVICES_MAX + HTH_ARRAY_LEN(backends) + 1];
    char name[128];
    size_t count = 1;
    cpu_name(name, sizeof(name));
    rows[0] = (struct row){"cpu", name, "", "", 0};
    rows[0].memory_bytes = (uint64_t)sysconf(_SC_PHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE);
    size_t known = hth_backend_list(backends, HTH_ARRAY_LEN(backends));
    for (size_t i = 0; i < known; i++) {
        if (!backends[i].usable)
            rows[count++] = (struct row){"cpu", backends[i].name, "", backends[i].detail, 0};
    }
    hth_device_plugins();
    size_t devices = hth_devices_list(found, HTH_ARRAY_LEN(found));
    for (size_t i = 0; i < devices; i++) {
        rows[count++] = (struct row){found[i].kind, found[i].name, found[i].driver, found[i].why,
                                     found[i].memory_bytes};
    }
    struct hth_quicker q;
    char why[HTH_QUICKER_TEXT];
    hth_quicker_measure(&q);
    hth_quicker_text(&q, why);
    if (json) {
        print_json(rows, count, compute_json(&q, why));
        return;
    }
    print_table(rows, count);
    printf("compute auto is %s\nAMX tiles (amxbf16): %s\n", why, hth_quicker_tiles());
    if (hth_device_isa() != NULL)
        printf("HEARTH_ISA=%s is set and decides instead\n", hth_device_isa());
}

/* ---- what fits ----------------------------------------------------------------------------- */

struct devices {
    bool json;
    uint64_t fit_d;
    uint64_t memory_gib; /* of an imagined card; 0: the cards of this machine */
};

static json_t *fit_json(const char *name, uint64_t memory, uint64_t d, bool bf16)
{
    uint64_t parameters = 8 * d * d + 7 * d;
    uint64_t expert = hth_device_expert_bytes(parameters, 2, bf16);
    uint64_t weights = hth_device_weights_bytes(memory);
    json_t *o = json_object();
    hth_json_text(o, "name", name);
    hth_json_text(o, "compute", bf16 ? "bf16" : "fp32");
    hth_json_count(o, "d", d);
    hth_json_count(o, "parameters", parameters);
    hth_json_count(o, "expert_bytes", expert);
    hth_json_count(o, "weights_bytes", weights);
    hth_json_count(o, "experts", (weights / expert));
    return o;
}

/* Prints one line with the bf16 copy of the weights and one without. */
static void fit_card(const struct devices *o, const char *name, uint64_t memory)
{
    for (int bf16 = 1; bf16 >= 0; bf16--) {
        json_t *fit = fit_json(name, memory, o->fit_d, bf16 != 0);
        if (o->json) {
            char *text = json_dumps(fit, JSON_COMPACT);
            puts(text);
            free(text);
        } else {
            char one[16], all[16];
            hth_cli_bytes_text(json_number_value(json_object_get(fit, "expert_bytes")), one);
            hth_cli_bytes_text(json_number_value(json_object_get(fit, "weights_bytes")), all);
            printf(
                "%-32s %s: %" JSON_INTEGER_FORMAT
                " experts of d = %llu fit at the same time (%s each with Adam, %s for weights)\n",
                name, bf16 ? "bf16" : "fp32", json_integer_value(json_object_get(fit, "experts")),
                (unsigned long long)o->fit_d, one, all);
        }
        json_decref(fit);
    }
}

/* False: this machine has no usable card and no --memory was given. */
static bool fit(const struct devices *o)
{
    struct hth_device_info found[HTH_DEVICES_MAX];
    bool any = false;
    if (o->memory_gib > 0) {
        fit_card(o, "a card of that size", o->memory_gib << 30);
        return true;
    }
    hth_device_plugins();
    size_t count = hth_devices_list(found, HTH_ARRAY_LEN(found));
    for (size_t i = 0; i < count; i++) {
        if (!found[i].usable)
            continue;
        fit_card(o, found[i].name, found[i].memory_bytes);
        any = true;
    }
    if (!any)
        hth_cli_say_error("no usable card here (%s); --memory 8 computes it for a card of 8 GiB",
                          count > 0 ? found[0].why : "none was found");
    return any;
}

static error_t parse(int key, char *arg, struct argp_state *state)
{
    struct devices *o = state->input;
    switch (key) {
    case 'J':
        o->json = true;
        return 0;
    case 'F':
        if (strncmp(arg, "d=", 2) != 0 ||
            hth_cli_parse_u64(arg + 2, 1, HTH_FIT_DIM_MAX, &o->fit_d) != HTH_OK)
            argp_error(state, "--fit '%s': expected a width from d=1 to d=%d, such as d=1024", arg,
                       HTH_FIT_DIM_MAX);
        return 0;
    case 'M':
        if (hth_cli_parse_u64(arg, 1, HTH_FIT_GIB_MAX, &o->memory_gib) != HTH_OK)
            argp_error(state, "--memory '%s': expected whole GiB from 1 to %d, such as 8", arg,
                       HTH_FIT_GIB_MAX);
        return 0;
    case ARGP_KEY_END:
        if (o->memory_gib > 0 && o->fit_d == 0)
            argp_error(state, "--memory is the size of a card for --fit: add --fit d=1024");
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

int hth_verb_devices(int argc, char **argv)
{
    static const struct argp_option options[] = {
        {"json", 'J', NULL, 0, "Print JSON instead of a table", 0},
        {"fit", 'F', "d=N", 0, "Print how many FFN experts of width N fit on each card at once", 0},
        {"memory", 'M', "GIB", 0, "With --fit: compute it for a card with GIB of memory", 0},
        {0}};
    static const struct argp argp = {
        .options = options,
        .parser = parse,
        .doc = "List the devices that can compute on this machine, and why others are not used."};
    struct devices o = {0};
    if (argp_parse(&argp, argc, argv, 0, NULL, &o) != 0)
        return HTH_EXIT_USAGE;
    if (o.fit_d > 0)
        return fit(&o) ? HTH_EXIT_OK : HTH_EXIT_DEVICE;
    report(o.json);
    return HTH_EXIT_OK;
}

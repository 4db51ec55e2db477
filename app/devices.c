/* SPDX-License-Identifier: Apache-2.0 */
/* devices.c: hearth devices: where this machine can compute, and why not elsewhere. */
#include "app/cli.h"
#include "app/device.h"

#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/mem.h"
#include "kernels/plugin.h"

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
    json_t *o = json_pack("{s:s, s:s, s:I}", "kind", r->kind, "name", r->name, "memory_bytes",
                          (json_int_t)r->memory_bytes);
    if (r->driver[0] != '\0')
        json_object_set_new(o, "driver", json_string(r->driver));
    if (r->why[0] != '\0')
        json_object_set_new(o, "why", json_string(r->why));
    return o;
}

static void print_json(const struct row *rows, size_t count)
{
    json_t *list = json_array();
    for (size_t i = 0; i < count; i++)
        json_array_append_new(list, row_json(&rows[i]));
    json_t *all = json_pack("{s:o}", "devices", list);
    char *text = json_dumps(all, JSON_COMPACT);
    puts(text);
    free(text);
    json_decref(all);
}

static void print_table(const struct row *rows, size_t count)
{
    printf("%-12s %-44s %10s  %s\n", "kind", "name", "memory", "");
    for (size_t i = 0; i < count; i++) {
        char memory[16] = "-";
        if (rows[i].memory_bytes > 0)
            hth_cli_bytes_text((double)rows[i].memory_bytes, memory);
        printf("%-12s %-44s %10s  %s%s\n", rows[i].kind,
               rows[i].name[0] != '\0' ? rows[i].name : "-", memory,
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
    if (json)
        print_json(rows, count);
    else
        print_table(rows, count);
}

static error_t parse(int key, char *arg, struct argp_state *state)
{
    bool *json = state->input;
    (void)arg;
    if (key != 'J')
        return ARGP_ERR_UNKNOWN;
    *json = true;
    return 0;
}

int hth_verb_devices(int argc, char **argv)
{
    static const struct argp_option options[] = {{"json", 'J', NULL, 0, "As JSON", 0}, {0}};
    static const struct argp argp = {
        .options = options,
        .parser = parse,
        .doc = "List where this machine can compute, and why it can't elsewhere."};
    bool json = false;
    if (argp_parse(&argp, argc, argv, 0, NULL, &json) != 0)
        return HTH_EXIT_USAGE;
    report(json);
    return HTH_EXIT_OK;
}

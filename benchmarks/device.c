/* SPDX-License-Identifier: Apache-2.0 */
/* device.c: prints a card's kernels beside their floors. */
#define _DEFAULT_SOURCE /* popen */
#include "benchmarks/device.h"

#include "benchmarks/kernels/device.h"
#include "cli/json.h"
#include "cli/shipped.h"
#include "core/mem.h"
#include "kernels/plugin.h"

#include <stdio.h>
#include <string.h>

struct card {
    struct hth_bench *bench;
    const char *device, *type;
};

bool hth_bench_on_card(const struct hth_bench *b)
{
    return b->device.device != NULL && strcmp(b->device.device, "cpu") != 0;
}

/* ---- rows ---------------------------------------------------------------------------------- */

static json_t *row_of(const struct card *c, const char *op)
{
    json_t *row = json_object();
    json_object_set_new(row, "device", json_string(c->device));
    json_object_set_new(row, "type", json_string(c->type));
    json_object_set_new(row, "op", json_string(op));
    return row;
}

static json_t *number_or_null(double value)
{
    return value > 0 ? hth_json_number(hth_bench_round(value)) : json_null();
}

static void on_rates(void *arg, const struct hth_bench_rates *rates)
{
    struct card *c = arg;
    if (!c->bench->json) {
        printf("floors: copy %.1f GB/s, best product %.1f GFLOP/s\n", rates->bytes_per_s * 1e-9,
               rates->flops_per_s * 1e-9);
        return;
    }
    json_t *row = row_of(c, "rates");
    json_object_set_new(row, "copy_gb_per_s", number_or_null(rates->bytes_per_s * 1e-9));
    json_object_set_new(row, "product_gflops", number_or_null(rates->flops_per_s * 1e-9));
    hth_bench_row_take(c->bench, row);
}

static void on_line(void *arg, const struct hth_bench_line *l)
{
    struct card *c = arg;
    json_t *row = row_of(c, l->op);
    bool good = l->err == HTH_OK;
    json_object_set_new(row, "d", json_integer(l->dim));
    json_object_set_new(row, "rows", json_integer(l->rows));
    json_object_set_new(row, "us", number_or_null(l->us));
    json_object_set_new(row, "gflops", number_or_null(good ? l->flops * 1e-3 / l->us : 0));
    json_object_set_new(row, "gb_per_s", number_or_null(good ? l->bytes * 1e-3 / l->us : 0));
    json_object_set_new(row, "floor_us", number_or_null(l->floor_us));
    json_object_set_new(row, "of_floor", number_or_null(good ? hth_bench_fraction(l) : 0));
    json_object_set_new(row, "check_error",
                        good && l->check_error >= 0 ? hth_json_number(l->check_error)
                                                    : json_null());
    json_object_set_new(row, "error", good ? json_null() : json_string(hth_err_name(l->err)));
    hth_bench_row_take(c->bench, row);
}

/* ---- PyTorch ------------------------------------------------------------------------------- */

static char *list_text(const uint32_t *list, size_t count)
{
    char *text = hth_strdup("");
    for (size_t i = 0; i < count; i++) {
        char *more = hth_asprintf("%s%s%u", text, i > 0 ? "," : "", list[i]);
        hth_free(text);
        text = more;
    }
    return text;
}

/* Prints a row from one line of benchmarks/kernels/torch_block.py. */
static void torch_line(const struct card *c, const char *line)
{
    char mode[32], type[16], op[32];
    unsigned dim, rows;
    double us, gflops;
    if (sscanf(line, "%31[^,],%15[^,],%31[^,],%u,%u,%lf,%lf", mode, type, op, &dim, &rows, &us,
               &gflops) != 7)
        return;
    const struct card torch = {c->bench, mode, type};
    struct hth_bench_line l = {.op = op,
                               .dim = dim,
                               .rows = rows,
                               .us = us,
                               .flops = gflops * us * 1e3,
                               .check_error = -1};
    on_line((void *)(uintptr_t)&torch, &l);
}

static void run_torch(const struct card *c, const struct hth_bench_card *card)
{
    const char *python = card->python != NULL ? card->python : "python3";
    char *dims = list_text(card->dims, card->dim_count);
    char *rows = list_text(card->rows, card->row_count);
    char *script = hth_shipped_find("benchmarks/kernels/torch_block.py");
    char *command = hth_asprintf("'%s' '%s' %s %s 2>/dev/null", python, script, dims, rows);
    char line[256];
    FILE *out = strchr(python, '\'') == NULL ? popen(command, "r") : NULL;
    bool any = false;
    while (out != NULL && fgets(line, sizeof(line), out) != NULL) {
        torch_line(c, line);
        any = true;
    }
    if (out != NULL)
        pclose(out);
    if (!any)
        fprintf(stderr, "PyTorch is not measured: none with CUDA under '%s'\n", python);
    hth_free(command);
    hth_free(script);
    hth_free(dims);
    hth_free(rows);
}

/* ---- the verb ------------------------------------------------------------------------------ */

static enum hth_matmul type_of(const char *text)
{
    static const enum hth_matmul types[] = {HTH_MATMUL_F32, HTH_MATMUL_TF32, HTH_MATMUL_BF16};
    for (size_t i = 0; text != NULL && i < HTH_ARRAY_LEN(types); i++) {
        if (strcmp(text, hth_matmul_name(types[i])) == 0)
            return types[i];
    }
    return HTH_MATMUL_AUTO;
}

int hth_bench_card_run(struct hth_bench *b, const struct hth_bench_card *card)
{
    const struct hth_backend *backend;
    const char *type = card->type != NULL ? card->type : b->device.compute;
    char why[200] = "";
    hth_device_plugins();
    enum hth_err err =
        hth_plugin_backend(b->device.device, type_of(type), &backend, why, sizeof(why));
    if (err != HTH_OK) {
        hth_cli_say_error("--device %s can't be measured: %s", b->device.device, why);
        hth_bench_close(b);
        return HTH_EXIT_DEVICE;
    }
    struct card c = {b, hth_backend_name(backend), hth_matmul_name(hth_backend_compute(backend))};
    const struct hth_bench_device_options options = {
        .backend = backend,
        .dims = card->dims,
        .dim_count = card->dim_count,
        .rows = card->rows,
        .row_count = card->row_count,
        .repeats = b->repeats,
        .clock_us = hth_bench_now_us,
        .on_rates = on_rates,
        .on_line = on_line,
        .arg = &c,
    };
    err = hth_bench_device(&options);
    if (err == HTH_OK && (card->python == NULL || strcmp(card->python, "no") != 0))
        run_torch(&c, card);
    return hth_bench_finish(b, "measuring the card", err);
}

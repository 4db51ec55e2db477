/* SPDX-License-Identifier: Apache-2.0 */
/* device.c: from words to a back end. */
#include "app/device.h"

#include "app/cli.h"

#include <argp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { KEY_BACKEND = 0x6000, KEY_COMPUTE };

static const struct argp_option options[] = {
    {"backend", KEY_BACKEND, "NAME", 0, "auto, packed, blas or ref", 0},
    {"compute", KEY_COMPUTE, "TYPE", 0,
     "Products in fp32, bf16, or auto: bf16 where the CPU has it (default: the run file's)", 0},
    {0},
};

static bool find_type(const char *word, enum hth_matmul *out)
{
    static const enum hth_matmul types[] = {HTH_MATMUL_AUTO, HTH_MATMUL_F32, HTH_MATMUL_BF16};
    for (size_t i = 0; i < HTH_ARRAY_LEN(types); i++) {
        if (strcmp(word, hth_matmul_name(types[i])) == 0) {
            *out = types[i];
            return true;
        }
    }
    return false;
}

static error_t parse(int key, char *arg, struct argp_state *state)
{
    struct hth_device *d = state->input;
    enum hth_matmul type;
    switch (key) {
    case KEY_BACKEND:
        d->backend = arg;
        return 0;
    case KEY_COMPUTE:
        d->compute = arg;
        if (!find_type(arg, &type))
            argp_error(state, "--compute '%s': fp32, bf16 or auto", arg);
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

const struct argp hth_device_argp = {.options = options, .parser = parse};

enum hth_err hth_device_choose(const struct hth_device *flags, enum hth_matmul otherwise,
                               const struct hth_backend **out)
{
    struct hth_backend_choice choice = {.name = flags->backend != NULL ? flags->backend : "auto",
                                        .compute = otherwise,
                                        .isa = getenv("HEARTH_ISA")};
    if (flags->compute != NULL)
        HTH_ASSERT(find_type(flags->compute, &choice.compute));
    enum hth_err err = hth_backend_choose(&choice, out);
    if (err != HTH_OK)
        hth_cli_say_error(
            "back end '%s' with compute %s%s%s: %s; try --backend auto --compute auto", choice.name,
            hth_matmul_name(choice.compute), choice.isa != NULL ? " and HEARTH_ISA=" : "",
            choice.isa != NULL ? choice.isa : "", hth_err_text(err));
    return err;
}

const char *hth_device_text(const struct hth_backend *backend, char out[64])
{
    const char *isa = hth_backend_isa(backend);
    snprintf(out, 64, "%s%s%s, %s", hth_backend_name(backend), isa[0] != '\0' ? " " : "", isa,
             hth_matmul_name(hth_backend_compute(backend)));
    return out;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* device.c: chooses back ends by options, run file and environment. */
#include "cli/device.h"

#include "cli/cli.h"
#include "cli/quicker.h"
#include "cli/shipped.h"

#include <argp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/mem.h"
#include "kernels/isa.h"
#include "kernels/plugin.h"
#include "kernels/quant.h"

#ifndef HTH_LIBDIR
#define HTH_LIBDIR "/usr/local/lib/hearth"
#endif

enum { KEY_BACKEND = 0x6000, KEY_COMPUTE, KEY_DEVICE, KEY_DEVICE_MEMORY };

#define HTH_DEVICE_MEMORY_LEAST ((uint64_t)64 << 20)

static const struct argp_option options[] = {
    {"backend", KEY_BACKEND, "NAME", 0, "Kernels: auto, packed, blas or ref (default auto)", 0},
    {"compute", KEY_COMPUTE, "TYPE", 0,
     "Type of products: fp32, bf16, or auto for the quicker of both here; tf32 on a card "
     "(default: the run file's compute)",
     0},
    {"device", KEY_DEVICE, "NAME", 0,
     "cpu, cuda or cuda:N; for serve also several, as in cuda:0,cuda:1 (default cpu); 'hearth "
     "devices' lists them",
     0},
    {"device-memory", KEY_DEVICE_MEMORY, "SIZE", 0,
     "Use at most SIZE of each card's memory, such as 6GiB (default: all that is free)", 0},
    {0},
};

static bool find_type(const char *word, enum hth_matmul *out)
{
    static const enum hth_matmul types[] = {HTH_MATMUL_AUTO, HTH_MATMUL_F32, HTH_MATMUL_BF16,
                                            HTH_MATMUL_TF32};
    for (size_t i = 0; i < HTH_ARRAY_LEN(types); i++) {
        if (strcmp(word, hth_matmul_name(types[i])) == 0) {
            *out = types[i];
            return true;
        }
    }
    return false;
}

/* Copies the word at *at, up to the next comma, and moves *at past it. False: none is left. */
static bool next_word(const char **at, char *word, size_t size)
{
    if (**at == '\0')
        return false;
    size_t len = strcspn(*at, ",");
    snprintf(word, size, "%.*s", (int)HTH_MIN(len, size - 1), *at);
    *at += len;
    *at += **at == ',';
    return true;
}

/* "cuda" is the first card, as "cuda:0" is. */
static bool same_card_twice(const char *list)
{
    char word[32];
    uint32_t seen = 0;
    while (next_word(&list, word, sizeof(word))) {
        const char *number = strchr(word, ':');
        unsigned long card = number != NULL ? strtoul(number + 1, NULL, 10) : 0;
        uint32_t bit = card < 32 ? UINT32_C(1) << card : 0;
        if ((seen & bit) != 0)
            return true;
        seen |= bit;
    }
    return false;
}

static bool names_card(const struct hth_device_flags *flags)
{
    return flags->device != NULL && strcmp(flags->device, "cpu") != 0;
}

static void check_backend(struct argp_state *state, const char *name)
{
    struct hth_backend_info known[8];
    size_t count = hth_backend_list(known, HTH_ARRAY_LEN(known)), i = 0;
    while (i < count && strcmp(known[i].name, name) != 0)
        i++;
    if (i == count && strcmp(name, "auto") != 0 && !hth_plugin_knows(name))
        argp_error(state, "--backend '%s': expected auto, packed, blas or ref", name);
}

static error_t parse(int key, char *arg, struct argp_state *state)
{
    struct hth_device_flags *d = state->input;
    enum hth_matmul type;
    uint64_t bytes;
    switch (key) {
    case KEY_BACKEND:
        d->backend = arg;
        check_backend(state, arg);
        return 0;
    case KEY_COMPUTE:
        d->compute = arg;
        if (!find_type(arg, &type))
            argp_error(state, "--compute '%s': expected fp32, bf16, tf32 or auto", arg);
        return 0;
    case KEY_DEVICE:
        d->device = arg;
        if (strcmp(arg, "cpu") != 0 && !hth_plugin_knows(arg))
            argp_error(state, "--device '%s': expected cpu, cuda or cuda:N", arg);
        else if (same_card_twice(arg))
            argp_error(state, "--device '%s' names a card twice", arg);
        return 0;
    case KEY_DEVICE_MEMORY:
        if (hth_cli_parse_size(arg, &bytes) != HTH_OK || bytes < HTH_DEVICE_MEMORY_LEAST)
            argp_error(state,
                       "--device-memory '%s': expected a size of at least 64MiB, such as "
                       "6GiB",
                       arg);
        hth_plugins_limit(bytes);
        d->memory = true;
        return 0;
    case ARGP_KEY_END:
        if (d->memory && !names_card(d))
            argp_error(state, "--device-memory limits the memory of a card: add --device cuda, or "
                              "leave it out");
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

const struct argp hth_device_argp = {.options = options, .parser = parse};

void hth_device_plugins(void)
{
    const char *folders[HTH_FOLDERS_MAX];
    size_t count = 0;
    const char *env = getenv("HEARTH_PLUGINS");
    char *own = hth_shipped_program(), *list = hth_strdup(env != NULL ? env : ""), *at = list;
    while (at != NULL && count < HTH_FOLDERS_MAX - 2) {
        char *end = strchr(at, ':');
        folders[count++] = at;
        if (end != NULL)
            *end++ = '\0';
        at = end;
    }
    folders[count++] = own;
    folders[count++] = HTH_LIBDIR;
    hth_plugins_search(folders, count);
    hth_plugins_libraries(getenv("HEARTH_CUBLAS"));
    hth_free(list);
    hth_free(own);
}

/* Opens a card's back end; prints why if that fails. */
static bool choose_card(const struct hth_device_flags *flags, enum hth_matmul compute,
                        const struct hth_backend **out)
{
    char why[200] = "";
    hth_device_plugins();
    if (hth_plugin_backend(flags->device, compute, out, why, sizeof(why)) == HTH_OK)
        return true;
    hth_cli_say_error("--device %s is not used: %s; the CPU computes if no other card is left",
                      flags->device, why);
    return false;
}

/* An empty value counts as not set: that is how a shell unsets a variable for one command. */
const char *hth_device_isa(void)
{
    const char *isa = getenv("HEARTH_ISA");
    return isa != NULL && isa[0] != '\0' ? isa : NULL;
}

static void say_no_backend(const struct hth_backend_choice *choice, enum hth_err err)
{
    const char *compute = hth_matmul_name(choice->compute), *why = hth_err_text(err);
    if (err == HTH_E_UNSUPPORTED && choice->isa != NULL && hth_isa_why_not(choice->isa) != NULL)
        why = hth_isa_why_not(choice->isa);
    if (choice->compute == HTH_MATMUL_TF32)
        hth_cli_say_error("compute tf32 needs a card: add --device cuda, or use --compute fp32, "
                          "bf16 or auto");
    else if (choice->isa != NULL)
        hth_cli_say_error(
            "back end '%s' with compute %s and HEARTH_ISA=%s: %s; HEARTH_ISA is "
            "generic, avx2, avx512 (all fp32), avx512bf16, amxbf16 (bf16), or not set",
            choice->name, compute, choice->isa, why);
    else
        hth_cli_say_error("back end '%s' with compute %s: %s; try --backend auto --compute auto",
                          choice->name, compute, why);
}

static bool may_compute_bf16(const char *backend)
{
    return strcmp(backend, "auto") == 0 || strcmp(backend, "packed") == 0;
}

/* Prints which type is quicker here. */
static enum hth_matmul choose_type(void)
{
    struct hth_quicker q;
    char text[HTH_QUICKER_TEXT];
    hth_quicker_measure(&q);
    if (q.bf16.isa != NULL)
        hth_say_note("compute auto is %s", hth_quicker_text(&q, text));
    return q.chosen;
}

enum hth_err hth_device_choose(const struct hth_device_flags *flags, enum hth_matmul otherwise,
                               const struct hth_backend **out)
{
    struct hth_backend_choice choice = {.name = flags->backend != NULL ? flags->backend : "auto",
                                        .compute = otherwise,
                                        .isa = hth_device_isa()};
    if (flags->compute != NULL)
        HTH_ASSERT(find_type(flags->compute, &choice.compute));
    if (names_card(flags)) {
        if (choose_card(flags, choice.compute, out))
            return HTH_OK;
        if (choice.compute == HTH_MATMUL_TF32)
            choice.compute = HTH_MATMUL_F32;
    }
    if (choice.compute == HTH_MATMUL_AUTO && choice.isa == NULL && may_compute_bf16(choice.name))
        choice.compute = choose_type();
    enum hth_err err = hth_backend_choose(&choice, out);
    if (err == HTH_OK)
        err = hth_quant_hold(choice.isa);
    if (err != HTH_OK)
        say_no_backend(&choice, err);
    return err;
}

const char *hth_device_text(const struct hth_backend *backend, char out[64])
{
    const char *isa = hth_backend_isa(backend);
    snprintf(out, 64, "%s%s%s, %s", hth_backend_name(backend), isa[0] != '\0' ? " " : "", isa,
             hth_matmul_name(hth_backend_compute(backend)));
    return out;
}

enum hth_err hth_device_choose_all(const struct hth_device_flags *flags, enum hth_matmul otherwise,
                                   struct hth_device_set *out)
{
    struct hth_device_flags one = *flags;
    enum hth_matmul compute = otherwise;
    const char *at = flags->device != NULL ? flags->device : "";
    bool several = strchr(at, ',') != NULL;
    char word[32];
    out->count = 0;
    if (flags->compute != NULL)
        HTH_ASSERT(find_type(flags->compute, &compute));
    while (several && out->count < HTH_DEVICE_CARDS_MAX && next_word(&at, word, sizeof(word))) {
        one.device = word;
        out->count += choose_card(&one, compute, &out->backend[out->count]);
    }
    if (out->count > 0)
        return HTH_OK;
    one.device = several ? NULL : flags->device;
    if (compute == HTH_MATMUL_TF32)
        one.compute = several ? "fp32" : flags->compute; /* the CPU has no tf32 */
    out->count = 1;
    return hth_device_choose(&one, otherwise, &out->backend[0]);
}

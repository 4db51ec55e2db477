/* SPDX-License-Identifier: Apache-2.0 */
/*
 * run.c: hearth run check FILE: reads a run file as all verbs do, and shows what it means: each key
 * with its value, default, unit and range, and how large experts and trunk are.
 */
#include "app/run_size.h"
#include "cli/cli.h"
#include "cli/config.h"
#include "cli/json.h"
#include "core/guess.h"
#include "core/limits.h"
#include "core/mem.h"
#include "experts/kind.h"
#include "kernels/optim.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define KEYS_MAX 128
struct check {
    const char *path;
    bool json;

    struct hth_runfile *run;
    struct hth_run_key keys[KEYS_MAX];
    size_t key_count;
    struct hth_run_sizes size;
};

/* ---- flags --------------------------------------------------------------------------------- */

static error_t parse(int key, char *arg, struct argp_state *state)
{
    static const char *const words[] = {"check"};
    struct check *c = state->input;
    char hint[80];
    switch (key) {
    case 'J':
        c->json = true;
        return 0;
    case ARGP_KEY_ARG:
        if (state->arg_num == 0 && strcmp(arg, words[0]) != 0)
            argp_error(state, "no word '%s'%s", arg,
                       hth_guess_text(arg, words, sizeof(words[0]), HTH_ARRAY_LEN(words), hint,
                                      sizeof(hint)));
        if (state->arg_num == 1)
            c->path = arg;
        return state->arg_num > 1 ? ARGP_ERR_UNKNOWN : 0;
    case ARGP_KEY_END:
        if (c->path == NULL)
            argp_error(state, "which file? For example: hearth run check runs/fashion.yaml");
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

static const struct argp_option options[] = {
    {"json", 'J', NULL, 0, "Print one JSON object instead of tables", 0}, {0}};
static const struct argp argp = {
    .options = options,
    .parser = parse,
    .args_doc = "check FILE",
    .doc = "Check a run file, and show each key with its value, default, unit and range, and the "
           "size of an expert and of the trunk.",
};

/* ---- printing ------------------------------------------------------------------------------ */

static const char *shown(const char *text)
{
    return text[0] != '\0' ? text : "-";
}

static void print_size(const char *what, const struct hth_run_size *s)
{
    char memory[16], disk[16];
    printf("%-9s %llu parameters: %s of memory while it learns, %s on the disk\n", what,
           (unsigned long long)s->parameters, hth_cli_bytes_text((double)s->memory, memory),
           hth_cli_bytes_text((double)s->disk, disk));
}

static void print_table(const struct check *c)
{
    char eight[16], all[16];
    printf("%s: a good run file of run '%s'\n\n", c->path, c->run->run);
    printf("%-30s %-16s %-20s %-14s %s\n", "key", "value", "default", "unit", "range");
    for (size_t i = 0; i < c->key_count; i++)
        printf("%-30s %-16s %-20s %-14s %s\n", c->keys[i].path, shown(c->keys[i].value),
               shown(c->keys[i].fallback), shown(c->keys[i].unit), c->keys[i].range);
    putchar('\n');
    if (c->size.experts > 0)
        print_size("an expert", &c->size.expert);
    print_size("the trunk", &c->size.trunk);
    if (c->size.experts == 0)
        return;
    printf("8 experts take %s of memory, all %llu of the run %s: weights, gradients and moments in "
           "fp32, and at most two copies of the weights in the kernels' order\n",
           hth_cli_bytes_text(8.0 * (double)c->size.expert.memory, eight),
           (unsigned long long)c->size.experts,
           hth_cli_bytes_text((double)c->size.experts * (double)c->size.expert.memory, all));
}

/* A value as JSON; null: there is none. */
static json_t *value_json(const struct check *c, const struct hth_run_key *key)
{
    json_t *sizes;
    switch (key->kind) {
    case HTH_RUN_NUMBER:
        if (strspn(key->value, "0123456789") == strlen(key->value) && strlen(key->value) < 19)
            return json_integer(strtoll(key->value, NULL, 10));
        return hth_json_number(strtod(key->value, NULL));
    case HTH_RUN_SWITCH:
        return json_boolean(strcmp(key->value, "true") == 0);
    case HTH_RUN_SIZES:
        sizes = json_array();
        for (uint32_t i = 0; i < c->run->model.grid_count; i++)
            json_array_append_new(sizes, json_integer(c->run->model.grid[i]));
        return sizes;
    case HTH_RUN_WORDS:
        sizes = json_array();
        for (uint32_t i = 0; i < c->run->model.masks_count; i++)
            json_array_append_new(
                sizes, json_string(hth_mask_name((enum hth_mask_kind)c->run->model.masks[i])));
        return sizes;
    default:
        return key->value[0] != '\0' ? json_string(key->value) : json_null();
    }
}

static json_t *size_json(const struct hth_run_size *s)
{
    json_t *o = json_object();
    hth_json_count(o, "parameters", s->parameters);
    hth_json_count(o, "memory_bytes", s->memory);
    hth_json_count(o, "disk_bytes", s->disk);
    return o;
}

static void print_json(const struct check *c)
{
    json_t *all = json_object(), *list = json_array();
    for (size_t i = 0; i < c->key_count; i++) {
        json_t *o = json_object();
        hth_json_text(o, "key", c->keys[i].path);
        hth_json_take(o, "value", value_json(c, &c->keys[i]));
        hth_json_text(o, "default", c->keys[i].fallback);
        hth_json_text(o, "unit", c->keys[i].unit);
        hth_json_text(o, "range", c->keys[i].range);
        json_array_append_new(list, o);
    }
    hth_json_text(all, "run", c->run->run);
    hth_json_take(all, "keys", list);
    if (c->size.experts > 0)
        hth_json_take(all, "expert", size_json(&c->size.expert));
    hth_json_take(all, "trunk", size_json(&c->size.trunk));
    hth_json_count(all, "experts", c->size.experts);
    hth_json_print_take(stdout, all);
    putchar('\n');
}

/* ---- help ---------------------------------------------------------------------------------- */

/* The length of the group's name and its dot. */
static size_t group_of(const char *path)
{
    const char *dot = strchr(path, '.');
    return dot != NULL ? (size_t)(dot - path) + 1 : 0;
}

static void print_key(const struct hth_run_key *key)
{
    const char *text = hth_runfile_about(key->path);
    bool has_unit = key->unit[0] != '\0' && key->fallback[0] != '\0';
    printf("%s = %s%s%s   (%s)\n", key->path, shown(key->fallback), has_unit ? " " : "",
           has_unit ? key->unit : "", key->range);
    while (*text != '\0') {
        size_t len = strcspn(text, "\n");
        printf("    %.*s\n", (int)len, text);
        text += len + (text[len] == '\n');
    }
}

int hth_help_run_file(void)
{
    static const char least[] = "run: x\n";
    static struct hth_run_key keys[KEYS_MAX];
    char error[HTH_RUNFILE_ERROR_MAX];
    struct hth_runfile *run;
    enum hth_err err =
        hth_runfile_parse("help", (const uint8_t *)least, strlen(least), &run, error);
    if (err != HTH_OK)
        return hth_exit_of(err);
    size_t count = hth_runfile_keys(run, keys, KEYS_MAX);
    printf("The keys of a run file: KEY = DEFAULT UNIT (RANGE). In the file, YAML, a key a.b.c\n"
           "stands as c in the group b of the group a.\n");
    for (size_t i = 0; i < count; i++) {
        size_t group = group_of(keys[i].path);
        if (i == 0 || strncmp(keys[i].path, keys[i - 1].path, group) != 0)
            putchar('\n');
        print_key(&keys[i]);
    }
    hth_runfile_free(run);
    return HTH_EXIT_OK;
}

int hth_verb_run(int argc, char **argv)
{
    struct check c = {.path = NULL};
    if (argp_parse(&argp, argc, argv, 0, NULL, &c) != 0)
        return HTH_EXIT_USAGE;
    enum hth_err err = hth_config_load(c.path, &c.run);
    if (err == HTH_E_NO_FILE)
        err = HTH_E_CONFIG;
    if (err == HTH_OK)
        err = hth_run_sizes(c.path, c.run, &c.size);
    if (err == HTH_OK) {
        c.key_count = hth_runfile_keys(c.run, c.keys, KEYS_MAX);
        if (c.json)
            print_json(&c);
        else
            print_table(&c);
    }
    hth_runfile_free(c.run);
    return hth_exit_of(err);
}

/* SPDX-License-Identifier: Apache-2.0 */
#include "studies/load.h"

#include "cli/cli.h"
#include "cli/shipped.h"
#include "core/limits.h"
#include "core/mem.h"
#include "scenarios/file.h"
#include "sim/profile.h"

#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

uint8_t *hth_scenario_slurp(const char *path, size_t max, size_t *len)
{
    FILE *f = fopen(path, "rb");
    uint8_t *data = hth_calloc(max + 2, 1);
    *len = f != NULL ? fread(data, 1, max + 1, f) : 0;
    bool bad = f == NULL || ferror(f) != 0;
    if (bad)
        hth_cli_say_error("sim: %s: %s", path, strerror(errno));
    if (f != NULL)
        fclose(f);
    if (!bad)
        return data;
    hth_free(data);
    return NULL;
}

static void find_scenario(const char *scenario, struct hth_loaded_scenario *s)
{
    if (strpbrk(scenario, "/.") != NULL) {
        snprintf(s->path, sizeof(s->path), "%s", scenario);
        return;
    }
    snprintf(s->path, sizeof(s->path), "scenarios/files/%s.yaml", scenario);
    if (access(s->path, R_OK) == 0)
        return;
    char *found = hth_shipped_find(s->path);
    snprintf(s->path, sizeof(s->path), "%s", found);
    hth_free(found);
}

/* Load a device's profile from the folder of its scenario, unless its path is absolute. */
static int load_profile(const struct hth_loaded_scenario *s, struct hth_scenario_device *device)
{
    char error[HTH_PROFILE_ERROR_MAX], path[sizeof(s->path) + HTH_SCENARIO_PATH_MAX];
    const char *slash = strrchr(s->path, '/');
    struct hth_profile *profile;
    size_t len;
    int beside = device->profile[0] == '/' || slash == NULL ? 0 : (int)(slash + 1 - s->path);
    snprintf(path, sizeof(path), "%.*s%s", beside, s->path, device->profile);
    uint8_t *data = hth_scenario_slurp(path, HTH_PROFILE_BYTES_MAX, &len);
    if (data == NULL)
        return HTH_EXIT_CONFIG;
    enum hth_err err = hth_profile_parse(path, data, len, &profile, error);
    hth_free(data);
    if (err != HTH_OK)
        hth_cli_say_error("%s", error);
    device->measured = profile;
    return err != HTH_OK ? HTH_EXIT_CONFIG : HTH_EXIT_OK;
}

static int load_profiles(struct hth_loaded_scenario *s)
{
    for (uint32_t i = 0; i < s->file->device_count; i++) {
        struct hth_scenario_device *device = &s->file->devices[i];
        int code = device->profile != NULL ? load_profile(s, device) : HTH_EXIT_OK;
        if (code != HTH_EXIT_OK)
            return code;
    }
    return HTH_EXIT_OK;
}

static bool is_name(char c)
{
    return isalnum((unsigned char)c) || c == '_';
}

/* Whether the text begins with `$word`, which is not part of a longer name. */
static bool is_word(const char *text, const char *word)
{
    size_t len = strlen(word);
    return text[0] == '$' && strncmp(text + 1, word, len) == 0 && !is_name(text[1 + len]);
}

void hth_scenario_key_of(const char *text, const char *word, char out[HTH_SCENARIO_KEY_MAX])
{
    const char *at = text, *end;
    out[0] = '\0';
    while (*at != '\0' && !is_word(at, word))
        at++;
    while (at > text && *at != ':')
        at--;
    for (end = at; at > text && is_name(at[-1]);)
        at--;
    if (end - at < HTH_SCENARIO_KEY_MAX)
        snprintf(out, HTH_SCENARIO_KEY_MAX, "%.*s", (int)(end - at), at);
}

char *hth_scenario_fill_in(const char *text, const char *word, const char *value, size_t *count)
{
    size_t value_len = strlen(value), at = 0;
    char *out =
        /* room for the result: each `$` needs at most value_len more */
        hth_calloc(strlen(text) + 1, 1 + value_len);
    *count = 0;
    while (*text != '\0') {
        if (!is_word(text, word)) {
            out[at++] = *text++;
            continue;
        }
        memcpy(out + at, value, value_len);
        at += value_len;
        text += 1 + strlen(word);
        ++*count;
    }
    return out;
}

/* Replace every `$word` in the text `*data` by the value. */
static int fill_in(struct hth_loaded_scenario *s, const char *word, const char *value,
                   uint8_t **data, size_t *len)
{
    size_t count;
    if (strlen((const char *)*data) != *len)
        return HTH_EXIT_OK; /* the parser reports texts with zero bytes */
    hth_scenario_key_of((const char *)*data, word, s->key);
    char *text = hth_scenario_fill_in((const char *)*data, word, value, &count);
    hth_free(*data);
    *data = (uint8_t *)text;
    *len = strlen(text);
    if (count > 0)
        return HTH_EXIT_OK;
    hth_cli_say_error("sim: %s: the file has no $%s to vary, as in `up_s: [$%s, $%s]`", s->path,
                      word, word, word);
    return HTH_EXIT_CONFIG;
}

int hth_scenario_load(const char *scenario, const char *word, const char *value,
                      struct hth_loaded_scenario *out)
{
    char error[HTH_SCENARIO_ERROR_MAX];
    size_t len;
    *out = (struct hth_loaded_scenario){.file = NULL};
    find_scenario(scenario, out);
    uint8_t *data = hth_scenario_slurp(out->path, HTH_SCENARIO_BYTES_MAX, &len);
    if (data == NULL)
        return HTH_EXIT_CONFIG;
    out->text = hth_strdup((const char *)data);
    int code = word != NULL ? fill_in(out, word, value, &data, &len) : HTH_EXIT_OK;
    if (code == HTH_EXIT_OK) {
        enum hth_err err = hth_scenario_parse(out->path, data, len, &out->file, error);
        if (err != HTH_OK)
            hth_cli_say_error("%s", error);
        code = err == HTH_OK ? load_profiles(out) : hth_exit_of(err);
    }
    hth_free(data);
    return code;
}

void hth_scenario_unload(struct hth_loaded_scenario *s)
{
    for (uint32_t i = 0; s->file != NULL && i < s->file->device_count; i++)
        hth_profile_free((struct hth_profile *)s->file->devices[i].measured);
    hth_scenario_free(s->file);
    s->file = NULL;
    hth_free(s->text);
    s->text = NULL;
}

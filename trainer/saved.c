/* SPDX-License-Identifier: Apache-2.0 */
/* saved.c: see saved.h. */
#include "trainer/saved.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/mem.h"
#include "trainer/trainer.h"
#include "trainer/trunk_file.h"

#define LIST           "%s/kept/kept.safetensors"
#define LIST_BYTES_MAX 65536
#define STEPS_TEXT_MAX ((HTH_KEPT_MAX + 1) * 21 + 1)

/* ---- the list ------------------------------------------------------------------------------ */

static bool has(const struct hth_saved *kept, uint64_t step)
{
    for (uint32_t i = 0; i < kept->count; i++)
        if (kept->step[i] == step)
            return true;
    return false;
}

static enum hth_err parse_steps(const char *text, struct hth_saved *out)
{
    while (*text != '\0') {
        char *end;
        uint64_t step = strtoull(text, &end, 10);

        if (end == text || *text < '0' || *text > '9' || (*end != ' ' && *end != '\0') ||
            step == UINT64_MAX || out->count > HTH_KEPT_MAX ||
            (out->count > 0 && step <= out->step[out->count - 1]))
            return HTH_E_CORRUPT;
        out->step[out->count++] = step;
        text = *end == ' ' ? end + 1 : end;
    }
    return HTH_OK;
}

static enum hth_err parse(const struct hth_blob *bytes, struct hth_saved *out)
{
    struct hth_st_reader *r;
    const char *steps;
    enum hth_err err = hth_st_open(bytes->data, bytes->size, &r);

    if (err != HTH_OK)
        return err == HTH_E_NO_MEMORY ? err : HTH_E_CORRUPT;
    steps = hth_st_meta(r, "hearth.steps");
    err = steps != NULL ? parse_steps(steps, out) : HTH_E_CORRUPT;
    if (err == HTH_OK && hth_st_meta(r, "hearth.best") != NULL &&
        (hth_st_meta_u64(r, "hearth.best", &out->best) != HTH_OK || !has(out, out->best) ||
         hth_st_meta_real(r, "hearth.best_loss", &out->loss) != HTH_OK || !isfinite(out->loss)))
        err = HTH_E_CORRUPT;
    hth_st_close(r);
    return err;
}

enum hth_err hth_saved_read(struct hth_env *env, const char *dir, struct hth_saved *out)
{
    char *path = hth_asprintf(LIST, dir);
    struct hth_blob *bytes = NULL;
    enum hth_err err = hth_file_read(env, path, LIST_BYTES_MAX, &bytes);

    *out = (struct hth_saved){.count = 0};
    if (err == HTH_OK)
        err = parse(bytes, out);
    if (err != HTH_OK)
        *out = (struct hth_saved){.count = 0};
    hth_blob_unref(bytes);
    hth_free(path);
    return err == HTH_E_NO_FILE ? HTH_OK : err;
}

static enum hth_err write_list(struct hth_env *env, const char *dir, const struct hth_saved *kept)
{
    struct hth_st_writer *w = hth_st_writer_new();
    char steps[STEPS_TEXT_MAX] = "", *path = hth_asprintf(LIST, dir);
    struct hth_blob *bytes = NULL;
    enum hth_err err;

    for (size_t i = 0, len = 0; i < kept->count; i++)
        len += (size_t)snprintf(steps + len, sizeof(steps) - len, "%s%llu", i > 0 ? " " : "",
                                (unsigned long long)kept->step[i]);
    hth_st_add_meta(w, "hearth.steps", steps);
    if (kept->best > 0) {
        hth_st_add_meta_u64(w, "hearth.best", kept->best);
        hth_st_add_meta_real(w, "hearth.best_loss", kept->loss);
    }
    err = hth_st_writer_finish(w, &bytes);
    if (err == HTH_OK) {
        const struct hth_span span = {bytes, 0, bytes->size};

        err = hth_file_write(env, path, &span, 1);
    }
    hth_blob_unref(bytes);
    hth_st_writer_free(w);
    hth_free(path);
    return err;
}

/* ---- steps --------------------------------------------------------------------------------- */

static void remove_path(struct hth_env *env, char *path)
{
    (void)!hth_file_remove(env, path);
    hth_free(path);
}

static void remove_step(struct hth_env *env, const char *dir, uint64_t step,
                        const char *const *experts, uint32_t count)
{
    unsigned long long at = step;

    for (uint32_t i = 0; i < count; i++)
        remove_path(env, hth_asprintf("%s/kept/%llu/experts/%s", dir, at, experts[i]));
    remove_path(env, hth_asprintf("%s/kept/%llu/trunk.safetensors", dir, at));
    remove_path(env, hth_asprintf("%s/kept/%llu/experts", dir, at));
    remove_path(env, hth_asprintf("%s/kept/%llu", dir, at));
}

/* Takes the oldest step but the best out of the list. */
static uint64_t drop_oldest(struct hth_saved *kept)
{
    uint32_t i = kept->step[0] == kept->best ? 1 : 0;
    uint64_t step = kept->step[i];

    kept->count--;
    memmove(&kept->step[i], &kept->step[i + 1], (kept->count - i) * sizeof(kept->step[0]));
    return step;
}

/* How many stay: the best does not count unless it is among the last ones. */
static uint32_t room(const struct hth_saved *kept, uint32_t keep)
{
    bool old = kept->best > 0 && kept->count > keep && kept->best < kept->step[kept->count - keep];

    return keep + old;
}

enum hth_err hth_saved_add(struct hth_env *env, const char *dir, struct hth_saved *kept,
                           uint64_t step, uint32_t keep, const char *const *experts, uint32_t count)
{
    uint64_t gone[HTH_KEPT_MAX + 2];
    uint32_t n = 0;
    enum hth_err err;

    /* A run that went back to an earlier step takes later ones with it. */
    while (kept->count > 0 && kept->step[kept->count - 1] >= step) {
        uint64_t later = kept->step[--kept->count];

        if (later != step)
            gone[n++] = later;
        if (later == kept->best)
            kept->best = 0;
    }
    if (kept->count == HTH_KEPT_MAX + 1)
        gone[n++] = drop_oldest(kept);
    kept->step[kept->count++] = step;
    while (kept->count > room(kept, keep))
        gone[n++] = drop_oldest(kept);
    err = write_list(env, dir, kept);
    for (uint32_t i = 0; err == HTH_OK && i < n; i++)
        remove_step(env, dir, gone[i], experts, count);
    return err;
}

enum hth_err hth_saved_judge(struct hth_env *env, const char *dir, struct hth_saved *kept,
                             uint64_t step, double loss)
{
    if (!has(kept, step) || !isfinite(loss) || (kept->best > 0 && kept->loss <= loss))
        return HTH_OK;
    kept->best = step;
    kept->loss = loss;
    return write_list(env, dir, kept);
}

/* ---- finding ------------------------------------------------------------------------------- */

static enum hth_err none(const struct hth_saved *kept, const char *which, uint64_t last,
                         struct hth_why *why)
{
    size_t len = (size_t)snprintf(why->text, sizeof(why->text),
                                  "no checkpoint '%.24s'; there are: last (%llu)", which,
                                  (unsigned long long)last);

    if (kept->best > 0)
        len += (size_t)snprintf(why->text + len, sizeof(why->text) - len, ", best (%llu)",
                                (unsigned long long)kept->best);
    for (uint32_t i = 0; i < kept->count && len + 24 < sizeof(why->text); i++)
        len += (size_t)snprintf(why->text + len, sizeof(why->text) - len, ", %llu",
                                (unsigned long long)kept->step[i]);
    if (kept->count == 0)
        snprintf(why->text + len, sizeof(why->text) - len, "; train --keep N keeps more");
    return HTH_E_NOT_FOUND;
}

enum hth_err hth_saved_find(struct hth_env *env, const char *dir, const char *which, uint64_t last,
                            struct hth_why *why, char **out)
{
    struct hth_saved kept;
    char *end;
    uint64_t step = strtoull(which, &end, 10);
    bool is_step = which[0] >= '0' && which[0] <= '9' && *end == '\0';
    enum hth_err err;

    *out = NULL;
    if (!is_step && strcmp(which, "last") != 0 && strcmp(which, "best") != 0)
        return hth_blame(why, HTH_E_USAGE, "'%.24s': expected last, best or a step", which);
    err = hth_saved_read(env, dir, &kept);
    if (err != HTH_OK)
        return hth_blame(why, err, "kept/kept.safetensors: %s", hth_err_text(err));
    if (strcmp(which, "best") == 0)
        step = kept.best;
    if (strcmp(which, "last") == 0)
        *out = hth_strdup(dir);
    else if (step > 0 && has(&kept, step))
        *out = hth_asprintf("%s/kept/%llu", dir, (unsigned long long)step);
    else if (is_step && step == last)
        *out = hth_strdup(dir);
    return *out != NULL ? HTH_OK : none(&kept, which, last, why);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* model_card.c: config.json and README.md of a published model. */
#include "app/model_card.h"

#include "cli/cli.h"
#include "cli/config.h"
#include "cli/json.h"
#include "core/mem.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define KEYS_MAX 128

static const char *dtype_name(enum hth_dtype dtype)
{
    return dtype == HTH_BF16 ? "BF16" : "F32";
}

/* ---- config.json --------------------------------------------------------------------------- */

/* Numbers, switches and lists of numbers are written as in JSON; else it is a word, or a list of
 * words. */
static json_t *value_of(const char *text)
{
    json_t *value = json_loads(text, JSON_DECODE_ANY, NULL);
    char *copy, *rest = NULL;

    if (value != NULL || text[0] != '[')
        return value != NULL ? value : json_string(text);
    value = json_array();
    copy = hth_strdup(text);
    for (char *at = strtok_r(copy, "[], ", &rest); at != NULL; at = strtok_r(NULL, "[], ", &rest))
        json_array_append_new(value, json_string(at));
    hth_free(copy);
    return value;
}

static json_t *model_of(const struct hth_runfile *run)
{
    struct hth_run_key *keys = hth_new_array(struct hth_run_key, KEYS_MAX);
    size_t count = hth_runfile_keys(run, keys, KEYS_MAX);
    json_t *o = json_object();

    HTH_ASSERT(count <= KEYS_MAX);
    for (size_t i = 0; i < count; i++)
        if (strncmp(keys[i].path, "model.", strlen("model.")) == 0)
            hth_json_take(o, keys[i].path + strlen("model."),
                          keys[i].value[0] != '\0' ? value_of(keys[i].value) : NULL);
    hth_free(keys);
    return o;
}

/* A classifier's pixels, 0..255, are its input after (pixel / 255 - mean) / std. */
static json_t *input_of(const struct hth_runfile *run)
{
    struct hth_data_opts train = HTH_DATA_OPTS_INIT, test = train;
    struct hth_config_data paths = {0};
    json_t *o = json_object();

    hth_config_data(run, 0, &paths, &train, &test);
    hth_json_real(o, "mean", train.mean);
    hth_json_real(o, "std", train.std);
    hth_config_data_clear(&paths);
    return o;
}

char *hth_model_card_config(const struct hth_model_card *card)
{
    const struct hth_model_about *about = card->about;
    json_t *o = json_object();
    char schema[24], *text, *out;

    snprintf(schema, sizeof(schema), "%016llx", (unsigned long long)about->schema);
    hth_json_text(o, "format", "hearth-model-1");
    hth_json_text(o, "run", about->run);
    hth_json_take(o, "model", model_of(card->run));
    hth_json_text(o, "schema", schema);
    hth_json_count(o, "seed", card->run->seed);
    hth_json_count(o, "step", about->updates);
    hth_json_count(o, "samples", about->samples);
    hth_json_text(o, "dtype", dtype_name(card->dtype));
    hth_json_count(o, "parameters", card->parameters);
    hth_json_count(o, "experts", card->experts);
    hth_json_count(o, "experts_all", card->experts_all);
    if (card->run->model.kind == HTH_RUN_CLASSIFIER)
        hth_json_take(o, "input", input_of(card->run));
    hth_json_text(o, "data", about->data);
    hth_json_text(o, "licence", about->licence);
    text = json_dumps(o, JSON_INDENT(2) | JSON_REAL_PRECISION(7));
    out = hth_asprintf("%s\n", text);
    free(text);
    json_decref(o);
    return out;
}

/* The run file's word. */
static char *kind_of(const struct hth_runfile *run)
{
    json_t *model = model_of(run);
    char *kind = hth_strdup(json_string_value(json_object_get(model, "kind")));

    json_decref(model);
    return kind;
}

/* ---- README.md ----------------------------------------------------------------------------- */

static char *experts_text(const struct hth_model_card *card)
{
    if (card->experts_all == 0)
        return hth_strdup("none");
    return hth_asprintf("%u of %u", card->experts, card->experts_all);
}

char *hth_model_card_readme(const struct hth_model_card *card)
{
    const struct hth_model_about *about = card->about;
    char parameters[32], steps[32], samples[32], *out;
    char *experts = experts_text(card), *kind = kind_of(card->run);

    out = hth_asprintf(
        "# %s\n\n"
        "A %s model trained with hearth.\n\n"
        "| | |\n|---|---|\n"
        "| steps, samples | %s, %s |\n"
        "| parameters | %s, as %s |\n"
        "| experts | %s |\n"
        "| data | %s |\n"
        "| licence of the data | %s |\n\n"
        "| file | content |\n|---|---|\n"
        "| `model.safetensors` | all weights: the trunk's by name, experts as `experts/UID/NAME` "
        "|\n"
        "| `config.json` | sizes and options, for programs |\n"
        "| `run.yaml` | the run file |\n"
        "%s%s"
        "| `sha256sums` | `sha256sum -c sha256sums` checks all files |\n\n"
        "Train on: `hearth import THIS --dir DIR`, then `hearth train --run DIR/run.yaml --dir DIR "
        "--resume --local`.\n"
        "In Python: `python3 tools/python/hearth_model.py THIS` of hearth's sources, or "
        "`hearth_model.load(\"THIS\")`;\nit needs numpy.\n",
        about->run, kind, hth_cli_count_text(about->updates, steps),
        hth_cli_count_text(about->samples, samples),
        hth_cli_count_text(card->parameters, parameters), dtype_name(card->dtype), experts,
        about->data != NULL ? about->data : "not stated",
        about->licence != NULL ? about->licence : "not stated",
        card->words ? "| `words.json` | the words, by id |\n" : "",
        card->book ? "| `codebook.safetensors` | the pictures' patches, by code |\n" : "");
    hth_free(experts);
    hth_free(kind);
    return out;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* profile_file.c: parses the text of a profile with libcyaml's tables. */
#include "core/limits.h"
#include "core/yaml.h"
#include "sim/profile.h"

#include <stdio.h>
#include <string.h>

#define P   struct hth_profile
#define OPT CYAML_FLAG_OPTIONAL

static const cyaml_schema_field_t batch_fields[] = {
    CYAML_FIELD_UINT("d", CYAML_FLAG_DEFAULT, struct hth_profile_point, d),
    CYAML_FIELD_UINT("rows", CYAML_FLAG_DEFAULT, struct hth_profile_point, rows),
    CYAML_FIELD_FLOAT("us", CYAML_FLAG_DEFAULT, struct hth_profile_point, us),
    CYAML_FIELD_END,
};
static const cyaml_schema_field_t step_fields[] = {
    CYAML_FIELD_UINT("d", CYAML_FLAG_DEFAULT, struct hth_profile_point, d),
    CYAML_FIELD_FLOAT("us", CYAML_FLAG_DEFAULT, struct hth_profile_point, us),
    CYAML_FIELD_END,
};
static const cyaml_schema_value_t batch_schema = {
    CYAML_VALUE_MAPPING(CYAML_FLAG_DEFAULT, struct hth_profile_point, batch_fields)};
static const cyaml_schema_value_t step_schema = {
    CYAML_VALUE_MAPPING(CYAML_FLAG_DEFAULT, struct hth_profile_point, step_fields)};

#define TABLE(text, member, schema)                                                                \
    CYAML_FIELD_SEQUENCE_COUNT(text, CYAML_FLAG_POINTER | OPT, P, member.points, member.count,     \
                               schema, 1, HTH_PROFILE_POINTS_MAX)

static const cyaml_schema_field_t fields[] = {
    CYAML_FIELD_STRING_PTR("name", CYAML_FLAG_POINTER, P, name, 1, HTH_PROFILE_NAME_MAX),
    CYAML_FIELD_UINT("workers", CYAML_FLAG_DEFAULT, P, workers),
    CYAML_FIELD_FLOAT("gflops", CYAML_FLAG_DEFAULT, P, gflops),
    CYAML_FIELD_FLOAT("gbytes_per_s", CYAML_FLAG_DEFAULT, P, gbytes_per_s),
    CYAML_FIELD_FLOAT("overhead_us", OPT, P, overhead_us),
    TABLE("forward", forward, &batch_schema),
    TABLE("backward", backward, &batch_schema),
    TABLE("step", step, &step_schema),
    CYAML_FIELD_END,
};
static const cyaml_schema_value_t schema = {CYAML_VALUE_MAPPING(CYAML_FLAG_POINTER, P, fields)};

static const struct hth_yaml_kind kind = {
    .what = "a profile",
    .least = "'hearth bench --profile' writes one",
    .bytes_max = HTH_PROFILE_BYTES_MAX,
    .schema = &schema,
};

enum hth_err hth_profile_parse(const char *name, const uint8_t *data, size_t len,
                               struct hth_profile **out, char error[HTH_PROFILE_ERROR_MAX])
{
    void *value = NULL;
    char why[256];
    *out = NULL;
    HTH_TRY(hth_yaml_load(&kind, name, data, len, &value, error, HTH_PROFILE_ERROR_MAX));
    struct hth_profile *p = value;
    for (uint32_t i = 0; i < p->step.count; i++)
        p->step.points[i].rows = 1;
    if (hth_profile_check(p, why, sizeof(why)) != HTH_OK) {
        snprintf(error, HTH_PROFILE_ERROR_MAX, "%s: %s", name, why);
        hth_profile_free(p);
        return HTH_E_CONFIG;
    }
    *out = p;
    return HTH_OK;
}

void hth_profile_free(struct hth_profile *p)
{
    hth_yaml_free(&kind, p);
}

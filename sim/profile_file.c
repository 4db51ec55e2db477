/* SPDX-License-Identifier: Apache-2.0 */
/* profile_file.c: the text of a profile, as libcyaml's tables. */
#include "sim/profile.h"

#include "core/limits.h"

#include <cyaml/cyaml.h>

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

struct parse_log {
    char message[256]; /* what libcyaml says first */
    char where[128];   /* the innermost place of its backtrace */
};

HTH_PRINTF(3, 0)
static void keep_log(cyaml_log_t level, void *ctx, const char *fmt, va_list args)
{
    struct parse_log *log = ctx;
    char line[256];
    (void)level;
    vsnprintf(line, sizeof(line), fmt, args);
    line[strcspn(line, "\n")] = '\0';
    const char *text = strncmp(line, "Load: ", 6) == 0 ? line + 6 : line;
    if (strncmp(text, "  in ", 5) == 0) {
        if (log->where[0] == '\0')
            snprintf(log->where, sizeof(log->where), "%.127s", text + 2);
    } else if (strncmp(text, "Backtrace", 9) != 0 && log->message[0] == '\0') {
        snprintf(log->message, sizeof(log->message), "%.255s", text);
    }
}

enum hth_err hth_profile_parse(const char *name, const uint8_t *data, size_t len,
                               struct hth_profile **out, char error[HTH_PROFILE_ERROR_MAX])
{
    struct parse_log log = {.message = ""};
    struct hth_profile *p = NULL;
    char why[256];
    /* Aliases are off: nested ones would make a small file expand without bound. */
    const cyaml_config_t config = {
        .log_fn = keep_log,
        .log_ctx = &log,
        .log_level = CYAML_LOG_WARNING,
        .mem_fn = cyaml_mem,
        .flags = CYAML_CFG_NO_ALIAS,
    };
    *out = NULL;
    error[0] = '\0';
    if (len > HTH_PROFILE_BYTES_MAX) {
        snprintf(error, HTH_PROFILE_ERROR_MAX, "%s: %zu bytes; a profile has at most %u", name, len,
                 HTH_PROFILE_BYTES_MAX);
        return HTH_E_TOO_LARGE;
    }
    cyaml_err_t e = cyaml_load_data(data, len, &config, &schema, (cyaml_data_t **)&p, NULL);
    if (e != CYAML_OK || p == NULL) {
        const char *text = log.message[0] != '\0' ? log.message
                           : e == CYAML_OK        ? "empty; 'hearth bench --profile' writes one"
                                                  : cyaml_strerror(e);
        snprintf(error, HTH_PROFILE_ERROR_MAX, "%s: %s %s", name, text, log.where);
        return HTH_E_CONFIG;
    }
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
    const cyaml_config_t config = {.mem_fn = cyaml_mem, .log_level = CYAML_LOG_ERROR};
    if (p != NULL)
        cyaml_free(&config, &schema, p, 0);
}

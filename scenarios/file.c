/* SPDX-License-Identifier: Apache-2.0 */
/* file.c: the schema of a scenario as libcyaml's tables. */
#include "scenarios/file.h"

#include "core/limits.h"
#include "core/yaml.h"

#include <stdio.h>
#include <string.h>

#define OPT     CYAML_FLAG_OPTIONAL
#define OPT_PTR (CYAML_FLAG_OPTIONAL | CYAML_FLAG_POINTER)
#define S       struct hth_scenario

static const cyaml_strval_t churn_kinds[] = {{"none", HTH_LIFE_ALWAYS},
                                             {"poisson", HTH_LIFE_POISSON},
                                             {"weibull", HTH_LIFE_WEIBULL},
                                             {"diurnal", HTH_LIFE_DIURNAL}};

/* A struct hth_range lies in memory like two numbers. */
_Static_assert(sizeof(struct hth_range) == 2 * sizeof(double), "low and high, nothing between");
static const cyaml_schema_value_t real = {CYAML_VALUE_FLOAT(CYAML_FLAG_DEFAULT, double)};

#define RANGE(text, where)                                                                         \
    {                                                                                              \
        .key = text, .data_offset = offsetof(S, where), .value = {                                 \
            .type = CYAML_SEQUENCE_FIXED,                                                          \
            .flags = OPT,                                                                          \
            .data_size = sizeof(double),                                                           \
            .sequence = {.min = 2, .max = 2, .entry = &real},                                      \
        }                                                                                          \
    }
#define REAL(text, where)                                                                          \
    {                                                                                              \
        .key = text, .data_offset = offsetof(S, where), .value = {                                 \
            .type = CYAML_FLOAT,                                                                   \
            .flags = OPT,                                                                          \
            .data_size = sizeof(double)                                                            \
        }                                                                                          \
    }
#define COUNT(text, where)                                                                         \
    {                                                                                              \
        .key = text, .data_offset = offsetof(S, where), .value = {                                 \
            .type = CYAML_UINT,                                                                    \
            .flags = OPT,                                                                          \
            .data_size = sizeof(uint32_t)                                                          \
        }                                                                                          \
    }
/* The members of inner mappings have offsets from the scenario's start. */
#define PART(text, fields)                                                                         \
    {                                                                                              \
        .key = text, .data_offset = 0, .value = {                                                  \
            .type = CYAML_MAPPING,                                                                 \
            .flags = OPT,                                                                          \
            .data_size = sizeof(S),                                                                \
            .mapping = {fields}                                                                    \
        }                                                                                          \
    }

static const cyaml_schema_field_t load_fields[] = {
    REAL("payload_kib", load.payload_kib),
    REAL("calls_per_s", load.calls_per_s),
    COUNT("experts", load.experts),
    COUNT("hood", load.hood),
    {.key = "real",
     .data_offset = offsetof(S, load.real),
     .value = {.type = CYAML_BOOL, .flags = OPT, .data_size = sizeof(bool)}},
    CYAML_FIELD_END,
};
static const cyaml_strval_t averaging_modes[] = {
    {"local", HTH_SCENARIO_LOCAL}, {"batch", HTH_SCENARIO_BATCH}, {"off", HTH_SCENARIO_OFF}};
static const cyaml_schema_field_t swarm_fields[] = {
    COUNT("hosts", swarm.hosts),
    COUNT("copies", swarm.copies),
    COUNT("trainers", swarm.trainers),
    COUNT("dim", swarm.dim),
    COUNT("layers", swarm.layers),
    COUNT("grid", swarm.grid),
    COUNT("top_k", swarm.top_k),
    COUNT("rows", swarm.rows),
    COUNT("flights", swarm.flights),
    {.key = "averaging",
     .data_offset = offsetof(S, swarm.averaging),
     .value = {.type = CYAML_ENUM,
               .flags = OPT | CYAML_FLAG_STRICT,
               .data_size = sizeof(enum hth_scenario_averaging),
               .enumeration = {averaging_modes, HTH_ARRAY_LEN(averaging_modes)}}},
    COUNT("every", swarm.every),
    COUNT("target", swarm.target),
    REAL("clip", swarm.clip),
    REAL("checkpoint_s", swarm.checkpoint_s),
    REAL("held_mib", swarm.held_mib),
    CYAML_FIELD_END,
};
static const cyaml_schema_field_t malice_fields[] = {
#define MALICE(name) COUNT(#name, malice.name),
    HTH_MALICE_MAP(MALICE) CYAML_FIELD_END,
#undef MALICE
};
static const cyaml_schema_field_t link_fields[] = {
    RANGE("latency_ms", links.latency_ms),
    RANGE("jitter_ms", links.jitter_ms),
    RANGE("loss", links.loss),
    CYAML_FIELD_END,
};
static const cyaml_schema_field_t churn_fields[] = {
    {.key = "kind",
     .data_offset = offsetof(S, churn.kind),
     .value = {.type = CYAML_ENUM,
               .flags = OPT | CYAML_FLAG_STRICT,
               .data_size = sizeof(enum hth_life_kind),
               .enumeration = {churn_kinds, HTH_ARRAY_LEN(churn_kinds)}}},
    RANGE("up_s", churn.up_s),
    RANGE("down_s", churn.down_s),
    RANGE("shape", churn.shape),
    RANGE("swing", churn.swing),
    REAL("day_s", churn.day_s),
    COUNT("providers", churn.providers),
    RANGE("provider_up_s", churn.provider_up_s),
    RANGE("provider_down_s", churn.provider_down_s),
    REAL("silent", churn.silent),
    CYAML_FIELD_END,
};
static const cyaml_schema_field_t partition_fields[] = {
    RANGE("every_s", partitions.every_s),
    RANGE("for_s", partitions.for_s),
    RANGE("share", partitions.share),
    REAL("one_way", partitions.one_way),
    CYAML_FIELD_END,
};
static const cyaml_schema_field_t clog_fields[] = {
    RANGE("every_s", clogs.every_s),
    RANGE("for_s", clogs.for_s),
    COUNT("ways", clogs.ways),
    CYAML_FIELD_END,
};
static const cyaml_schema_field_t clock_fields[] = {
    RANGE("skew_ms", clocks.skew_ms),
    RANGE("step_ms", clocks.step_ms),
    RANGE("every_s", clocks.every_s),
    CYAML_FIELD_END,
};
static const cyaml_schema_field_t straggler_fields[] = {
    RANGE("share", stragglers.share),
    RANGE("speed", stragglers.speed),
    CYAML_FIELD_END,
};
static const cyaml_schema_field_t dht_fields[] = {
    RANGE("lost_put", dht.lost_put),
    RANGE("lost_get", dht.lost_get),
    RANGE("partial", dht.partial),
    RANGE("repeat", dht.repeat),
    RANGE("stale", dht.stale),
    REAL("refresh_s", dht.refresh_s),
    CYAML_FIELD_END,
};
static const cyaml_schema_field_t chaos_fields[] = {
    RANGE("short_read", chaos.short_read),
    RANGE("short_write", chaos.short_write),
    RANGE("io_error", chaos.io_error),
    RANGE("torn_file", chaos.torn_file),
    REAL("sites", chaos.sites),
    REAL("fires", chaos.fires),
    CYAML_FIELD_END,
};
static const cyaml_schema_field_t zone_fields[] = {
    CYAML_FIELD_STRING_PTR("name", CYAML_FLAG_POINTER, struct hth_scenario_zone, name, 1,
                           HTH_SCENARIO_NAME_MAX),
    CYAML_FIELD_FLOAT("share", CYAML_FLAG_DEFAULT, struct hth_scenario_zone, share),
    CYAML_FIELD_SEQUENCE_COUNT("latency_ms", CYAML_FLAG_POINTER, struct hth_scenario_zone,
                               latency_ms, latency_count, &real, 1, HTH_SCENARIO_ZONES_MAX),
    CYAML_FIELD_END,
};
static const cyaml_schema_field_t device_fields[] = {
    CYAML_FIELD_STRING_PTR("name", CYAML_FLAG_POINTER, struct hth_scenario_device, name, 1,
                           HTH_SCENARIO_NAME_MAX),
    CYAML_FIELD_FLOAT("share", CYAML_FLAG_DEFAULT, struct hth_scenario_device, share),
    CYAML_FIELD_FLOAT("gflops", OPT, struct hth_scenario_device, gflops),
    CYAML_FIELD_FLOAT("gbytes_per_s", OPT, struct hth_scenario_device, gbytes_per_s),
    CYAML_FIELD_UINT("workers", OPT, struct hth_scenario_device, workers),
    CYAML_FIELD_STRING_PTR("profile", OPT_PTR, struct hth_scenario_device, profile, 1,
                           HTH_SCENARIO_PATH_MAX),
    CYAML_FIELD_FLOAT("up_mbit", OPT, struct hth_scenario_device, up_mbit),
    CYAML_FIELD_FLOAT("down_mbit", OPT, struct hth_scenario_device, down_mbit),
    CYAML_FIELD_FLOAT("disk_mb", OPT, struct hth_scenario_device, disk_mb),
    CYAML_FIELD_END,
};
static const cyaml_schema_value_t zone_schema = {
    CYAML_VALUE_MAPPING(CYAML_FLAG_DEFAULT, struct hth_scenario_zone, zone_fields)};
static const cyaml_schema_value_t device_schema = {
    CYAML_VALUE_MAPPING(CYAML_FLAG_DEFAULT, struct hth_scenario_device, device_fields)};

static const cyaml_schema_field_t top_fields[] = {
    CYAML_FIELD_STRING_PTR("name", CYAML_FLAG_POINTER, S, name, 1, HTH_SCENARIO_NAME_MAX),
    COUNT("nodes", nodes),
    REAL("duration_s", duration_s),
    REAL("safety", safety),
    PART("load", load_fields),
    PART("swarm", swarm_fields),
    PART("malice", malice_fields),
    PART("links", link_fields),
    CYAML_FIELD_SEQUENCE_COUNT("zones", OPT_PTR, S, zones, zone_count, &zone_schema, 1,
                               HTH_SCENARIO_ZONES_MAX),
    CYAML_FIELD_SEQUENCE_COUNT("devices", OPT_PTR, S, devices, device_count, &device_schema, 1,
                               HTH_SCENARIO_DEVICES_MAX),
    PART("churn", churn_fields),
    PART("partitions", partition_fields),
    PART("clogs", clog_fields),
    PART("clocks", clock_fields),
    PART("stragglers", straggler_fields),
    PART("dht", dht_fields),
    PART("chaos", chaos_fields),
    CYAML_FIELD_END,
};
static const cyaml_schema_value_t schema = {CYAML_VALUE_MAPPING(CYAML_FLAG_POINTER, S, top_fields)};

static const struct hth_yaml_kind kind = {
    .what = "a scenario",
    .least = "it needs at least 'name: WORD'",
    .bytes_max = HTH_SCENARIO_BYTES_MAX,
    .schema = &schema,
};

/* ---- defaults ------------------------------------------------------------------------------ */

/* The target, its defaults, and the keys that the file has. Those keys keep their values, so that
 * an invalid 0 is an error and does not become the default. */
struct filling {
    struct hth_scenario *s;
    struct hth_scenario defaults;
    struct hth_yaml_given given;
};

static bool is_given(const struct filling *f, const void *member)
{
    return hth_yaml_is_given(&f->given, (size_t)((const char *)member - (const char *)f->s));
}

static void default_count(const struct filling *f, uint32_t *x, uint32_t fallback)
{
    if (!is_given(f, x))
        *x = fallback;
}

/* FILL(member): take the default. */
#define FILL(member)                                                                               \
    do {                                                                                           \
        if (!is_given(f, &f->s->member))                                                           \
            f->s->member = f->defaults.member;                                                     \
    } while (0)

/* Sums that overflow are out of range, like their terms. */
static void fill_swarm(const struct filling *f)
{
    struct hth_scenario *s = f->s;
    const struct hth_scenario *d = &f->defaults;
    default_count(f, &s->nodes,
                  s->swarm.hosts + s->swarm.trainers + (uint32_t)hth_scenario_malice(s));
    default_count(f, &s->swarm.copies, HTH_MIN(d->swarm.copies, s->swarm.hosts));
    FILL(swarm.dim);
    FILL(swarm.layers);
    FILL(swarm.grid);
    default_count(f, &s->swarm.top_k, HTH_MIN(d->swarm.top_k, s->swarm.grid * s->swarm.grid));
    FILL(swarm.rows);
    FILL(swarm.flights);
    FILL(swarm.every);
    FILL(swarm.target);
    FILL(swarm.held_mib);
}

/* Fill in defaults only where 0 is invalid: elsewhere a key that is left out means none. */
static void fill_defaults(const struct filling *f)
{
    if (f->s->swarm.trainers > 0)
        fill_swarm(f);
    else
        FILL(nodes);
    FILL(duration_s);
    FILL(safety);
    FILL(load.payload_kib);
    FILL(load.calls_per_s);
    FILL(load.experts);
    FILL(load.hood);
    FILL(links.latency_ms);
    FILL(churn.shape);
    FILL(churn.day_s);
    FILL(clogs.ways);
    FILL(stragglers.speed);
    FILL(dht.refresh_s);
}

/* Explain `$up` in the place of a number: a command must give its value. */
static void explain_word(char error[HTH_SCENARIO_ERROR_MAX])
{
    const char *word = strstr(error, ": '$");
    size_t len = strlen(error);
    if (word == NULL)
        return;
    word += strlen(": '$");
    snprintf(error + len, HTH_SCENARIO_ERROR_MAX - len,
             "; `hearth sim vary SCENARIO --vary %.*s=A,B` gives it values",
             (int)HTH_MIN(strcspn(word, "'"), (size_t)32), word);
}

/* Whether the file has any key of this part. */
static bool has_any(const struct filling *f, size_t offset, size_t size)
{
    for (size_t i = 0; i < f->given.count; i++)
        if (f->given.offset[i] >= offset && f->given.offset[i] < offset + size)
            return true;
    return false;
}

enum hth_err hth_scenario_parse(const char *name, const uint8_t *data, size_t len,
                                struct hth_scenario **out, char error[HTH_SCENARIO_ERROR_MAX])
{
    void *value = NULL;
    char why[256];
    struct filling filling;
    *out = NULL;
    enum hth_err err = hth_yaml_load(&kind, name, data, len, &value, error, HTH_SCENARIO_ERROR_MAX);
    if (err != HTH_OK) {
        explain_word(error);
        return err;
    }
    filling.s = value;
    hth_scenario_init(&filling.defaults);
    hth_yaml_find_given(&kind, data, len, &filling.given);
    fill_defaults(&filling);
    bool good = hth_scenario_check(value, why, sizeof(why)) == HTH_OK;
    if (good && filling.s->swarm.trainers == 0 &&
        has_any(&filling, offsetof(S, swarm), sizeof(filling.s->swarm))) {
        snprintf(why, sizeof(why), "swarm needs swarm.trainers, at least one");
        good = false;
    }
    if (!good) {
        snprintf(error, HTH_SCENARIO_ERROR_MAX, "%s: %s", name, why);
        hth_yaml_free(&kind, value);
        return HTH_E_CONFIG;
    }
    *out = value;
    return HTH_OK;
}

void hth_scenario_free(struct hth_scenario *s)
{
    hth_yaml_free(&kind, s);
}

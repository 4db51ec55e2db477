/* SPDX-License-Identifier: Apache-2.0 */
/* file.c: parses the description of a lab with libcyaml's tables. */
#include "core/yaml.h"
#include "lab/lab.h"

#include <stdio.h>
#include <string.h>

#define S       struct hth_lab_spec
#define LINK    struct hth_lab_spec_link
#define HOST    struct hth_lab_spec_host
#define WAY     struct hth_lab_spec_way
#define OPT     CYAML_FLAG_OPTIONAL
#define OPT_PTR (CYAML_FLAG_OPTIONAL | CYAML_FLAG_POINTER)

static const cyaml_strval_t jitters[] = {{"none", HTH_JITTER_NONE},
                                         {"uniform", HTH_JITTER_UNIFORM},
                                         {"exponential", HTH_JITTER_EXPONENTIAL},
                                         {"normal", HTH_JITTER_NORMAL}};

#define LINK_FIELDS(type, member)                                                                  \
    CYAML_FIELD_FLOAT("latency_ms", OPT, type, member latency_ms),                                 \
        CYAML_FIELD_FLOAT("jitter_ms", OPT, type, member jitter_ms),                               \
        CYAML_FIELD_FLOAT("loss", OPT, type, member loss),                                         \
        CYAML_FIELD_ENUM("jitter", OPT | CYAML_FLAG_STRICT, type, member jitter, jitters,          \
                         HTH_ARRAY_LEN(jitters))

static const cyaml_schema_field_t link_fields[] = {LINK_FIELDS(LINK, ), CYAML_FIELD_END};
static const cyaml_schema_field_t host_fields[] = {
    CYAML_FIELD_STRING_PTR("name", CYAML_FLAG_POINTER, HOST, name, 1, HTH_LAB_NAME_MAX),
    CYAML_FIELD_FLOAT("up_mbit", OPT, HOST, up_mbit),
    CYAML_FIELD_FLOAT("down_mbit", OPT, HOST, down_mbit),
    CYAML_FIELD_UINT("queue_kib", OPT, HOST, queue_kib),
    CYAML_FIELD_END,
};
static const cyaml_schema_field_t way_fields[] = {
    CYAML_FIELD_STRING_PTR("from", CYAML_FLAG_POINTER, WAY, from, 1, HTH_LAB_NAME_MAX),
    CYAML_FIELD_STRING_PTR("to", CYAML_FLAG_POINTER, WAY, to, 1, HTH_LAB_NAME_MAX),
    LINK_FIELDS(WAY, link.),
    CYAML_FIELD_END,
};
static const cyaml_schema_value_t host_schema = {
    CYAML_VALUE_MAPPING(CYAML_FLAG_DEFAULT, HOST, host_fields)};
static const cyaml_schema_value_t way_schema = {
    CYAML_VALUE_MAPPING(CYAML_FLAG_DEFAULT, WAY, way_fields)};
static const cyaml_schema_field_t fields[] = {
    CYAML_FIELD_UINT("seed", OPT, S, seed),
    CYAML_FIELD_UINT("mtu", OPT, S, mtu),
    CYAML_FIELD_MAPPING("link", OPT, S, link, link_fields),
    CYAML_FIELD_SEQUENCE_COUNT("hosts", CYAML_FLAG_POINTER, S, hosts, host_count, &host_schema, 1,
                               HTH_LAB_HOSTS_MAX),
    CYAML_FIELD_SEQUENCE_COUNT("ways", OPT_PTR, S, ways, way_count, &way_schema, 0,
                               HTH_LAB_WAYS_MAX),
    CYAML_FIELD_END,
};
static const cyaml_schema_value_t schema = {CYAML_VALUE_MAPPING(CYAML_FLAG_POINTER, S, fields)};

/* ---- bounds -------------------------------------------------------------------------------- */

static bool within(const char *of, const char *key, double value, double low, double high,
                   char *error, size_t max)
{
    if (value >= low && value <= high)
        return true;
    snprintf(error, max, "%.40s: %s is %g; it must lie between %g and %g", of, key, value, low,
             high);
    return false;
}

static bool check_link(const char *of, const LINK *l, char *error, size_t max)
{
    return within(of, "latency_ms", l->latency_ms, 0, 60000, error, max) &&
           within(of, "jitter_ms", l->jitter_ms, 0, 60000, error, max) &&
           within(of, "loss", l->loss, 0, 1, error, max);
}

/* Check a rate; 0: no limit. A packet would never pass a slower line. */
static bool check_rate(const char *of, const char *key, double mbit, char *error, size_t max)
{
    return mbit == 0 || within(of, key, mbit, 1e-3, 1e6, error, max);
}

/* Check for letters, digits, dash and underscore: names go into the environment. */
static bool check_name(const char *name, char *error, size_t max)
{
    static const char good[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_";
    if (name != NULL && name[0] != '\0' && name[strspn(name, good)] == '\0')
        return true;
    snprintf(error, max, "host '%.40s': a name has letters, digits, '-' and '_'",
             name != NULL ? name : "");
    return false;
}

static bool check_host(const S *s, uint32_t i, char *error, size_t max)
{
    const HOST *h = &s->hosts[i];
    double mtu_kib = (s->mtu > 0 ? s->mtu : HTH_LAB_MTU) / 1024.0;
    if (!check_name(h->name, error, max))
        return false;
    if (hth_lab_find(s, h->name) != i) {
        snprintf(error, max, "two hosts are called '%.40s'", h->name);
        return false;
    }
    /* A queue with no room for a packet would block the line. */
    return check_rate(h->name, "up_mbit", h->up_mbit, error, max) &&
           check_rate(h->name, "down_mbit", h->down_mbit, error, max) &&
           (h->queue_kib == 0 ||
            within(h->name, "queue_kib", h->queue_kib, mtu_kib, 1 << 20, error, max));
}

static bool check_way(const S *s, const WAY *w, char *error, size_t max)
{
    const char *ends[] = {w->from, w->to};
    for (int i = 0; i < 2; i++) {
        if (ends[i] != NULL && hth_lab_find(s, ends[i]) != UINT32_MAX)
            continue;
        snprintf(error, max, "ways: there is no host '%.40s'", ends[i] != NULL ? ends[i] : "");
        return false;
    }
    return check_link(w->from, &w->link, error, max);
}

enum hth_err hth_lab_check(const S *s, char *error, size_t max)
{
    bool good = within("lab", "hosts", s->host_count, 1, HTH_LAB_HOSTS_MAX, error, max) &&
                (s->mtu == 0 || within("lab", "mtu", s->mtu, 576, 65535, error, max)) &&
                check_link("link", &s->link, error, max);
    for (uint32_t i = 0; good && i < s->host_count; i++)
        good = check_host(s, i, error, max);
    for (uint32_t i = 0; good && i < s->way_count; i++)
        good = check_way(s, &s->ways[i], error, max);
    return good ? HTH_OK : HTH_E_RANGE;
}

uint32_t hth_lab_find(const S *s, const char *name)
{
    for (uint32_t i = 0; i < s->host_count; i++)
        if (s->hosts[i].name != NULL && strcmp(s->hosts[i].name, name) == 0)
            return i;
    return UINT32_MAX;
}

/* ---- parsing ------------------------------------------------------------------------------- */

static const struct hth_yaml_kind kind = {
    .what = "a lab",
    .least = "it needs at least hosts",
    .bytes_max = HTH_LAB_TEXT_MAX,
    .schema = &schema,
};

enum hth_err hth_lab_parse(const char *name, const uint8_t *data, size_t len, S **out,
                           char error[HTH_LAB_ERROR_MAX])
{
    void *value = NULL;
    char why[256];
    *out = NULL;
    HTH_TRY(hth_yaml_load(&kind, name, data, len, &value, error, HTH_LAB_ERROR_MAX));
    if (hth_lab_check(value, why, sizeof(why)) != HTH_OK) {
        snprintf(error, HTH_LAB_ERROR_MAX, "%s: %s", name, why);
        hth_yaml_free(&kind, value);
        return HTH_E_CONFIG;
    }
    *out = value;
    return HTH_OK;
}

void hth_lab_spec_free(S *s)
{
    hth_yaml_free(&kind, s);
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * metrics.c: a registry in order of registration; counts are counters (counter.h), values are
 * relaxed atomics. Names are searched linearly: a process has a few dozen, and searches only while
 * modules start.
 */
#include "core/metrics.h"

#include "core/counter.h"
#include "core/mem.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#define BUCKETS 24

enum metric_kind { COUNTER, GAUGE, HISTOGRAM, INFO };

struct metric_info { /* seldom read */
    const char *name;
    const char *help;
    enum metric_kind kind;
    const char *label, *text; /* of an info */
    int64_t buckets[]; /* of a histogram: BUCKETS + 1; the last counts values above all bounds */
};

/* Written with every message, so they lie side by side, in the order of registration. */
struct hth_metric {
    int64_t count;       /* counter value, or observations */
    uint64_t value_bits; /* gauge value or histogram sum, as the bits of a double */
    struct metric_info *info;
    double lowest; /* of a histogram */
};

#define SHELF_METRICS 10

struct metric_shelf {
    struct hth_metric metric[SHELF_METRICS];
    struct metric_shelf *next;
    size_t used;
};

struct hth_metrics {
    struct metric_shelf *shelves, *last;
};

struct hth_metrics *hth_metrics_new(void)
{
    return hth_new(struct hth_metrics);
}

void hth_metrics_free(struct hth_metrics *m)
{
    if (m == NULL)
        return;
    while (m->shelves != NULL) {
        struct metric_shelf *shelf = m->shelves;
        m->shelves = shelf->next;
        for (size_t i = 0; i < shelf->used; i++)
            hth_free(shelf->metric[i].info);
        hth_free(shelf);
    }
    hth_free(m);
}

/* In order of registration; *shelf begins with the first one, *i with 0. */
static struct hth_metric *next_of(struct metric_shelf **shelf, size_t *i)
{
    while (*shelf != NULL && *i == (*shelf)->used) {
        *shelf = (*shelf)->next;
        *i = 0;
    }
    return *shelf != NULL ? &(*shelf)->metric[(*i)++] : NULL;
}

static struct hth_metric *find(const struct hth_metrics *m, const char *name)
{
    struct metric_shelf *shelf = m->shelves;
    struct hth_metric *metric;
    for (size_t i = 0; (metric = next_of(&shelf, &i)) != NULL;)
        if (strcmp(metric->info->name, name) == 0)
            return metric;
    return NULL;
}

static struct hth_metric *take_place(struct hth_metrics *m)
{
    if (m->last == NULL || m->last->used == SHELF_METRICS) {
        struct metric_shelf *shelf = hth_new(struct metric_shelf);
        if (m->last != NULL)
            m->last->next = shelf;
        else
            m->shelves = shelf;
        m->last = shelf;
    }
    return &m->last->metric[m->last->used++];
}

static struct hth_metric *find_or_add(struct hth_metrics *m, const char *name, const char *help,
                                      enum metric_kind kind)
{
    struct hth_metric *metric = find(m, name);
    if (metric != NULL) {
        HTH_ASSERT(metric->info->kind == kind);
        return metric;
    }
    size_t buckets = kind == HISTOGRAM ? BUCKETS + 1 : 0;
    metric = take_place(m);
    metric->info = hth_calloc(1, sizeof(struct metric_info) + buckets * sizeof(int64_t));
    metric->info->name = name;
    metric->info->help = help;
    metric->info->kind = kind;
    return metric;
}

struct hth_metric *hth_counter(struct hth_metrics *m, const char *name, const char *help)
{
    return find_or_add(m, name, help, COUNTER);
}

struct hth_metric *hth_gauge(struct hth_metrics *m, const char *name, const char *help)
{
    return find_or_add(m, name, help, GAUGE);
}

struct hth_metric *hth_histogram(struct hth_metrics *m, const char *name, const char *help,
                                 double lowest)
{
    struct hth_metric *metric = find_or_add(m, name, help, HISTOGRAM);
    metric->lowest = lowest;
    return metric;
}

void hth_info(struct hth_metrics *m, const char *name, const char *help, const char *label,
              const char *text)
{
    struct hth_metric *metric = find_or_add(m, name, help, INFO);
    metric->info->label = label;
    metric->info->text = text;
    metric->count = 1;
}

static double bits_to_double(uint64_t bits)
{
    double value;
    memcpy(&value, &bits, sizeof(value));
    return value;
}

static uint64_t double_to_bits(double value)
{
    uint64_t bits;
    memcpy(&bits, &value, sizeof(bits));
    return bits;
}

static double load_value(const struct hth_metric *metric)
{
    return bits_to_double(__atomic_load_n(&metric->value_bits, __ATOMIC_RELAXED));
}

static int64_t load_count(const int64_t *count)
{
    return __atomic_load_n(count, __ATOMIC_RELAXED);
}

void hth_metric_add(struct hth_metric *metric, int64_t n)
{
    hth_counter_add(&metric->count, n);
}

void hth_metric_set(struct hth_metric *metric, double value)
{
    __atomic_store_n(&metric->value_bits, double_to_bits(value), __ATOMIC_RELAXED);
}

static double bucket_bound(const struct hth_metric *metric, int bucket)
{
    return ldexp(metric->lowest, bucket);
}

void hth_metric_observe(struct hth_metric *metric, double value)
{
    int bucket = 0;
    for (double bound = metric->lowest; bucket < BUCKETS && value > bound; bound *= 2)
        bucket++;
    hth_counter_add(&metric->info->buckets[bucket], 1);
    hth_counter_add(&metric->count, 1);
    uint64_t old = __atomic_load_n(&metric->value_bits, __ATOMIC_RELAXED);
    while (!__atomic_compare_exchange_n(&metric->value_bits, &old,
                                        double_to_bits(bits_to_double(old) + value), true,
                                        __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
    }
}

double hth_metric_value(const struct hth_metric *metric)
{
    return metric->info->kind == GAUGE ? load_value(metric) : (double)load_count(&metric->count);
}

double hth_metric_quantile(const struct hth_metric *metric, double q)
{
    double total = (double)load_count(&metric->count), seen = 0;
    if (total <= 0)
        return 0;
    for (int i = 0; i <= BUCKETS; i++) {
        seen += (double)load_count(&metric->info->buckets[i]);
        if (seen >= q * total)
            return bucket_bound(metric, i);
    }
    return bucket_bound(metric, BUCKETS);
}

double hth_metrics_get(const struct hth_metrics *m, const char *name)
{
    const struct hth_metric *metric = find(m, name);
    return metric != NULL ? hth_metric_value(metric) : 0;
}

/* A string that grows. */
struct metrics_text {
    char *data;
    size_t len, capacity;
};

HTH_PRINTF(2, 3) static void put(struct metrics_text *t, const char *fmt, ...)
{
    for (;;) {
        va_list args;
        va_start(args, fmt);
        int n = vsnprintf(t->data + t->len, t->capacity - t->len, fmt, args);
        va_end(args);
        HTH_ASSERT(n >= 0);
        if (t->len + (size_t)n < t->capacity) {
            t->len += (size_t)n;
            return;
        }
        t->capacity = 2 * t->capacity + (size_t)n;
        t->data = hth_realloc(t->data, t->capacity, 1);
    }
}

static struct metrics_text text_new(void)
{
    return (struct metrics_text){.data = hth_calloc(1024, 1), .len = 0, .capacity = 1024};
}

static void put_histogram(struct metrics_text *t, const struct hth_metric *metric)
{
    int64_t seen = 0;
    for (int i = 0; i < BUCKETS; i++) {
        seen += load_count(&metric->info->buckets[i]);
        put(t, "%s_bucket{le=\"%.9g\"} %lld\n", metric->info->name, bucket_bound(metric, i),
            (long long)seen);
    }
    long long total = (long long)load_count(&metric->count);
    put(t, "%s_bucket{le=\"+Inf\"} %lld\n", metric->info->name, total);
    put(t, "%s_sum %.9g\n%s_count %lld\n", metric->info->name, load_value(metric),
        metric->info->name, total);
}

char *hth_metrics_prometheus(const struct hth_metrics *m)
{
    static const char *const kinds[] = {"counter", "gauge", "histogram", "gauge"};
    struct metrics_text t = text_new();
    struct metric_shelf *shelf = m->shelves;
    const struct hth_metric *metric;
    for (size_t i = 0; (metric = next_of(&shelf, &i)) != NULL;) {
        put(&t, "# HELP %s %s\n# TYPE %s %s\n", metric->info->name, metric->info->help,
            metric->info->name, kinds[metric->info->kind]);
        if (metric->info->kind == HISTOGRAM)
            put_histogram(&t, metric);
        else if (metric->info->kind == INFO)
            put(&t, "%s{%s=\"%s\"} 1\n", metric->info->name, metric->info->label,
                metric->info->text);
        else if (metric->info->kind == GAUGE)
            put(&t, "%s %.15g\n", metric->info->name, load_value(metric));
        else
            put(&t, "%s %lld\n", metric->info->name, (long long)load_count(&metric->count));
    }
    return t.data;
}

/* JSON has no infinities. */
static double finite(double value)
{
    return isfinite(value) ? value : 0;
}

char *hth_metrics_json(const struct hth_metrics *m)
{
    struct metrics_text t = text_new();
    struct metric_shelf *shelf = m->shelves;
    const struct hth_metric *metric;
    const char *comma = "";
    put(&t, "{");
    for (size_t i = 0; (metric = next_of(&shelf, &i)) != NULL;) {
        if (metric->info->kind == HISTOGRAM)
            put(&t, "%s\"%s\":{\"count\":%lld,\"sum\":%.9g,\"p50\":%.9g,\"p95\":%.9g,\"p99\":%.9g}",
                comma, metric->info->name, (long long)load_count(&metric->count),
                finite(load_value(metric)), hth_metric_quantile(metric, 0.5),
                hth_metric_quantile(metric, 0.95), hth_metric_quantile(metric, 0.99));
        else if (metric->info->kind == INFO)
            put(&t, "%s\"%s\":\"%s\"", comma, metric->info->name, metric->info->text);
        else
            put(&t, "%s\"%s\":%.17g", comma, metric->info->name, finite(hth_metric_value(metric)));
        comma = ",";
    }
    put(&t, "}");
    return t.data;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Log lines as text and JSON, levels per subsystem, limits on repeats; the two metric exports. */
#include "core/env.h"
#include "core/mem.h"
#include "support/suite.h"

struct capture {
    char text[8192];
    size_t len;
    int lines;
};

static void capture_line(void *arg, const char *line, size_t len)
{
    struct capture *c = arg;
    assert_true(c->len + len < sizeof(c->text));
    memcpy(c->text + c->len, line, len);
    c->len += len;
    c->text[c->len] = '\0';
    c->lines++;
}

static void setup(struct hth_env *env, struct capture *c)
{
    memset(env, 0, sizeof(*env));
    memset(c, 0, sizeof(*c));
    hth_log_init(&env->log);
    env->log.sink = capture_line;
    env->log.sink_arg = c;
    env->now_us = 1234567;
    snprintf(env->log.node, sizeof(env->log.node), "n7");
}

static int evaluated;

static int evaluate(void)
{
    return ++evaluated;
}

TEST(test_disabled_levels_skip_their_arguments)
{
    (void)state;
    struct hth_env env;
    struct capture c;
    char bad[64];
    setup(&env, &c);
    assert_ok(hth_log_parse(&env.log, "warn,rpc:debug", bad));
    HTH_LOG(&env, HTH_DEBUG, HTH_SUB_RPC, "seen %d", evaluate());
    HTH_LOG(&env, HTH_INFO, HTH_SUB_NET, "not seen %d", evaluate());
    assert_int_equal(evaluated, 1);
    assert_string_equal(c.text, "     1.235 debug rpc    n7 seen 1\n");
    assert_err(HTH_E_USAGE, hth_log_parse(&env.log, "rpc:debug,nett:info", bad));
    assert_string_equal(bad, "nett:info");
    assert_err(HTH_E_USAGE, hth_log_parse(&env.log, "", bad));
    assert_int_equal(env.log.level[HTH_SUB_NET], HTH_WARN);
}

TEST(test_json_lines_are_escaped)
{
    (void)state;
    struct hth_env env;
    struct capture c;
    setup(&env, &c);
    env.log.json = true;
    HTH_LOG(&env, HTH_ERROR, HTH_SUB_APP, "a \"b\" \\ \n%s", "c");
    assert_string_equal(c.text, "{\"t\":1.234567,\"level\":\"error\",\"sub\":\"app\",\"node\":"
                                "\"n7\",\"msg\":\"a \\\"b\\\" \\\\ \\u000ac\"}\n");
}

static int64_t wall_us(struct hth_env *env)
{
    (void)env;
    return INT64_C(1795745107123456);
}

/* Real programs carry the time of day in UTC. */
TEST(test_wall_clock_lines_carry_the_date)
{
    static const struct hth_env_ops ops = {.wall_us = wall_us};
    (void)state;
    struct hth_env env;
    struct capture c;
    setup(&env, &c);
    env.ops = &ops;
    env.log.wall = true;
    HTH_LOG(&env, HTH_WARN, HTH_SUB_RPC, "text");
    env.log.json = true;
    HTH_LOG(&env, HTH_WARN, HTH_SUB_RPC, "text");
    assert_string_equal(c.text, "2026-11-27T02:05:07.123Z warn  rpc    n7 text\n"
                                "{\"time\":\"2026-11-27T02:05:07.123Z\",\"level\":\"warn\","
                                "\"sub\":\"rpc\",\"node\":\"n7\",\"msg\":\"text\"}\n");
}

TEST(test_dates_follow_the_calendar)
{
    static const struct {
        int64_t s;
        const char *text;
    } cases[] = {{0, "1970-01-01T00:00:00.000Z"},          {951782399, "2000-02-28T23:59:59.000Z"},
                 {951782400, "2000-02-29T00:00:00.000Z"},  {951868800, "2000-03-01T00:00:00.000Z"},
                 {1704067199, "2023-12-31T23:59:59.000Z"}, {1709164800, "2024-02-29T00:00:00.000Z"},
                 {4107542400, "2100-03-01T00:00:00.000Z"}};
    (void)state;
    for (size_t i = 0; i < HTH_ARRAY_LEN(cases); i++) {
        char text[HTH_UTC_TEXT_MAX];
        assert_string_equal(hth_utc_text(cases[i].s * HTH_US_PER_S, text), cases[i].text);
    }
}

/* JSON forbids all of them in a string (RFC 8259, section 7). */
TEST(test_each_control_byte_is_escaped)
{
    (void)state;
    for (char byte = 1; byte < 0x20; byte++) {
        struct hth_env env;
        struct capture c;
        char want[16];
        setup(&env, &c);
        env.log.json = true;
        env.now_us += byte * HTH_US_PER_S; /* no repeats */
        HTH_LOG(&env, HTH_ERROR, HTH_SUB_APP, "a%cb", byte);
        snprintf(want, sizeof(want), "a\\u%04xb\"", (unsigned)byte);
        assert_non_null(strstr(c.text, want));
        assert_null(memchr(c.text, byte, c.len - 1)); /* but for the line's end */
    }
}

TEST(test_repeats_beyond_ten_are_counted)
{
    (void)state;
    struct hth_env env;
    struct capture c;
    setup(&env, &c);
    for (int i = 0; i < 101; i++) {
        if (i == 100)
            env.now_us += 2 * HTH_US_PER_S;
        HTH_LOG(&env, HTH_INFO, HTH_SUB_APP, "again");
    }
    assert_int_equal(c.lines, 11);
    assert_int_equal(env.log.dropped, 90);
    assert_non_null(strstr(c.text, "again (and 90 like it)"));
}

TEST(test_long_line_is_cut_and_stays_valid)
{
    (void)state;
    struct hth_env env;
    struct capture c;
    char longer[5000];
    setup(&env, &c);
    memset(longer, '"', sizeof(longer) - 1);
    longer[sizeof(longer) - 1] = '\0';
    HTH_LOG(&env, HTH_INFO, HTH_SUB_APP, "%s", longer);
    env.log.json = true;
    HTH_LOG(&env, HTH_INFO, HTH_SUB_APP, "%s", longer);
    assert_int_equal(c.lines, 2);
    assert_true(c.len < 4096 + 100);
    assert_int_equal(c.text[c.len - 1], '\n');
    assert_non_null(strstr(c.text + 2000, "\"}\n")); /* still a JSON object */
}

/* One observation in each bucket, at its bound, which belongs to it. */
TEST(test_a_quantile_is_the_bound_of_its_bucket)
{
    static const struct {
        double q, bound;
    } cases[] = {{0.25, 1}, {0.26, 2}, {0.5, 2}, {0.51, 4}, {0.75, 4}, {0.76, 8}, {1, 8}};
    (void)state;
    struct hth_metrics *m = hth_metrics_new();
    struct hth_metric *wait = hth_histogram(m, "hearth_wait_seconds", "waits", 1);
    assert_true(hth_metric_quantile(wait, 0.5) == 0);
    for (double value = 1; value <= 8; value *= 2)
        hth_metric_observe(wait, value);
    for (size_t i = 0; i < HTH_ARRAY_LEN(cases); i++)
        assert_close(hth_metric_quantile(wait, cases[i].q), cases[i].bound, 0, 0);
    /* As Prometheus wants them: each bucket counts those below it, too. */
    char *text = hth_metrics_prometheus(m);
    assert_non_null(strstr(text, "{le=\"1\"} 1\n"));
    assert_non_null(strstr(text, "{le=\"2\"} 2\n"));
    assert_non_null(strstr(text, "{le=\"8\"} 4\n"));
    assert_non_null(strstr(text, "{le=\"16\"} 4\n"));
    assert_non_null(strstr(text, "{le=\"+Inf\"} 4\n"));
    hth_free(text);
    hth_metrics_free(m);
}

TEST(test_metrics_export_as_prometheus_and_json)
{
    (void)state;
    struct hth_metrics *m = hth_metrics_new();
    struct hth_metric *calls = hth_counter(m, "hearth_calls_total", "calls made");
    struct hth_metric *live = hth_gauge(m, "hearth_live", "live experts");
    struct hth_metric *wait = hth_histogram(m, "hearth_wait_seconds", "waits", 1e-3);
    assert_ptr_equal(hth_counter(m, "hearth_calls_total", "calls made"), calls);
    hth_metric_add(calls, 3);
    hth_metric_set(live, 2.5);
    for (int i = 0; i < 100; i++)
        hth_metric_observe(wait, i < 90 ? 0.0005 : 0.003);
    assert_true(hth_metric_quantile(wait, 0.5) == 1e-3);
    assert_true(hth_metric_quantile(wait, 0.95) == 4e-3);
    assert_close(hth_metrics_get(m, "hearth_calls_total"), 3, 0, 0);
    assert_close(hth_metrics_get(m, "no such"), 0, 0, 0);
    char *text = hth_metrics_prometheus(m), *json = hth_metrics_json(m);
    assert_non_null(strstr(text, "# TYPE hearth_calls_total counter\nhearth_calls_total 3\n"));
    assert_non_null(strstr(text, "hearth_wait_seconds_bucket{le=\"0.001\"} 90\n"));
    assert_non_null(strstr(text, "hearth_wait_seconds_bucket{le=\"+Inf\"} 100\n"));
    assert_string_equal(json, "{\"hearth_calls_total\":3,\"hearth_live\":2.5,"
                              "\"hearth_wait_seconds\":{\"count\":100,\"sum\":0.075,"
                              "\"p50\":0.001,\"p95\":0.004,\"p99\":0.004}}");
    hth_free(text);
    hth_free(json);
    hth_metrics_free(m);
}

/* More metrics than fit on one shelf: each is found by its name, and the exports keep the order of
 * registration. */
TEST(test_metrics_of_several_shelves_keep_their_order)
{
    (void)state;
    enum { MANY = 47 };
    static char name[MANY][16];
    struct hth_metrics *m = hth_metrics_new();
    struct hth_metric *metric[MANY];
    for (uint32_t i = 0; i < MANY; i++) {
        snprintf(name[i], sizeof(name[i]), "hearth_%02u", i * 5 % MANY);
        metric[i] = hth_gauge(m, name[i], "a number");
        hth_metric_set(metric[i], i + 1);
    }
    char *text = hth_metrics_prometheus(m), *json = hth_metrics_json(m);
    const char *in_text = text, *in_json = json;
    for (uint32_t i = 0; i < MANY; i++) {
        char want[48];
        assert_ptr_equal(hth_gauge(m, name[i], "a number"), metric[i]);
        assert_close(hth_metrics_get(m, name[i]), i + 1, 0, 0);
        snprintf(want, sizeof(want), "\n%s %u\n", name[i], i + 1);
        assert_non_null(in_text = strstr(in_text, want));
        snprintf(want, sizeof(want), "\"%s\":%u", name[i], i + 1);
        assert_non_null(in_json = strstr(in_json, want));
    }
    hth_free(text);
    hth_free(json);
    hth_metrics_free(m);
}

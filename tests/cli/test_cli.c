/* SPDX-License-Identifier: Apache-2.0 */
/* test_cli.c: sizes, times and numbers as people write them, and exit codes of errors. */
#include "cli/cli.h"
#include "core/limits.h"
#include "core/mem.h"
#include "support/suite.h"

#include <stdlib.h>

TEST(whole_numbers_are_parsed_within_bounds)
{
    (void)state;
    uint64_t n;
    assert_ok(hth_cli_parse_u64("0", 0, 10, &n));
    assert_int_equal(n, 0);
    assert_ok(hth_cli_parse_u64("10", 1, 10, &n));
    assert_int_equal(n, 10);
    assert_ok(hth_cli_parse_u64("18446744073709551615", 0, UINT64_MAX, &n));
    assert_true(n == UINT64_MAX);
    static const char *const bad[] = {"",    "-1",   "+1", " 1",  "1 ",
                                      "1.0", "0x10", "1k", "ten", "18446744073709551616"};
    for (size_t i = 0; i < HTH_ARRAY_LEN(bad); i++) {
        n = 77;
        assert_err(HTH_E_USAGE, hth_cli_parse_u64(bad[i], 0, UINT64_MAX, &n));
        assert_int_equal(n, 77);
    }
    assert_err(HTH_E_USAGE, hth_cli_parse_u64("0", 1, 10, &n));
    assert_err(HTH_E_USAGE, hth_cli_parse_u64("11", 1, 10, &n));
}

TEST(sizes_are_parsed_with_units)
{
    (void)state;
    static const struct {
        const char *text;
        uint64_t bytes;
    } good[] = {
        {"0", 0},          {"2000", 2000},      {"7B", 7},
        {"3kB", 3000},     {"64MiB", 64 << 20}, {"1.5GB", 1500000000},
        {"1GiB", 1 << 30}, {"2KiB", 2048},      {"2k", 2000},
        {"1M", 1000000},   {".5MB", 500000},
    };
    static const char *const bad[] = {"",    "MB",  "-1MB", "1 MB", "1mb",          "1MBs",
                                      "inf", "nan", "1e40", "9e18", "99999999999GB"};
    uint64_t bytes;
    for (size_t i = 0; i < HTH_ARRAY_LEN(good); i++) {
        assert_ok(hth_cli_parse_size(good[i].text, &bytes));
        assert_int_equal(bytes, good[i].bytes);
    }
    for (size_t i = 0; i < HTH_ARRAY_LEN(bad); i++)
        assert_err(HTH_E_USAGE, hth_cli_parse_size(bad[i], &bytes));
}

TEST(times_are_parsed_with_a_unit)
{
    (void)state;
    static const struct {
        const char *text;
        int64_t time_us;
    } good[] = {{"250ms", 250000},  {"30s", 30000000}, {"2h", 7200000000},
                {"1.5m", 90000000}, {"7us", 7},        {"0s", 0}};
    /* A time needs a unit: one reader would take a bare number for seconds, another for ms. */
    static const char *const bad[] = {"", "30", "s", "-1s", "1 s", "1S", "1sec", "1e30h"};
    int64_t time_us;
    for (size_t i = 0; i < HTH_ARRAY_LEN(good); i++) {
        assert_ok(hth_cli_parse_time(good[i].text, &time_us));
        assert_int_equal(time_us, good[i].time_us);
    }
    for (size_t i = 0; i < HTH_ARRAY_LEN(bad); i++)
        assert_err(HTH_E_USAGE, hth_cli_parse_time(bad[i], &time_us));
}

TEST(bytes_are_printed_with_three_digits)
{
    (void)state;
    char out[16];
    assert_string_equal(hth_cli_bytes_text(0, out), "0 B");
    assert_string_equal(hth_cli_bytes_text(999, out), "999 B");
    assert_string_equal(hth_cli_bytes_text(999.6, out), "1 kB");
    assert_string_equal(hth_cli_bytes_text(1234, out), "1.23 kB");
    assert_string_equal(hth_cli_bytes_text(2.5e9, out), "2.5 GB");
    assert_string_equal(hth_cli_bytes_text(999.7e6, out), "1 GB");
    assert_in_range(strlen(hth_cli_bytes_text(1e300, out)), 1, 15);
    static const struct {
        int64_t us;
        const char *text;
    } spans[] = {{-5, "0.0 s"},
                 {400000, "0.4 s"},
                 {12 * HTH_US_PER_S, "12 s"},
                 {99 * HTH_US_PER_S, "99 s"},
                 {150 * HTH_US_PER_S, "2 min"},
                 {11520 * HTH_US_PER_S, "3.2 h"},
                 {1036800 * HTH_US_PER_S, "12 d"}};
    for (size_t i = 0; i < HTH_ARRAY_LEN(spans); i++)
        assert_string_equal(hth_cli_span_text(spans[i].us, out), spans[i].text);
    char count[32];
    assert_string_equal(hth_cli_count_text(0, count), "0");
    assert_string_equal(hth_cli_count_text(999, count), "999");
    assert_string_equal(hth_cli_count_text(1203200, count), "1,203,200");
    assert_string_equal(hth_cli_count_text(UINT64_MAX, count), "18,446,744,073,709,551,615");
}

TEST(every_error_has_a_listed_exit_code)
{
    (void)state;
    assert_int_equal(hth_exit_of(HTH_OK), 0);
    assert_int_equal(hth_exit_of(HTH_E_IO), 1);
    assert_int_equal(hth_exit_of(HTH_E_CORRUPT), 1);
    assert_int_equal(hth_exit_of(HTH_E_BUG), 1);
    assert_int_equal(hth_exit_of(HTH_E_USAGE), 2);
    assert_int_equal(hth_exit_of(HTH_E_CONFIG), 3);
    assert_int_equal(hth_exit_of(HTH_E_BAD_KEY), 3);
    assert_int_equal(hth_exit_of(HTH_E_ADDR_IN_USE), 4);
    assert_int_equal(hth_exit_of(HTH_E_JOIN_UDP_CLOSED), 4);
    assert_int_equal(hth_exit_of(HTH_E_JOIN_VERSION), 4);
    assert_int_equal(hth_exit_of(HTH_E_NO_DEVICE), 5);
    assert_int_equal(hth_exit_of(HTH_E_NOT_ADMITTED), 6);
    assert_int_equal(hth_exit_of(HTH_E_PASS_ROLE), 6);
    assert_int_equal(hth_exit_of(HTH_E_BUSY), 75);
    assert_int_equal(hth_exit_of(HTH_E_QUEUE_FULL), 75);
    assert_int_equal(hth_exit_of(HTH_E_CANCELED), 130);
    /* Every error has an exit code that operations.md lists. */
    for (int e = 0; e < HTH_ERR_COUNT; e++) {
        int code = hth_exit_of((enum hth_err)e);
        assert_true((code >= 0 && code <= 6) || code == 75 || code == 130);
        assert_true((code == 0) == (e == 0));
    }
}

TEST(state_folder_follows_xdg)
{
    (void)state;
    setenv("HOME", "/home/x", 1);
    setenv("XDG_STATE_HOME", "/state", 1);
    char *dir = hth_cli_default_dir();
    assert_string_equal(dir, "/state/hearth");
    hth_free(dir);
    setenv("XDG_STATE_HOME", "relative", 1); /* the XDG rules ignore a relative path */
    dir = hth_cli_default_dir();
    assert_string_equal(dir, "/home/x/.local/state/hearth");
    hth_free(dir);
    unsetenv("HOME");
    unsetenv("XDG_STATE_HOME");
    dir = hth_cli_default_dir();
    assert_string_equal(dir, "/var/lib/hearth/.local/state/hearth");
    hth_free(dir);
}

TEST(log_options_set_levels_and_format)
{
    (void)state;
    struct hth_log log;
    hth_log_init(&log);
    const struct hth_cli_log good = {.spec = "warn,rpc:debug", .json = true};
    assert_ok(hth_cli_log_apply(&good, &log));
    assert_true(log.json);
    assert_int_equal(log.level[HTH_SUB_RPC], HTH_DEBUG);
    assert_int_equal(log.level[HTH_SUB_DHT], HTH_WARN);
    const struct hth_cli_log bad = {.spec = "loud"};
    assert_err(HTH_E_USAGE, hth_cli_log_apply(&bad, &log));
}

/* The budget is a quarter of the memory, with a lower bound, also if the memory is unknown. */
TEST(body_budget_is_a_bounded_quarter_of_memory)
{
    (void)state;
    const int64_t least = HTH_APP_BODIES_BYTES_MIN;
    assert_true(hth_cli_bodies_bytes(4 * least + 4) == least + 1);
    assert_true(hth_cli_bodies_bytes(4 * least) == least);
    assert_true(hth_cli_bodies_bytes(4 * least - 4) == least);
    assert_true(hth_cli_bodies_bytes(1) == least);
    assert_true(hth_cli_bodies_bytes(0) == HTH_APP_BODIES_BYTES_UNKNOWN);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Sizes and times as people write them, and the exit code of every error. */
#include "support/test.h"

#include "app/cli.h"
#include "core/mem.h"

#include <stdlib.h>

static void test_numbers(void **state)
{
    uint64_t n = 7;
    (void)state;
    assert_ok(hth_cli_parse_u64("0", 0, 9, &n));
    assert_int_equal(n, 0);
    assert_ok(hth_cli_parse_u64("18446744073709551615", 0, UINT64_MAX, &n));
    assert_true(n == UINT64_MAX);
    static const char *const bad[] = {"",   "-1",   "+1",  " 1", "1 ",
                                      "1x", "0x10", "1e3", "10", "18446744073709551616"};
    for (size_t i = 0; i < HTH_ARRAY_LEN(bad); i++)
        assert_err(HTH_E_USAGE, hth_cli_parse_u64(bad[i], 0, 9, &n));
    assert_err(HTH_E_USAGE, hth_cli_parse_u64("1", 2, 9, &n));
}

static void test_sizes_and_times(void **state)
{
    static const struct {
        const char *text;
        uint64_t bytes;
    } sizes[] = {
        {"0", 0},      {"2000", 2000}, {"64B", 64}, {"1.5GB", 1500000000}, {"64MiB", 64u << 20},
        {".5KiB", 512}};
    static const struct {
        const char *text;
        int64_t time_us;
    } times[] = {{"30s", 30000000},
                 {"250ms", 250000},
                 {"2h", INT64_C(7200000000)},
                 {"1.5m", 90000000},
                 {"7us", 7}};
    static const char *const bad[] = {"",    "-1s",  "s",     "1 s",   "1sec",
                                      "nan", "infs", "1e30s", "1e999h"};
    uint64_t bytes;
    int64_t time_us;
    (void)state;
    for (size_t i = 0; i < HTH_ARRAY_LEN(sizes); i++) {
        assert_ok(hth_cli_parse_size(sizes[i].text, &bytes));
        assert_true(bytes == sizes[i].bytes);
    }
    for (size_t i = 0; i < HTH_ARRAY_LEN(times); i++) {
        assert_ok(hth_cli_parse_time(times[i].text, &time_us));
        assert_true(time_us == times[i].time_us);
    }
    for (size_t i = 0; i < HTH_ARRAY_LEN(bad); i++) {
        assert_err(HTH_E_USAGE, hth_cli_parse_time(bad[i], &time_us));
        assert_err(HTH_E_USAGE, hth_cli_parse_size(bad[i], &bytes));
    }
    assert_err(HTH_E_USAGE, hth_cli_parse_time("5", &time_us)); /* five what? */
    assert_err(HTH_E_USAGE, hth_cli_parse_size("20000000000GB", &bytes));
}

static void test_bytes_are_written_for_people(void **state)
{
    char out[16];
    (void)state;
    assert_string_equal(hth_cli_bytes_text(0, out), "0 B");
    assert_string_equal(hth_cli_bytes_text(999, out), "999 B");
    assert_string_equal(hth_cli_bytes_text(1234, out), "1.23 kB");
    assert_string_equal(hth_cli_bytes_text(999600, out), "1 MB");
}

/* The table of docs/operations.md. */
static void test_exit_codes(void **state)
{
    (void)state;
    assert_int_equal(hth_exit_of(HTH_OK), 0);
    assert_int_equal(hth_exit_of(HTH_E_IO), 1);
    assert_int_equal(hth_exit_of(HTH_E_USAGE), 2);
    assert_int_equal(hth_exit_of(HTH_E_CONFIG), 3);
    assert_int_equal(hth_exit_of(HTH_E_BAD_KEY), 3);
    for (int e = HTH_E_JOIN_NOTHING_LISTENS; e <= HTH_E_JOIN_VERSION; e++)
        assert_int_equal(hth_exit_of((enum hth_err)e), 4);
    assert_int_equal(hth_exit_of(HTH_E_ADDR_IN_USE), 4);
    assert_int_equal(hth_exit_of(HTH_E_NO_DEVICE), 5);
    assert_int_equal(hth_exit_of(HTH_E_BUSY), 75);
    assert_int_equal(hth_exit_of(HTH_E_CANCELED), 130);
}

static void test_where_state_lives(void **state)
{
    (void)state;
    setenv("XDG_STATE_HOME", "/x", 1);
    setenv("HOME", "/h", 1);
    char *dir = hth_cli_default_dir();
    assert_string_equal(dir, "/x/hearth");
    hth_free(dir);
    setenv("XDG_STATE_HOME", "not/absolute", 1);
    dir = hth_cli_default_dir();
    assert_string_equal(dir, "/h/.local/state/hearth");
    hth_free(dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_numbers),
        cmocka_unit_test(test_sizes_and_times),
        cmocka_unit_test(test_bytes_are_written_for_people),
        cmocka_unit_test(test_exit_codes),
        cmocka_unit_test(test_where_state_lives),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

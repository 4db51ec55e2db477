/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_news.c: a host tells of its first trainer, of each minute with rows, once of ten minutes
 * without a trainer, and of all of it at the end.
 */
#include "app/news.h"
#include "support/suite.h"

#define S   HTH_US_PER_S
#define MIN (60 * S)

static struct hth_news news;
static struct hth_news_now now;
static char text[HTH_NEWS_TEXT_MAX];

static int setup(void **state)
{
    (void)state;
    memset(&news, 0, sizeof(news));
    now = (struct hth_news_now){
        .now_us = 5 * S, .wall_us = 1700000000 * S, .address = "192.0.2.7:4700"};
    now.stats.first_caller.id.b[0] = 0x4f;
    now.stats.first_caller.id.b[1] = 0x3a;
    assert_ok(hth_addr_parse("10.0.0.7:41234", &now.stats.first_caller.from));
    return 0;
}

/* Time passes in steps of two seconds, as in serve; returns how many lines came, the last one is in
 * `text`. */
static int pass(int64_t us, uint64_t rows_per_step)
{
    char line[HTH_NEWS_TEXT_MAX];
    int lines = 0;
    for (int64_t end = now.now_us + us; now.now_us < end;) {
        now.now_us += 2 * S;
        now.wall_us += 2 * S;
        now.stats.rows_forward += rows_per_step;
        if (hth_news_turn(&news, &now, line) != NULL) {
            lines++;
            memcpy(text, line, sizeof(text));
        }
    }
    return lines;
}

static void trainers_come(uint32_t count)
{
    now.stats.callers += count;
    now.stats.callers_now = count;
}

TEST_WITH(a_host_tells_of_its_first_trainer_once, setup, NULL)
{
    (void)state;
    assert_int_equal(pass(4 * S, 0), 0);
    trainers_come(1);
    assert_int_equal(pass(2 * S, 100), 1);
    assert_non_null(strstr(text, "first trainer: 4f3a"));
    assert_non_null(strstr(text, " from 10.0.0.7"));
    assert_null(strstr(text, "41234"));
    trainers_come(2);
    assert_int_equal(pass(10 * S, 100), 0);
}

TEST_WITH(a_minute_with_rows_is_one_line, setup, NULL)
{
    (void)state;
    trainers_come(3);
    assert_int_equal(pass(2 * S, 0), 1); /* the first trainer */
    now.stats.queue_ms_mean = 4.2;
    assert_int_equal(pass(60 * S, 416), 1);
    assert_string_equal(text, "1 min: 12,480 rows for 3 trainers, wait 4 ms, not saved yet");
    now.stats.saved_us = now.wall_us + 48 * S;
    now.stats.callers_now = 1;
    assert_int_equal(pass(60 * S, 1), 1);
    assert_string_equal(text, "1 min: 30 rows for 1 trainer, wait 4 ms, saved 12 s ago");
    assert_int_equal(pass(10 * MIN, 1), 10);
    assert_int_equal(pass(5 * MIN, 0), 0); /* nothing to tell of an idle minute */
}

TEST_WITH(ten_quiet_minutes_are_one_hint, setup, NULL)
{
    (void)state;
    assert_int_equal(pass(9 * MIN, 0), 0);
    assert_int_equal(pass(2 * MIN, 0), 1);
    assert_non_null(strstr(text, "no trainer for 10 min"));
    assert_non_null(strstr(text, "same run file"));
    assert_non_null(strstr(text, "hearth status --join 192.0.2.7:4700"));
    assert_int_equal(pass(60 * MIN, 0), 0);
    trainers_come(1);
    assert_int_equal(pass(2 * S, 5), 1);   /* the first trainer */
    assert_int_equal(pass(9 * MIN, 0), 1); /* its minute */
    assert_int_equal(pass(2 * MIN, 0), 1); /* a new pause */
    assert_non_null(strstr(text, "no trainer for 10 min"));
    assert_null(strstr(text, "can't reach"));
    now.unreachable = true;
    assert_int_equal(pass(2 * S, 5), 0);
    assert_int_equal(pass(12 * MIN, 0), 2); /* its minute, and the hint */
    assert_non_null(strstr(text, "others can't reach 192.0.2.7:4700"));
}

TEST_WITH(the_end_sums_up, setup, NULL)
{
    (void)state;
    pass(2 * S, 0);
    trainers_come(5);
    now.now_us += 192 * MIN;
    now.stats.rows_forward = 600000;
    now.stats.rows_backward = 603200;
    now.bytes = 1300000000;
    assert_string_equal(hth_news_end(&news, &now, text),
                        "served 3.2 h: 1,203,200 rows, 1.3 GB, 5 trainers");
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * run_json.h: a run as an onlooker sees it, as JSON: what the page, `hearth watch` and anybody's
 * script read. tests/monitor/run.json is an example of every field.
 *
 *   GET /run.json    all of this
 *   GET /now.json    the same without `history` and `tests`: small, new every period_s
 *   GET /events      server-sent events: at once, and whenever both files are new,
 *                        event: now
 *                        data: {"seq":17,"point":{"t":1795770010,"step":1290, ...}}
 *                    where `point` is the newest row of `history`; after a stall of the monitor no
 *                    event is repeated: a reader that sees `seq` jump reads /run.json again
 *
 * Times are Unix seconds (t, *_at_s) or spans in seconds (*_s), counts are whole numbers, and what
 * nobody knows is null. Readers ignore fields that they do not know: later versions add some under
 * the same `schema`.
 *
 *   schema        1
 *   seq           counts the collections of this monitor, from 1
 *   now_at_s      when this was made, by the monitor's clock
 *   asked_at_s    when the peers were asked: more than 3 periods before now_at_s means that the
 *                 monitor has lost the run; null: it has not reached it yet
 *   period_s      10
 *   run           the run's name; null: not known yet
 *   state         "looking"   no peer has answered since the monitor started
 *                 "training"  a trainer is at work
 *                 "waiting"   trainers are there, and took no step for a minute
 *                 "idle"      peers are there, and no trainer
 *                 "done"      step has reached total
 *   version       of the monitor's program
 *   trouble       what the one who runs the monitor should look at, in a sentence; null: nothing
 *   since_at_s    when training began, as far back as the monitor or most trainers remember
 *   step          the highest that more than half of the trainers reach; total: of the schedule.
 *                 While no trainer tells them, these two and loss are the last known ones
 *   left_s        until total, at the pace of the last ten minutes
 *   samples       trained on by all, as far as the monitor could count: the growth of each
 *                 trainer's counter, and at least the samples behind the parameters of most
 *   loss          median of the trainers' training losses (nats; a moving average of each)
 *   test          {t, step, loss, accuracy, bits_per_byte}: the newest test, medians of those of
 *                 the trainers that test; null: none
 *   checkpoint    {t, step}: the newest that more than half of the trainers that save have; null:
 *                 none
 *   trainers, hosts, helpers, nodes   living peers by role; a node only helps peers to find others
 *   silent        peers with a valid record that did not answer
 *   samples_per_s of all trainers, as they say; here and in samples none counts for more than 20
 *                 times their median
 *   rows_per_s    served by all hosts, counted by the monitor between its last two questions
 *   places, served   experts of all layers; those of them that a host serves
 *   join          {command, complete, ask}: the command that joins as a host; complete is false
 *                 where FILE, ADDR:PORT or INVITE stands in it; ask: who gives an invite, or ""
 *   peers         at most 1,024, in order of role and id:
 *       id          first digits of the peer's id; an address is never told
 *       name        null (a peer has none yet)
 *       role        "trainer", "host", "helper", "node"
 *       state       "answers"; "silent"; "unreachable": it says that others can't dial it, so its
 *                   experts do not count; "unasked": it only dials, and its record is valid
 *       seen_s      since its last sign of life; up_s since its start
 *       version     of its program, "" if not told: text of a stranger, at most 31 printable ASCII
 *                   characters (< & " among them)
 *       compute     "fp32", "bf16", ...: type of a host's arithmetic; else null
 *       experts     that a host lists; rows that it served since its start
 *       rows_per_s  of a host: served, counted by the monitor; able_rows_per_s: what it announces
 *       queue_ms    wait for its experts
 *       unsaved_s   since when it can't save its work; 0: it can
 *       step, samples_per_s   of a trainer; samples: that its process trained on; loss: null if it
 *                   does not tell
 *       does        of a trainer: "training", "fetching" (the run's state), "client" (only dials)
 *       average     its last round: {members, drops, reason, bytes, distance}; null: none yet;
 *                   reason: "OK", or why there was no average (averaging/averager.h); distance: to
 *                   the others before the round, over the norm of the mean
 *   layers        of each layer, by name (ffn2 before ffn10):
 *       name, kind, width; grid: [4, 4]; places, served, twice (by two or more)
 *       replicas    how many hosts serve expert i, in row-major order of the grid
 *       hosts       of each expert the indices in `peers` of at most 8 of them
 *                   (both are null beyond 65,536 places of all layers)
 *   gallery       answers of the run's model to fixed prompts, where a checkpoint is at hand:
 *       t, step     when it was asked; of the checkpoint
 *       picture     null, or "drawings.png", beside run.json: 8 squares side by side
 *       items       at most 8 of {prompt, text}; text is null where the i-th square is the answer
 *   events        at most 200, the newest last:
 *       t, kind, peer (id, or null), text: a sentence in English
 *       kind        "joined", "left", "killed" (it fell silent without a goodbye), "replaced" (the
 *                   experts of a killed host have another one), "behind" (a trainer is further
 *                   behind than the run steps in a minute), "checkpoint"
 *   history       columns of equal length, the oldest first: t, step, samples, loss, trainers,
 *                 hosts, served, samples_per_s, rows_per_s. Rows are 10 s apart in the last two
 *                 hours, 1 min in the last day, and before that a multiple of 5 min that leaves at
 *                 most 2,000; a gap has no rows.
 *   tests         columns of all tests remembered, at most 1,000: t, step, loss, accuracy,
 *                 bits_per_byte
 *
 * Every string that a peer wrote is untrusted: show it as text, never as markup. Names of a run and
 * of layers are at most 63 bytes of UTF-8 without '.', '/', '\', '[', ']' and blanks. Characters
 * that control a terminal or the direction of text are replaced by U+FFFD in all strings.
 */
#ifndef HTH_MONITOR_RUN_JSON_H
#define HTH_MONITOR_RUN_JSON_H

#include "monitor/events.h"
#include "monitor/gallery.h"
#include "monitor/history.h"
#include "monitor/recall.h"
#include "monitor/view.h"

#include <jansson.h>

#define HTH_RUN_JSON_SCHEMA 1
#define HTH_RUN_TESTS_MAX   1000

/* All that is said of a run; pointers are borrowed, and name is view->run. */
struct hth_run_now {
    uint64_t seq;
    int64_t now_us, asked_us; /* wall clock; asked_us 0: no collection is done */
    uint32_t period_s;
    const char *name; /* NULL: not known yet */
    const char *state, *version;
    const char *trouble; /* NULL: none */
    uint32_t since_t;    /* 0: not known */
    double left_s;       /* NAN: not known */
    uint64_t samples;
    const char *join_command, *join_ask;
    bool join_complete;
    const struct hth_recall_test *test; /* the oldest first */
    uint32_t test_count;
    struct hth_run_view *view;     /* NULL: none yet */
    const struct hth_event *event; /* the oldest first, as all below */
    uint32_t event_count;
    const struct hth_history_row *row;
    size_t row_count;
    struct hth_gallery *gallery; /* NULL: there is no model at hand */
};

/* run.json if `whole`, else now.json. */
json_t *hth_run_json(const struct hth_run_now *run, bool whole);
/* The data of an event. */
json_t *hth_run_json_event(const struct hth_run_now *run);
/* One line; drops the reference. Free it with hth_free. Any thread. */
char *hth_run_json_text_take(json_t *object);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * file.h: a scenario as YAML. Brackets hold a range from which each seed draws.
 *
 *     name: faults                      # a word: letters, digits, - _ .
 *     nodes: 50
 *     duration_s: 60                    # of virtual time
 *     safety: 0.66                      # the share of it in which faults happen
 *     load: { payload_kib: 64, calls_per_s: 1, experts: 2, hood: 32 }
 *     swarm: { hosts: 6, copies: 2, trainers: 3, dim: 16, layers: 2, grid: 2, top_k: 2, rows: 16,
 *              flights: 2, averaging: local, every: 10, target: 128, clip: 0, checkpoint_s: 5,
 *              held_mib: 64 }           # hosts and trainers instead of peers; then without `nodes`
 *     malice: { garbage: 1, liar: 1, mute: 1, forger: 1 }
 *     links: { latency_ms: [5, 80], jitter_ms: [0, 20], loss: [0, 0.01] }
 *     zones:                            # latencies to the zones above, and inside
 *       - { name: europe, share: 2, latency_ms: [15] }
 *       - { name: asia, share: 1, latency_ms: [120, 30] }
 *     devices:
 *       - { name: laptop, share: 3, gflops: 50, gbytes_per_s: 10, workers: 2, up_mbit: 20,
 *           down_mbit: 100, disk_mb: 1000 }
 *       - { name: mine, share: 1, profile: mine.yaml, up_mbit: 20, down_mbit: 100 }   # profile.h
 *     churn: { kind: weibull, up_s: [20, 100], down_s: [2, 10], shape: [0.5, 1], silent: 0.5,
 *              providers: 4, provider_up_s: [60, 60], provider_down_s: [5, 5] }
 *                                       # kind: none, poisson, weibull or diurnal (life.h), which
 *                                       # has swing: [0, 1] and day_s: 86400 instead of shape
 *     partitions: { every_s: [5, 20], for_s: [2, 8], share: [0.1, 0.5], one_way: 0.5 }
 *     clogs: { every_s: [1, 5], for_s: [1, 5], ways: 4 }
 *     clocks: { skew_ms: [0, 1000], step_ms: [0, 2000], every_s: [5, 20] }
 *     stragglers: { share: [0, 0.2], speed: [0.1, 0.1] }
 *     dht: { lost_put: [0, 0.05], lost_get: [0, 0.05], partial: [0, 0.1], repeat: [0, 0.1],
 *            stale: [0, 0.1], refresh_s: 10 }
 *     chaos: { short_read: [0, 0.2], short_write: [0, 0.2], io_error: [0, 0], torn_file: [0, 0],
 *              sites: 0.25, fires: 0.25 }
 *
 * Strict: an unknown key, a value of the wrong kind or out of range, or an invalid 0 is E_CONFIG,
 * and the text names the file, the line and the key. A key that is left out has its default
 * (scenario.h); where 0 is valid it means none. Pure functions, any thread; the bytes may be
 * hostile.
 */
#ifndef HTH_SCENARIOS_FILE_H
#define HTH_SCENARIOS_FILE_H

#include "scenarios/scenario.h"

#define HTH_SCENARIO_ERROR_MAX 512

/* Parse a scenario. `name` appears in the text of an error. Free *out with hth_scenario_free.
 * Errors: E_CONFIG, E_TOO_LARGE (HTH_SCENARIO_BYTES_MAX). */
enum hth_err hth_scenario_parse(const char *name, const uint8_t *data, size_t len,
                                struct hth_scenario **out,
                                char error[HTH_SCENARIO_ERROR_MAX]) HTH_MUST;
/* NULL is fine. */
void hth_scenario_free(struct hth_scenario *scenario);

#endif

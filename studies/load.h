/* SPDX-License-Identifier: Apache-2.0 */
/*
 * load.h: a scenario from a file, with the profiles of its devices.
 *
 * A name without a slash or a dot is one of scenarios/files. A `$word` in the text may stand for a
 * value of the caller (`sim vary`). Errors are reported on stderr; results are exit codes.
 */
#ifndef HTH_STUDIES_LOAD_H
#define HTH_STUDIES_LOAD_H

#include "scenarios/scenario.h"

#define HTH_SCENARIO_KEY_MAX 32

struct hth_loaded_scenario {
    char path[4096];
    char key[HTH_SCENARIO_KEY_MAX]; /* the key whose value has the first `$word`; or empty */
    char *text;                     /* the original text */
    struct hth_scenario *file;
};

/* Load a scenario; every `$word` becomes `value` unless that is NULL. Unload it whatever the
 * result. */
int hth_scenario_load(const char *scenario, const char *word, const char *value,
                      struct hth_loaded_scenario *out);
void hth_scenario_unload(struct hth_loaded_scenario *s);

/* Return `text` with every `$word` replaced that no letter, digit or _ follows, and their number.
 * Heap string. */
char *hth_scenario_fill_in(const char *text, const char *word, const char *value, size_t *count);

/* The key whose value has the first `$word` in the text: `up_s` in `up_s: [30, $up]`. Empty when no
 * key of letters, digits and _ precedes it. */
void hth_scenario_key_of(const char *text, const char *word, char out[HTH_SCENARIO_KEY_MAX]);

/* Read a whole file, at most max + 1 bytes and a 0. Returns NULL after an error, which is reported.
 * Heap. */
uint8_t *hth_scenario_slurp(const char *path, size_t max, size_t *len);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * load.h: a scenario from a file, with the profiles of its devices.
 *
 * A word without a slash or a dot is one of scenarios/files. A `$word` in the text may stand for a
 * value that the caller brings (`sim vary`). What goes wrong is said; codes are exit codes.
 */
#ifndef HTH_STUDIES_LOAD_H
#define HTH_STUDIES_LOAD_H

#include "scenarios/scenario.h"

#define HTH_SCENARIO_KEY_MAX 32

struct hth_loaded_scenario {
    char path[4096];
    char key[HTH_SCENARIO_KEY_MAX]; /* in whose value the `$word` stands first; or empty */
    char *text;                     /* as it was read */
    struct hth_scenario *file;
};

/* Every `$word` becomes `value`; with NULL nothing does. To be unloaded whatever comes back. */
int hth_scenario_load(const char *scenario, const char *word, const char *value,
                      struct hth_loaded_scenario *out);
void hth_scenario_unload(struct hth_loaded_scenario *s);

/* `text` with every `$word` that ends there (no letter, digit or _ follows) replaced, and how many
 * were. Heap string. */
char *hth_scenario_fill_in(const char *text, const char *word, const char *value, size_t *count);

/* The key in whose value `$word` stands first in the text: `up_s` of `up_s: [30, $up]`. Empty:
 * there is none of letters, digits and _. */
void hth_scenario_key_of(const char *text, const char *word, char out[HTH_SCENARIO_KEY_MAX]);

/* The whole of a file, of at most max + 1 bytes and a 0, or NULL with a word on stderr. Heap. */
uint8_t *hth_scenario_slurp(const char *path, size_t max, size_t *len);

#endif

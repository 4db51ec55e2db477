/* SPDX-License-Identifier: Apache-2.0 */
/*
 * yaml.h: reads files that people write, strictly, through libcyaml's tables.
 *
 * A key or word that is not in the tables is an error that names the file, the line, and the
 * closest known key or word, or all of them if none is close (core/guess.h). Anchors are refused:
 * nested ones make a small file expand without bound. Run files, scenarios, device profiles and
 * labs are read here; their modules check the numbers.
 *
 * A target of its own (hth_yaml), because hth_core needs no library. Pure functions, any thread.
 * The bytes are untrusted.
 */
#ifndef HTH_CORE_YAML_H
#define HTH_CORE_YAML_H

#include "core/base.h"

#include <cyaml/cyaml.h>

struct hth_yaml_kind {
    const char *what;  /* "a run file" */
    const char *least; /* for an empty file: "it needs at least 'run: NAME'" */
    size_t bytes_max;
    const cyaml_schema_value_t *schema; /* of the whole file: a pointer to a mapping */
};

/* `error` receives one line for a person, which begins with `name`. Free *out with hth_yaml_free.
 * Errors: E_CONFIG, E_TOO_LARGE. */
enum hth_err hth_yaml_load(const struct hth_yaml_kind *kind, const char *name, const uint8_t *data,
                           size_t len, void **out, char *error, size_t error_max) HTH_MUST;
/* Finds which keys a loaded text gives: without that, a written 0 equals a missing number. A key is
 * identified by its offset in the outermost struct, the sum of the offsets on its path; keys of
 * mappings in lists are not recorded. */
#define HTH_YAML_GIVEN_MAX 160
struct hth_yaml_given {
    size_t offset[HTH_YAML_GIVEN_MAX], count;
};
void hth_yaml_find_given(const struct hth_yaml_kind *kind, const uint8_t *data, size_t len,
                         struct hth_yaml_given *out);
bool hth_yaml_is_given(const struct hth_yaml_given *given, size_t offset);

/* NULL is fine. */
void hth_yaml_free(const struct hth_yaml_kind *kind, void *value);

#endif

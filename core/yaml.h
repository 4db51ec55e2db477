/* SPDX-License-Identifier: Apache-2.0 */
/*
 * yaml.h: files that people write, read strictly through libcyaml's tables.
 *
 * What is not in the tables is an error that names the file, the line, and the key or word that was
 * probably meant. Anchors are refused, as nested ones make a small file expand without bound. Run
 * files, scenarios, device profiles and labs are read here; what their numbers may be is theirs.
 *
 * A target of its own (hth_yaml), as hth_core needs no library. Pure functions, any thread; the
 * bytes come from outside.
 */
#ifndef HTH_CORE_YAML_H
#define HTH_CORE_YAML_H

#include "core/base.h"

#include <cyaml/cyaml.h>

struct hth_yaml_kind {
    const char *what;  /* "a run file" */
    const char *least; /* what an empty file lacks: "it needs at least 'run: NAME'" */
    size_t bytes_max;
    const cyaml_schema_value_t *schema; /* of the whole: a pointer to a mapping */
};

/* `name` is said in `error`, which holds one line for a person. Free *out with hth_yaml_free.
 * Errors: E_CONFIG, E_TOO_LARGE. */
enum hth_err hth_yaml_load(const struct hth_yaml_kind *kind, const char *name, const uint8_t *data,
                           size_t len, void **out, char *error, size_t error_max) HTH_MUST;
/* Which keys stand in a text that was loaded: a number that is 0 was either written or left out. A
 * key is known by its place in the struct, the sum of its offset and of those around it; keys of
 * mappings in lists are not noted. */
#define HTH_YAML_GIVEN_MAX 160
struct hth_yaml_given {
    size_t offset[HTH_YAML_GIVEN_MAX], count;
};
void hth_yaml_find_given(const struct hth_yaml_kind *kind, const uint8_t *data, size_t len,
                         struct hth_yaml_given *out);
bool hth_yaml_is_given(const struct hth_yaml_given *given, size_t offset);

/* NULL is fine. */
void hth_yaml_free(const struct hth_yaml_kind *kind, void *value);

/* Edit distance (insert, delete, replace, swap of neighbours), for "did you mean". */
size_t hth_text_distance(const char *a, const char *b);

#endif

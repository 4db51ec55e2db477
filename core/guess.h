/* SPDX-License-Identifier: Apache-2.0 */
/*
 * guess.h: finds the name that a person meant, for error texts: verbs, options' words, keys of
 * files. A far name is no help, so beyond a small distance the text lists all names instead.
 *
 * Pure functions, any thread.
 */
#ifndef HTH_CORE_GUESS_H
#define HTH_CORE_GUESS_H

#include "core/base.h"

/* Edit distance (insert, delete, replace, swap of neighbours). */
size_t hth_text_distance(const char *a, const char *b);
/* Whether `name` is worth a "did you mean": at most 2 edits or a third of the word away, and with a
 * letter in its place. */
bool hth_guess_is_near(const char *said, const char *name);

/* Writes "; did you mean 'train'?", or "; expected one of: node, serve, train" if no name is near;
 * the list ends with "..." where it does not fit. Each of the `count` structs of `stride` bytes at
 * `names` begins with a `const char *`, its name. Returns out. */
const char *hth_guess_text(const char *said, const void *names, size_t stride, size_t count,
                           char *out, size_t size);

#endif

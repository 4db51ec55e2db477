/* SPDX-License-Identifier: Apache-2.0 */
/*
 * walk.h: lists the files of a folder and of the folders in it, sorted by their paths.
 *
 * Names that begin with a dot are left out. Links to files count as files; links to folders are not
 * entered, so that no circle is walked.
 *
 * Any thread; it blocks on the disk.
 */
#ifndef HTH_CLI_WALK_H
#define HTH_CLI_WALK_H

#include "core/base.h"

#define HTH_WALK_FILES_MAX (1u << 24)
#define HTH_WALK_DEPTH_MAX 16

struct hth_walk {
    char **files; /* relative to the folder */
    size_t count;
};

/* Prints what is wrong. Errors: E_NO_FILE and its like, E_TOO_LARGE (more than `most` files, too
 * deep). */
enum hth_err hth_walk_list(const char *dir, size_t most, struct hth_walk *out) HTH_MUST;
void hth_walk_clear(struct hth_walk *walk);

#endif

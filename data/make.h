/* SPDX-License-Identifier: Apache-2.0 */
/*
 * make.h: the sources of data sets by name, for `hearth data NAME`, each with its defaults.
 *
 * Main thread; it blocks on files.
 */
#ifndef HTH_DATA_MAKE_H
#define HTH_DATA_MAKE_H

#include "data/folder.h"

struct hth_make {
    struct hth_env *env;
    const char *const *args; /* files and folders, as the source's `takes` says */
    size_t arg_count;
    struct hth_pack_opts pack;     /* 0 or NULL: the source's default */
    struct hth_folder_opts folder; /* of folder: the files, and rows to drop */
    hth_pack_progress_fn *progress;
    void *progress_arg;
    struct hth_why why;
};

struct hth_make_source {
    const char *name;
    size_t args_min, args_max;
    const char *takes;
    struct hth_pack_opts defaults;
    enum hth_err (*fill)(struct hth_make *make, struct hth_pack *pack);
};

/* The table ends with a name of NULL. */
extern const struct hth_make_source hth_make_sources[];

/* Makes the data set make->pack.dir. *pack holds it and the skipped samples, also after an error;
 * free it with hth_pack_free (NULL: the set was not begun). Errors: those of the source and of the
 * pack, with make->why. */
enum hth_err hth_make_run(const struct hth_make_source *source, struct hth_make *make,
                          struct hth_pack **pack, const struct hth_manifest **out) HTH_MUST;

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* file.c: reading a whole file with a bound, on top of the environment's ranged read. */
#include "core/env.h"

enum hth_err hth_file_read(struct hth_env *env, const char *path, uint64_t max,
                           struct hth_blob **out)
{
    uint64_t size;
    size_t got = 0;
    enum hth_err err;
    struct hth_blob *blob = NULL;

    *out = NULL;
    HTH_TRY(hth_file_size(env, path, &size));
    if (size > max)
        return HTH_E_TOO_LARGE;
    blob = hth_blob_try_new((size_t)size);
    if (blob == NULL)
        return HTH_E_NO_MEMORY;
    if (size > 0)
        HTH_GOTO(out, hth_file_pread(env, path, 0, blob->data, (size_t)size, &got));
    err = got == size ? HTH_OK : HTH_E_IO; /* it shrank between the two calls */
out:
    if (err != HTH_OK) {
        hth_blob_unref(blob);
        return err;
    }
    *out = blob;
    return HTH_OK;
}

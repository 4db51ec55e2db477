/* SPDX-License-Identifier: Apache-2.0 */
/*
 * plugin_int.h: the one symbol of a plug-in: a function HTH_PLUGIN_SYMBOL without arguments
 * that returns this struct, which stays where it is.
 *
 * Both sides fill the sizes from their own headers. The program compares them before it reads the
 * rest, and refuses a plug-in where one differs. `abi` and `size` come first in every version.
 */
#ifndef HTH_KERNELS_PLUGIN_INT_H
#define HTH_KERNELS_PLUGIN_INT_H

#include "kernels/backend_int.h"
#include "kernels/plugin.h"

#define HTH_PLUGIN_SYMBOL "hth_plugin_entry"

struct hth_plugin {
    uint32_t abi, size;
    uint32_t backend_size, exec_size, weight_size, params_size, info_size;
    const char *kind;
    /* Like hth_devices_list, for this kind. */
    size_t (*devices)(struct hth_device_info *out, size_t max);
    /* `limit` applies to a device that is not open; `libraries` is a folder name that stays valid,
     * or NULL (hth_plugins_libraries). */
    enum hth_err (*open)(uint32_t device, uint64_t limit, const char *libraries,
                         enum hth_matmul compute, const struct hth_backend **out, char *why,
                         size_t why_size);
};

typedef const struct hth_plugin *hth_plugin_fn(void);

/* The head of a plug-in of this build. */
#define HTH_PLUGIN_HEAD                                                                            \
    .abi = HTH_BACKEND_ABI, .size = sizeof(struct hth_plugin),                                     \
    .backend_size = sizeof(struct hth_backend), .exec_size = sizeof(struct hth_exec),              \
    .weight_size = sizeof(struct hth_weight), .params_size = sizeof(struct hth_params),            \
    .info_size = sizeof(struct hth_device_info)

#endif

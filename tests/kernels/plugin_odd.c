/* SPDX-License-Identifier: Apache-2.0 */
/*
 * plugin_odd.c: plug-ins for test_plugin.c: a good one without CUDA, and one of another build.
 */
#include <stdio.h>

#include "kernels/plugin_int.h"

static size_t devices(struct hth_device_info *out, size_t max)
{
    if (max == 0)
        return 0;
    out[0] = (struct hth_device_info){
        .kind = "cuda", .name = "a card of paper", .memory_bytes = 1 << 20, .usable = true};
    return 1;
}

static enum hth_err open_table(uint32_t device, uint64_t limit, const char *libraries,
                               enum hth_matmul compute, const struct hth_backend **out, char *why,
                               size_t why_size)
{
    (void)compute;
    (void)out;
    snprintf(why, why_size, "card %u is of paper%s%.0u%s%s", device,
             limit > 0 ? ", MiB used: " : "", (unsigned)(limit >> 20),
             libraries != NULL ? ", libraries in " : "", libraries != NULL ? libraries : "");
    return HTH_E_UNSUPPORTED;
}

__attribute__((visibility("default"))) const struct hth_plugin *hth_plugin_entry(void);
const struct hth_plugin *hth_plugin_entry(void)
{
    static struct hth_plugin self = {HTH_PLUGIN_HEAD, .kind = "cuda", .devices = devices,
                                     .open = open_table};
#ifdef PLUGIN_WRONG
    self.PLUGIN_WRONG++;
#endif
    return &self;
}

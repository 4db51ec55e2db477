/* SPDX-License-Identifier: Apache-2.0 */
#include "monitor/tfevents.h"

#include "core/bytes.h"
#include "monitor/tfevents.pb-c.h"

#include <math.h>
#include <string.h>

#define POLYNOMIAL UINT32_C(0x82F63B78) /* Castagnoli's, reflected */
#define FRAME      16

uint32_t hth_crc32c(const void *data, size_t len)
{
    const uint8_t *p = data;
    uint32_t crc = UINT32_MAX;
    for (size_t i = 0; i < len; i++) {
        crc ^= p[i];
        for (int bit = 0; bit < 8; bit++)
            crc = crc >> 1 ^ (POLYNOMIAL & -(crc & 1));
    }
    return ~crc;
}

static uint32_t masked(const void *data, size_t len)
{
    uint32_t crc = hth_crc32c(data, len);
    return (crc >> 15 | crc << 17) + UINT32_C(0xa282ead8);
}

static size_t frame(const Hth__Tfevents__Event *event, uint8_t out[HTH_TFEVENTS_BYTES_MAX])
{
    size_t len = hth__tfevents__event__get_packed_size(event);
    HTH_ASSERT(len + FRAME <= HTH_TFEVENTS_BYTES_MAX);
    hth_store_u64le(out, len);
    hth_store_u32le(out + 8, masked(out, 8));
    hth__tfevents__event__pack(event, out + 12);
    hth_store_u32le(out + 12 + len, masked(out + 12, len));
    return len + FRAME;
}

size_t hth_tfevents_begin(double wall_s, uint8_t out[HTH_TFEVENTS_BYTES_MAX])
{
    static char version[] = "brain.Event:2";
    Hth__Tfevents__Event event = HTH__TFEVENTS__EVENT__INIT;
    event.wall_time = wall_s;
    event.file_version = version;
    return frame(&event, out);
}

size_t hth_tfevents_scalars(double wall_s, uint64_t step, const struct hth_tfevents_scalar *scalar,
                            size_t count, uint8_t out[HTH_TFEVENTS_BYTES_MAX])
{
    Hth__Tfevents__Event event = HTH__TFEVENTS__EVENT__INIT;
    Hth__Tfevents__Summary summary = HTH__TFEVENTS__SUMMARY__INIT;
    Hth__Tfevents__Value value[HTH_TFEVENTS_SCALARS_MAX], *list[HTH_TFEVENTS_SCALARS_MAX];
    HTH_ASSERT(count <= HTH_TFEVENTS_SCALARS_MAX);
    for (size_t i = 0; i < count; i++) {
        if (!isfinite(scalar[i].value))
            continue;
        Hth__Tfevents__Value *v = &value[summary.n_value];
        hth__tfevents__value__init(v);
        v->tag = (char *)(uintptr_t)scalar[i].tag;
        v->simple_value = (float)scalar[i].value;
        list[summary.n_value++] = v;
    }
    if (summary.n_value == 0)
        return 0;
    summary.value = list;
    event.wall_time = wall_s;
    event.step = (int64_t)HTH_MIN(step, (uint64_t)INT64_MAX);
    event.summary = &summary;
    return frame(&event, out);
}

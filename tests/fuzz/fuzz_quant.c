/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fuzz_quant.c: quantised tensors from an untrusted peer: a byte of format, two of count, then the
 * encoded bytes. Decoding is refused with nothing written, or gives finite values, the same from
 * every table.
 */
#include <math.h>
#include <string.h>

#include "core/mem.h"
#include "kernels/isa.h"
#include "kernels/quant_int.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void decode(const struct hth_quantops *q, enum hth_quant_format format, const uint8_t *in,
                   size_t bytes, size_t count)
{
    float *y = hth_new_array(float, 2 * count + 2), *want = y + count + 1;
    struct hth_quant_out o = {.y = y};
    enum hth_err err = hth_quant_decode_with(q, format, in, bytes, count, o);
    for (size_t i = 0; i < count; i++) {
        if (err != HTH_OK ? y[i] != 0 : !isfinite(y[i]))
            __builtin_trap();
    }
    if (y[count] != 0)
        __builtin_trap();
    enum hth_err same = hth_quant_decode(format, in, bytes, count, want);
    if (same != err || memcmp(y, want, count * sizeof(float)) != 0)
        __builtin_trap();
    if (hth_quant_decode_add(format, in, bytes, count, -1.0f, want) != err)
        __builtin_trap();
    hth_free(y);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const char *isa;
    if (size < 3)
        return 0;
    enum hth_quant_format format = (enum hth_quant_format)(data[0] % 9);
    size_t count = (size_t)data[1] | (size_t)(data[2] & 0x1f) << 8, bytes = size - 3;
    /* Half of the inputs get a valid count, as random ones would never be decoded. */
    if (data[2] & 0x80) {
        while (count > 0 && hth_quant_bytes(format, count) > bytes)
            count--;
        bytes = hth_quant_bytes(format, count);
    }
    for (size_t i = 0; (isa = hth_isa_name(i)) != NULL; i++) {
        const struct hth_quantops *q = hth_quantops_find(isa);
        if (q != NULL)
            decode(q, format, data + 3, bytes, count);
    }
    return 0;
}

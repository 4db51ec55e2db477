/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fuzz_avg_shape.c: shapes as text ("32x32"): a text that parses is valid and is printed back as it
 * was.
 */
#include "averaging/grid.h"

#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char text[128] = {0}, out[HTH_AVG_SHAPE_TEXT_MAX];
    struct hth_avg_shape shape;
    if (size >= sizeof(text))
        return 0;
    if (size > 0)
        memcpy(text, data, size);
    if (hth_avg_shape_parse(text, &shape) != HTH_OK)
        return 0;
    HTH_ASSERT(strcmp(hth_avg_shape_text(&shape, out), text) == 0);
    HTH_ASSERT(hth_avg_shape_check(&shape) == HTH_OK);
    return 0;
}

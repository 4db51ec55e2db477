/* SPDX-License-Identifier: Apache-2.0 */
/* fuzz_emoji.c: any bytes as a row of emoji-test.txt. */
#include <string.h>

#include "data/emoji.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct hth_emoji e;

    if (hth_emoji_row((const char *)data, size, &e))
        HTH_ASSERT(e.points > 0 && e.points <= HTH_EMOJI_POINTS_MAX && strlen(e.name) > 0);
    return 0;
}

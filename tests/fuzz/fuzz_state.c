/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fuzz_state.c: the messages by which a state is handed out, and the records of the roster and of
 * states. Accepted messages must be the same after writing and reading them again.
 */
#include "averaging/roster.h"
#include "averaging/state_msg.h"
#include "core/mem.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len);

static void hash(const void *data, size_t len, struct hth_hash *out)
{
    uint64_t sum = len;

    for (size_t i = 0; i < len; i++)
        sum = sum * 31 + ((const uint8_t *)data)[i];
    memset(out, 0, sizeof(*out));
    hth_store_u64le(out->b, sum);
}

static void description(const uint8_t *data, size_t len)
{
    const struct hth_crypto crypto = {.hash = hash};
    struct hth_state_desc d, again;
    uint8_t *bytes;
    size_t n;

    if (hth_state_desc_open(data, len, &crypto, &d) != HTH_OK)
        return;
    hth_state_desc_pack(&d, &bytes, &n);
    if (hth_state_desc_open(bytes, n, &crypto, &again) != HTH_OK ||
        memcmp(&again.root, &d.root, sizeof(d.root)) != 0)
        abort();
    if (hth_state_part_len(&d, d.parts - 1) == 0)
        abort();
    hth_free(bytes);
    hth_state_desc_clear(&d);
    hth_state_desc_clear(&again);
}

static void note(const uint8_t *data, size_t len)
{
    struct hth_roster_note n;
    uint8_t bytes[HTH_ROSTER_NOTE_BYTES_MAX];

    if (hth_roster_note_read(data, len, &n) != HTH_OK)
        return;
    if (hth_roster_note_write(&n, bytes) != len || memcmp(bytes, data, len) != 0)
        abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len)
{
    uint64_t schema, step;
    struct hth_hash root;
    uint32_t index;

    if (len == 0)
        return 0;
    switch (data[0] % 4) {
    case 0:
        description(data + 1, len - 1);
        break;
    case 1:
        note(data + 1, len - 1);
        break;
    case 2:
        (void)!hth_state_describe_open(data + 1, len - 1, &schema, &step);
        break;
    default:
        (void)!hth_state_part_open(data + 1, len - 1, &root, &index);
        break;
    }
    return 0;
}

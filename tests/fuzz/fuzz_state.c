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

static void description(const uint8_t *data, size_t len)
{
    struct hth_state_desc d, again;
    uint8_t *bytes;
    size_t n;

    if (hth_state_desc_open(data, len, 1, &d) != HTH_OK)
        return;
    hth_state_desc_pack(&d, &bytes, &n);
    if (hth_state_desc_open(bytes, n, 1, &again) != HTH_OK || again.step != d.step ||
        again.bytes != d.bytes || again.parts != d.parts || again.meta_len != d.meta_len ||
        memcmp(again.meta, d.meta, d.meta_len) != 0 ||
        memcmp(again.hashes->data, d.hashes->data, d.hashes->size) != 0)
        abort();
    if (hth_state_part_len(&d, d.parts - 1) == 0)
        abort();
    hth_free(bytes);
    hth_state_desc_clear(&d);
    hth_state_desc_clear(&again);
}

static void request(const uint8_t *data, size_t len)
{
    struct hth_state_ask ask, again;
    uint8_t bytes[HTH_STATE_ASK_MAX];

    if (hth_state_ask_open(data, len, &ask) != HTH_OK)
        return;
    if (hth_state_ask_open(bytes, hth_state_ask_pack(&ask, bytes), &again) != HTH_OK ||
        again.named != ask.named || again.part != ask.part || again.step_min != ask.step_min ||
        memcmp(&again.name, &ask.name, sizeof(ask.name)) != 0)
        abort();
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
    if (len == 0)
        return 0;
    switch (data[0] % 4) {
    case 0:
        description(data + 1, len - 1);
        break;
    case 1:
        note(data + 1, len - 1);
        break;
    default:
        request(data + 1, len - 1);
        break;
    }
    return 0;
}

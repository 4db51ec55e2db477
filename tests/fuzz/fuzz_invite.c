/* SPDX-License-Identifier: Apache-2.0 */
/* fuzz_invite.c: invites as people paste them; one that is read is written again as it was. */
#include "admission/invite.h"

#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct hth_invite invite, again;
    char text[HTH_INVITE_TEXT_MAX];
    enum hth_err err = hth_invite_read((const char *)data, size, &invite);
    HTH_ASSERT(hth_invite_why(err) != NULL);
    if (err != HTH_OK)
        return 0;
    err = hth_invite_write(&invite, text);
    HTH_ASSERT(err == HTH_OK);
    err = hth_invite_read(text, strlen(text), &again);
    HTH_ASSERT(err == HTH_OK && memcmp(&invite, &again, sizeof(invite)) == 0);
    return 0;
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fuzz_dialback.c: any bytes as a DIALBACK or its reply; the first byte selects one. Accepted
 * messages survive packing and opening again.
 */
#include "core/limits.h"
#include "rpc/dialback.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    uint8_t bytes[HTH_DIALBACK_MESSAGE_MAX];
    struct hth_addr addr, addr_again;
    struct hth_dialback_reply reply, again;
    if (size == 0)
        return 0;
    if (data[0] % 2 == 0 && hth_dialback_ask_open(data + 1, size - 1, &addr) == HTH_OK) {
        size_t len = hth_dialback_ask_pack(&addr, bytes);
        HTH_ASSERT(addr.port != 0 && hth_addr_scope(&addr) != HTH_SCOPE_NONE);
        HTH_ASSERT(hth_dialback_ask_open(bytes, len, &addr_again) == HTH_OK);
        HTH_ASSERT(hth_addr_eq(&addr, &addr_again));
    }
    if (data[0] % 2 == 1 && hth_dialback_reply_open(data + 1, size - 1, &reply) == HTH_OK) {
        size_t len = hth_dialback_reply_pack(&reply, bytes);
        HTH_ASSERT(hth_dialback_reply_open(bytes, len, &again) == HTH_OK);
        HTH_ASSERT(again.reached == reply.reached && hth_addr_eq(&again.from, &reply.from));
    }
    return 0;
}

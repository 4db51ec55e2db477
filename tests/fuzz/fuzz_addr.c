/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fuzz_addr.c: addresses as people and peer caches write them. An address that parses is printed as
 * a text that fits, and that text parses to the same address.
 */
#include "core/ident.h"
#include "core/mem.h"

#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    /* of the input's size, so that a sanitizer sees reads beyond it */
    char *text = hth_new_array(char, size + 1);
    char out[HTH_ADDR_TEXT_MAX];
    struct hth_addr addr, again;
    if (size > 0)
        memcpy(text, data, size);
    text[size] = '\0';
    if (hth_addr_parse(text, &addr) == HTH_OK) {
        hth_addr_text(&addr, out);
        HTH_ASSERT(strlen(out) < sizeof(out));
        HTH_ASSERT(hth_addr_parse(out, &again) == HTH_OK);
        HTH_ASSERT(addr.family == (text[0] == '[' ? 6 : 4) && again.family == addr.family);
        HTH_ASSERT(again.port == addr.port && memcmp(again.ip, addr.ip, sizeof(addr.ip)) == 0);
    }
    hth_free(text);
    return 0;
}

/* SPDX-License-Identifier: Apache-2.0 */
#include "hostile/attack.h"

#include "net/crypto.h"

#include <stdio.h>
#include <string.h>

bool attack_invite(const char *path, struct hth_invite *out, char network[HTH_NAME_LEN_MAX + 1])
{
    char text[HTH_INVITE_TEXT_MAX + 2];
    FILE *f = fopen(path, "r");
    if (f == NULL)
        return false;
    size_t len = fread(text, 1, sizeof(text), f);
    fclose(f);
    if (hth_invite_read(text, len, out) != HTH_OK)
        return false;
    hth_invite_network(hth_crypto_openssl(), out, network);
    return true;
}

bool attack_addr(const char *text, struct hth_addr *out)
{
    return hth_addr_parse(text, out) == HTH_OK && hth_addr_scope(out) == HTH_SCOPE_MACHINE;
}

void attack_key(uint32_t number, struct hth_secret *out)
{
    memset(out, 0x5a, sizeof(*out));
    memcpy(out->b, &number, sizeof(number));
}

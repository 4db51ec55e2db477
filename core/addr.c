/* SPDX-License-Identifier: Apache-2.0 */
/* addr.c: peers' ids and addresses as text. */
#include "core/ident.h"

#include "core/bytes.h"

#include <arpa/inet.h>
#include <stdio.h>
#include <string.h>

bool hth_peer_id_eq(const struct hth_peer_id *a, const struct hth_peer_id *b)
{
    return memcmp(a->b, b->b, sizeof(a->b)) == 0;
}

int hth_peer_id_cmp(const struct hth_peer_id *a, const struct hth_peer_id *b)
{
    return memcmp(a->b, b->b, sizeof(a->b));
}

bool hth_peer_id_is_zero(const struct hth_peer_id *id)
{
    static const struct hth_peer_id zero;
    return hth_peer_id_eq(id, &zero);
}

const char *hth_peer_id_short(const struct hth_peer_id *id, char out[HTH_PEER_SHORT_LEN])
{
    hth_hex(id->b, (HTH_PEER_SHORT_LEN - 1) / 2, out);
    return out;
}

bool hth_addr_eq(const struct hth_addr *a, const struct hth_addr *b)
{
    return a->family == b->family && a->port == b->port && memcmp(a->ip, b->ip, 16) == 0;
}

bool hth_addr_same_ip(const struct hth_addr *a, const struct hth_addr *b)
{
    return a->family == b->family && memcmp(a->ip, b->ip, 16) == 0;
}

struct scope_block {
    uint8_t family, bits;
    uint8_t ip[16];
    enum hth_scope scope;
};

static bool block_holds(const struct scope_block *b, const struct hth_addr *addr)
{
    if (b->family != addr->family || memcmp(b->ip, addr->ip, b->bits / 8) != 0)
        return false;
    return b->bits % 8 == 0 ||
           ((b->ip[b->bits / 8] ^ addr->ip[b->bits / 8]) >> (8 - b->bits % 8)) == 0;
}

enum hth_scope hth_addr_scope(const struct hth_addr *addr)
{
    static const struct scope_block blocks[] = {
        {4, 32, {0}, HTH_SCOPE_NONE},           {6, 128, {0}, HTH_SCOPE_NONE},
        {4, 8, {127}, HTH_SCOPE_MACHINE},       {6, 128, {[15] = 1}, HTH_SCOPE_MACHINE},
        {4, 16, {169, 254}, HTH_SCOPE_LINK},    {6, 10, {0xfe, 0x80}, HTH_SCOPE_LINK},
        {4, 8, {10}, HTH_SCOPE_PRIVATE},        {4, 12, {172, 16}, HTH_SCOPE_PRIVATE},
        {4, 16, {192, 168}, HTH_SCOPE_PRIVATE}, {4, 10, {100, 64}, HTH_SCOPE_PRIVATE},
        {6, 7, {0xfc}, HTH_SCOPE_PRIVATE},
    };
    for (size_t i = 0; i < HTH_ARRAY_LEN(blocks); i++)
        if (block_holds(&blocks[i], addr))
            return blocks[i].scope;
    return addr->family == 0 ? HTH_SCOPE_NONE : HTH_SCOPE_PUBLIC;
}

/* Digits only, 0..65535. */
static enum hth_err parse_port(const char *text, uint16_t *port)
{
    size_t len = strlen(text);
    uint32_t value = 0;
    if (len == 0 || len > 5)
        return HTH_E_MALFORMED;
    for (size_t i = 0; i < len; i++) {
        if (text[i] < '0' || text[i] > '9')
            return HTH_E_MALFORMED;
        value = value * 10 + (uint32_t)(text[i] - '0');
    }
    if (value > UINT16_MAX)
        return HTH_E_MALFORMED;
    *port = (uint16_t)value;
    return HTH_OK;
}

enum hth_err hth_addr_parse(const char *text, struct hth_addr *out)
{
    char host[HTH_ADDR_TEXT_MAX];
    struct hth_addr addr = {0};
    const char *start = text, *end, *colon;
    if (text[0] == '[') {
        start = text + 1;
        end = strchr(start, ']');
        colon = end != NULL ? end + 1 : NULL;
    } else {
        end = colon = strrchr(text, ':');
    }
    if (end == NULL || colon == NULL || *colon != ':' || (size_t)(end - start) >= sizeof(host))
        return HTH_E_MALFORMED;
    memcpy(host, start, (size_t)(end - start));
    host[end - start] = '\0';
    addr.family = text[0] == '[' ? 6 : 4;
    if (inet_pton(addr.family == 6 ? AF_INET6 : AF_INET, host, addr.ip) != 1)
        return HTH_E_MALFORMED;
    HTH_TRY(parse_port(colon + 1, &addr.port));
    *out = addr;
    return HTH_OK;
}

const char *hth_addr_text(const struct hth_addr *addr, char out[HTH_ADDR_TEXT_MAX])
{
    char ip[INET6_ADDRSTRLEN] = "?";
    if (addr->family == 0) {
        snprintf(out, HTH_ADDR_TEXT_MAX, "(none)");
        return out;
    }
    if (inet_ntop(addr->family == 6 ? AF_INET6 : AF_INET, addr->ip, ip, sizeof(ip)) == NULL)
        ip[0] = '?';
    snprintf(out, HTH_ADDR_TEXT_MAX, addr->family == 6 ? "[%s]:%u" : "%s:%u", ip, addr->port);
    return out;
}

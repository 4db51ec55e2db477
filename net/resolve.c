/* SPDX-License-Identifier: Apache-2.0 */
/* resolve.c: names to addresses, and addresses to socket addresses. */
#define _GNU_SOURCE
#include "net/net_int.h"

#include <netdb.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>

socklen_t hth_net_sockaddr(const struct hth_addr *addr, struct sockaddr_storage *out)
{
    memset(out, 0, sizeof(*out));
    if (addr->family == 4) {
        struct sockaddr_in *in = (struct sockaddr_in *)out;
        in->sin_family = AF_INET;
        in->sin_port = htons(addr->port);
        memcpy(&in->sin_addr, addr->ip, 4);
        return sizeof(*in);
    }
    if (addr->family == 6) {
        struct sockaddr_in6 *in6 = (struct sockaddr_in6 *)out;
        in6->sin6_family = AF_INET6;
        in6->sin6_port = htons(addr->port);
        memcpy(&in6->sin6_addr, addr->ip, 16);
        return sizeof(*in6);
    }
    return 0;
}

bool hth_net_addr_of(const struct sockaddr_storage *ss, struct hth_addr *out)
{
    memset(out, 0, sizeof(*out));
    if (ss->ss_family == AF_INET) {
        const struct sockaddr_in *in = (const struct sockaddr_in *)ss;
        out->family = 4;
        out->port = ntohs(in->sin_port);
        memcpy(out->ip, &in->sin_addr, 4);
        return true;
    }
    if (ss->ss_family == AF_INET6) {
        const struct sockaddr_in6 *in6 = (const struct sockaddr_in6 *)ss;
        out->port = ntohs(in6->sin6_port);
        if (IN6_IS_ADDR_V4MAPPED(&in6->sin6_addr)) { /* a listener of both families */
            out->family = 4;
            memcpy(out->ip, (const uint8_t *)&in6->sin6_addr + 12, 4);
            return true;
        }
        out->family = 6;
        memcpy(out->ip, &in6->sin6_addr, 16);
        return true;
    }
    return false;
}

/* Splits "name:port"; the port is checked by parsing it behind a numeric address. */
static enum hth_err split(const char *text, char *host, size_t host_max, uint16_t *port)
{
    char numeric[32];
    struct hth_addr addr;
    const char *colon = strrchr(text, ':');
    if (colon == NULL || colon == text || (size_t)(colon - text) >= host_max)
        return HTH_E_MALFORMED;
    if (strlen(colon) > 6)
        return HTH_E_MALFORMED;
    snprintf(numeric, sizeof(numeric), "0.0.0.0%s", colon);
    HTH_TRY(hth_addr_parse(numeric, &addr));
    *port = addr.port;
    memcpy(host, text, (size_t)(colon - text));
    host[colon - text] = '\0';
    /* The host must be a name: a bare IPv6 address needs its brackets. */
    return strpbrk(host, ":[]/ ") == NULL ? HTH_OK : HTH_E_MALFORMED;
}

static enum hth_err gai_err(int code)
{
    if (code == EAI_AGAIN)
        return HTH_E_AGAIN;
    if (code == EAI_MEMORY)
        return HTH_E_NO_MEMORY;
    return HTH_E_NOT_FOUND;
}

/* RFC 6761, 6.3: localhost means the loopback addresses, without a resolver or a hosts file. */
static size_t localhost(uint16_t port, struct hth_addr *out, size_t max)
{
    const struct hth_addr loopback[] = {
        {.family = 4, .ip = {127, 0, 0, 1}, .port = port},
        {.family = 6, .ip = {[15] = 1}, .port = port},
    };
    size_t count = HTH_MIN(max, HTH_ARRAY_LEN(loopback));
    memcpy(out, loopback, count * sizeof(*out));
    return count;
}

enum hth_err hth_net_resolve(const char *text, struct hth_addr *out, size_t max, size_t *count)
{
    char host[256];
    uint16_t port;
    struct addrinfo hints = {.ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM};
    struct addrinfo *list = NULL;

    *count = 0;
    if (max == 0)
        return HTH_OK;
    if (hth_addr_parse(text, &out[0]) == HTH_OK) {
        *count = 1;
        return HTH_OK;
    }
    HTH_TRY(split(text, host, sizeof(host), &port));
    if (strcmp(host, "localhost") == 0) {
        *count = localhost(port, out, max);
        return HTH_OK;
    }
    int code = getaddrinfo(host, NULL, &hints, &list);
    if (code != 0)
        return gai_err(code);
    for (struct addrinfo *ai = list; ai != NULL && *count < max; ai = ai->ai_next) {
        struct sockaddr_storage ss = {0};
        struct hth_addr addr;
        bool known = false;
        memcpy(&ss, ai->ai_addr, HTH_MIN((size_t)ai->ai_addrlen, sizeof(ss)));
        if (!hth_net_addr_of(&ss, &addr))
            continue;
        addr.port = port;
        for (size_t i = 0; i < *count; i++)
            known = known || hth_addr_eq(&out[i], &addr);
        if (!known)
            out[(*count)++] = addr;
    }
    freeaddrinfo(list);
    return *count > 0 ? HTH_OK : HTH_E_NOT_FOUND;
}

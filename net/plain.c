/* SPDX-License-Identifier: Apache-2.0 */
/*
 * plain.c: streams without TLS, to measure the cost of TLS. Each side first sends
 *
 *     "HTHPLAIN" | 32 bytes: its public key
 *
 * and believes the other side's key without proof. For benchmarks only.
 */
#include "net/net_int.h"

#include "core/mem.h"

#include <string.h>

#define MAGIC       "HTHPLAIN"
#define MAGIC_LEN   8
#define HELLO_BYTES (MAGIC_LEN + HTH_PUBKEY_LEN)

static enum hth_err plain_open(struct hth_stream *s)
{
    s->plain_in = hth_calloc(1, HTH_NET_SEND_BYTES);
    bool fits = hth_net_out(s->net, MAGIC, MAGIC_LEN) &&
                hth_net_out(s->net, s->net->env.pubkey.b, HTH_PUBKEY_LEN);
    return fits ? HTH_OK : HTH_E_BUG;
}

static enum hth_net_step ended(struct hth_stream *s)
{
    if (s->eof)
        return HTH_NET_STEP_END;
    if (s->sock_errno == 0)
        return HTH_NET_STEP_WAIT;
    s->end_err = hth_net_sock_err(s, HTH_E_CLOSED);
    return HTH_NET_STEP_FAIL;
}

static enum hth_net_step plain_handshake(struct hth_stream *s)
{
    while (s->plain_len < HELLO_BYTES) {
        size_t n = hth_net_sock_recv(s, s->plain_in + s->plain_len, HELLO_BYTES - s->plain_len);
        if (n == 0) {
            enum hth_net_step step = ended(s);
            if (step == HTH_NET_STEP_END)
                s->end_err = HTH_E_CLOSED;
            return step;
        }
        s->plain_len += n;
    }
    s->plain_len = 0;
    s->end_err = HTH_E_PROTOCOL;
    if (memcmp(s->plain_in, MAGIC, MAGIC_LEN) != 0)
        return HTH_NET_STEP_FAIL;
    hth_net_peer_from_key(s, s->plain_in + MAGIC_LEN);
    if (s->has_want && !hth_peer_id_eq(&s->want, &s->peer)) {
        s->end_err = HTH_E_BAD_PEER_ID;
        return HTH_NET_STEP_FAIL;
    }
    s->end_err = HTH_OK;
    return HTH_NET_STEP_OK;
}

static enum hth_net_step plain_peek(struct hth_stream *s)
{
    if (s->plain_len > 0)
        return HTH_NET_STEP_OK;
    s->plain_off = 0;
    s->plain_len = hth_net_sock_recv(s, s->plain_in, HTH_NET_SEND_BYTES);
    return s->plain_len > 0 ? HTH_NET_STEP_OK : ended(s);
}

static enum hth_net_step plain_read(struct hth_stream *s, uint8_t *to, size_t max, size_t *got)
{
    if (s->plain_len == 0 && max >= HTH_NET_SEND_BYTES) {
        *got = hth_net_sock_recv(s, to, max);
        return *got > 0 ? HTH_NET_STEP_OK : ended(s);
    }
    enum hth_net_step step = plain_peek(s);
    if (step != HTH_NET_STEP_OK)
        return step;
    *got = HTH_MIN(max, s->plain_len);
    memcpy(to, s->plain_in + s->plain_off, *got);
    s->plain_off += *got;
    s->plain_len -= *got;
    return HTH_NET_STEP_OK;
}

static enum hth_err plain_seal(struct hth_stream *s, const uint8_t *data, size_t len)
{
    return hth_net_out(s->net, data, len) ? HTH_OK : HTH_E_BUG;
}

/* The end of a plain stream is the end of its TCP connection. */
static void plain_seal_end(struct hth_stream *s)
{
    (void)s;
}

static bool plain_buffered(const struct hth_stream *s)
{
    return s->plain_len > 0;
}

static void plain_clear(struct hth_stream *s)
{
    hth_free(s->plain_in);
    s->plain_in = NULL;
    s->plain_len = 0;
}

const struct hth_net_codec hth_net_plain = {
    .open = plain_open,
    .handshake = plain_handshake,
    .peek = plain_peek,
    .read = plain_read,
    .seal = plain_seal,
    .seal_end = plain_seal_end,
    .buffered = plain_buffered,
    .clear = plain_clear,
};

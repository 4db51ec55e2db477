/* SPDX-License-Identifier: Apache-2.0 */
/*
 * wire.h: one description of a message's bytes for both directions.
 *
 *     static void ping(struct hth_wire *io, struct ping *m)      writes m, or fills it
 *     {
 *         hth_wire_version(io, 1);
 *         hth_wire_u32(io, &m->n);
 *         hth_wire_check(io, m->n > 0);
 *     }
 *
 * A writer's values are not changed, and not checked. A reader keeps its first error, and what
 * follows it is zero; counts beyond their limit, too.
 */
#ifndef HTH_CORE_WIRE_H
#define HTH_CORE_WIRE_H

#include "core/bytes.h"
#include "core/ident.h"

struct hth_wire {
    bool reads;
    struct hth_reader r; /* either this one */
    struct hth_writer w; /* or that one is in use */
    enum hth_err err;
};

static inline struct hth_wire hth_wire_into(uint8_t *out, size_t room)
{
    struct hth_wire io = {.reads = false};
    hth_writer_init(&io.w, out, room);
    return io;
}
static inline struct hth_wire hth_wire_of(const uint8_t *data, size_t len)
{
    struct hth_wire io = {.reads = true};
    hth_reader_init(&io.r, data, len);
    return io;
}

#define HTH_WIRE_INT(bits)                                                                         \
    static inline void hth_wire_u##bits(struct hth_wire *io, uint##bits##_t *v)                    \
    {                                                                                              \
        if (io->reads)                                                                             \
            *v = hth_read_u##bits(&io->r);                                                         \
        else                                                                                       \
            hth_write_u##bits(&io->w, *v);                                                         \
    }
HTH_WIRE_INT(8)
HTH_WIRE_INT(16)
HTH_WIRE_INT(32)
HTH_WIRE_INT(64)
static inline void hth_wire_bytes(struct hth_wire *io, void *bytes, size_t len)
{
    if (io->reads)
        hth_read_bytes(&io->r, bytes, len);
    else
        hth_write_bytes(&io->w, bytes, len);
}
static inline void hth_wire_f64(struct hth_wire *io, double *v)
{
    uint64_t bits;
    memcpy(&bits, v, sizeof(bits));
    hth_wire_u64(io, &bits);
    memcpy(v, &bits, sizeof(bits));
}
/* As a float. */
static inline void hth_wire_f32(struct hth_wire *io, double *v)
{
    float f = (float)*v;
    uint32_t bits;
    memcpy(&bits, &f, sizeof(bits));
    hth_wire_u32(io, &bits);
    memcpy(&f, &bits, sizeof(f));
    *v = (double)f;
}
/* Of a reader: fails with that error if all so far is there, and this does not hold. */
static inline void hth_wire_expect(struct hth_wire *io, bool good, enum hth_err err)
{
    if (io->reads && io->err == HTH_OK)
        io->err = io->r.err == HTH_OK && !good ? err : io->r.err;
}
static inline void hth_wire_check(struct hth_wire *io, bool good)
{
    hth_wire_expect(io, good, HTH_E_MALFORMED);
}
/* Programs that make something else of a message's bytes have another version. */
static inline void hth_wire_version(struct hth_wire *io, uint8_t version)
{
    uint8_t is = version;
    hth_wire_u8(io, &is);
    hth_wire_expect(io, is == version, HTH_E_VERSION);
}
static inline void hth_wire_flag(struct hth_wire *io, bool *flag)
{
    uint8_t is = !io->reads && *flag;
    hth_wire_u8(io, &is);
    hth_wire_check(io, is <= 1);
    *flag = is == 1;
}
/* Family 0, 4 or 6, 16 bytes with zeros behind it, and a port, which is 0 with family 0 only. */
static inline void hth_wire_addr(struct hth_wire *io, struct hth_addr *addr)
{
    static const uint8_t zero[16];
    hth_wire_u8(io, &addr->family);
    hth_wire_bytes(io, addr->ip, sizeof(addr->ip));
    hth_wire_u16(io, &addr->port);
    size_t used = addr->family == 4 ? 4 : addr->family == 6 ? 16 : 0;
    hth_wire_check(io, (addr->family == 0 || used > 0) && (addr->port > 0) == (used > 0) &&
                           memcmp(addr->ip + used, zero, sizeof(zero) - used) == 0);
}
/* A value of 0..last. */
static inline uint8_t hth_wire_kind(struct hth_wire *io, uint8_t kind, uint8_t last)
{
    hth_wire_u8(io, &kind);
    hth_wire_check(io, kind <= last);
    return io->err == HTH_OK ? kind : 0;
}
/* So many follow, or fewer: none after an error. */
static inline void hth_wire_bound(struct hth_wire *io, uint32_t *count, uint32_t max)
{
    hth_wire_expect(io, *count <= max, HTH_E_TOO_LARGE);
    *count = io->err == HTH_OK ? *count : 0;
}
static inline void hth_wire_count(struct hth_wire *io, uint32_t *count, uint32_t max)
{
    hth_wire_u32(io, count);
    hth_wire_bound(io, count, max);
}
static inline void hth_wire_count16(struct hth_wire *io, uint32_t *count, uint32_t max)
{
    uint16_t n = io->reads ? 0 : (uint16_t)*count;
    hth_wire_u16(io, &n);
    *count = n;
    hth_wire_bound(io, count, max);
}
/* The end of a message that was read; bytes left over are E_MALFORMED. */
static inline enum hth_err hth_wire_end(struct hth_wire *io)
{
    hth_wire_check(io, hth_reader_left(&io->r) == 0);
    return io->err;
}

/* NAME_write and NAME_read of a message that void describe(io, message) describes. */
#define HTH_WIRE_PAIR(name, message, describe, room)                                               \
    size_t name##_write(const message *m, uint8_t *out)                                            \
    {                                                                                              \
        message copy = *m;                                                                         \
        struct hth_wire io = hth_wire_into(out, room);                                             \
        describe(&io, &copy);                                                                      \
        HTH_ASSERT(io.w.err == HTH_OK);                                                            \
        return io.w.pos;                                                                           \
    }                                                                                              \
    enum hth_err name##_read(const uint8_t *data, size_t len, message *out)                        \
    {                                                                                              \
        struct hth_wire io = hth_wire_of(data, len);                                               \
        memset(out, 0, sizeof(*out));                                                              \
        describe(&io, out);                                                                        \
        return hth_wire_end(&io);                                                                  \
    }

#endif

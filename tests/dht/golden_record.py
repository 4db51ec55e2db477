#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes golden_record.h: one record, and the payload of a beacon, made without hearth's code.

Ed25519 is written out from RFC 8032 (section 5.1), so that the expected bytes depend on no library
that hearth uses. Run it in this folder:

    python3 golden_record.py > golden_record.h
    python3 golden_record.py beacon > ../fuzz/corpus/fuzz_record/beacon
"""
import hashlib
import struct
import sys

P = 2**255 - 19
L = 2**252 + 27742317777372353535851937790883648493
D = -121665 * pow(121666, P - 2, P) % P


def add(a, b):
    (x1, y1, z1, t1), (x2, y2, z2, t2) = a, b
    e = (y1 - x1) * (y2 - x2) % P
    f = (y1 + x1) * (y2 + x2) % P
    c = 2 * t1 * t2 * D % P
    d = 2 * z1 * z2 % P
    e, f, g, h = f - e, d - c, d + c, f + e
    return e * f % P, g * h % P, f * g % P, e * h % P


def times(n, point):
    out = (0, 1, 1, 0)
    while n:
        if n & 1:
            out = add(out, point)
        point = add(point, point)
        n >>= 1
    return out


def base():
    y = 4 * pow(5, P - 2, P) % P
    x2 = (y * y - 1) * pow(D * y * y + 1, P - 2, P) % P
    x = pow(x2, (P + 3) // 8, P)
    if x * x % P != x2:
        x = x * pow(2, (P - 1) // 4, P) % P
    if x & 1:
        x = P - x
    return x, y, 1, x * y % P


def packed(point):
    x, y, z, _ = point
    inv = pow(z, P - 2, P)
    x, y = x * inv % P, y * inv % P
    return (y | ((x & 1) << 255)).to_bytes(32, "little")


def sign(secret, message):
    h = hashlib.sha512(secret).digest()
    a = int.from_bytes(h[:32], "little") & ((1 << 254) - 8) | (1 << 254)
    public = packed(times(a, base()))
    r = int.from_bytes(hashlib.sha512(h[32:] + message).digest(), "little") % L
    big_r = packed(times(r, base()))
    k = int.from_bytes(hashlib.sha512(big_r + public + message).digest(), "little") % L
    return public, big_r + ((r + k * a) % L).to_bytes(32, "little")


def sha(data):
    return hashlib.sha256(data).digest()


def text(words):
    raw = words.encode()
    return bytes([len(raw)]) + raw


def beacon():
    host = (bytes([1, 4, 127, 0, 0, 1]) + struct.pack("<H", 4000) +
            bytes([0]) + struct.pack("<II", 1000, 7) + text("0.1.0"))
    layer = (text("ffn0") + bytes([2, 16, 16]) + text("ffn") + bytes([0x80, 0x02, 1]) +
             bytes([64]))  # d = 256, rows of one, 64 experts
    return (bytes([2, 0]) + struct.pack("<HH", 1, 1) + bytes([1]) + host + text("golden") +
            bytes([1]) + layer)


def main():
    if sys.argv[1:] == ["beacon"]:
        sys.stdout.buffer.write(beacon())
        return
    secret = bytes(range(32))
    wall_us = 1700000000 * 1000000
    network = struct.unpack("<Q", sha(b"hearth network 1" + b"golden")[:8])[0]
    kind = 2
    topic = sha(b"hearth topic 1\0\0" + bytes([kind]) + struct.pack("<Q", network) + sha(b"ffn0."))
    key = sha(topic + struct.pack("<Q", wall_us // 120000000))[:20]
    public, _ = sign(secret, b"")
    body = (b"HREC" + bytes([1, kind, 3, 0]) + struct.pack("<QQQ", network, wall_us, wall_us) +
            struct.pack("<II", 60000, 5) + public + b"hello")
    _, signature = sign(secret, b"hearth record 1\0" + key + body)
    print("/* SPDX-License-Identifier: Apache-2.0 */")
    print("/* Written by golden_record.py. */")
    for name, data in (("GOLDEN_KEY", key), ("GOLDEN_RECORD", body + signature),
                       ("GOLDEN_BEACON", beacon())):
        print("static const uint8_t %s[%d] = {" % (name, len(data)))
        for i in range(0, len(data), 12):
            print("    " + " ".join("0x%02x," % b for b in data[i:i + 12]))
        print("};")


if __name__ == "__main__":
    main()

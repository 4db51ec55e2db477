#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes the golden frames from the text of docs/protocol.md, without hearth's code.

usage: make.py        (in this folder; the files are committed, this is their source)
"""
import struct

F32, BF16 = 1, 2


def varint(v):
    out = b""
    while v >= 0x80:
        out += bytes([v & 0x7F | 0x80])
        v >>= 7
    return out + bytes([v])


def num(field, v):
    return varint(field << 3) + varint(v) if v else b""


def fixed64(field, v):
    return varint(field << 3 | 1) + struct.pack("<Q", v) if v else b""


def text(field, v):
    return varint(field << 3 | 2) + varint(len(v)) + v if v else b""


def message(field, v):
    return varint(field << 3 | 2) + varint(len(v)) + v


def tensor(dtype, dims, offset, size):
    packed = b"".join(varint(d) for d in dims)
    return num(1, dtype) + text(2, packed) + num(3, offset) + num(4, size)


def frame(kind, ident, trace, meta, body=b""):
    head = b"HRTH" + struct.pack("<BBHQQII", 1, kind, 0, ident, trace, len(meta), len(body))
    return head + meta + body


def pad(data):
    return data + bytes(-len(data) % 64)


ROWS = struct.pack("<6f", 1, 2, 3, 4, 5, 6)
GRADS = bytes(range(16))
BODY = pad(ROWS) + GRADS
SECTIONS = message(6, tensor(F32, [2, 3], 0, 24)) + message(6, tensor(BF16, [8], 64, 16))

FRAMES = {
    "hello": frame(1, 0, 0, num(1, 1) + num(2, 1) + text(3, b"demo") + fixed64(4, 5) +
                   num(5, 1024) + num(6, 128 << 20) + num(7, 256 << 20) + num(8, 256 << 20)),
    "request": frame(2, 0x10000, 0x1122334455667788,
                     num(1, 17) + num(2, 1500) + fixed64(3, 0xA1) + fixed64(4, 0xB2) +
                     text(5, b"payload") + SECTIONS, BODY),
    "reply": frame(3, 0x10000, 0x1122334455667788,
                   text(1, b"ok") + message(2, tensor(F32, [2, 3], 0, 24)), ROWS),
    "refuse": frame(4, 0x20001, 7, num(1, 2) + num(2, 250) + text(3, b"come back")),
    "cancel": frame(5, 0x20001, 0, b""),
    "credit": frame(6, 0, 0, num(1, 64 << 20)),
    "ping": frame(7, 3, 0, b""),
    "pong": frame(8, 3, 0, b""),
    "goodbye": frame(9, 0, 0, num(1, 10) + text(2, b"shutting down")),
}

for name, data in FRAMES.items():
    with open(name + ".hex", "w") as out:
        for i in range(0, len(data), 32):
            out.write(data[i:i + 32].hex(" ") + "\n")

#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Prints golden_names.h: a line's key, a group's id and the order of its members, written out here
from the description in averaging/grid.h and with Python's SHA-256.

    python3 golden_names.py > golden_names.h
"""
import hashlib
import struct


def line_key(run, rnd, sizes, cell):
    axis = rnd % len(sizes)
    out = b"hthline3" + struct.pack("<QBB", run, axis, len(sizes))
    out += b"".join(struct.pack("<I", s) for s in sizes)
    return out + b"".join(struct.pack("<I", c) for i, c in enumerate(cell) if i != axis)


def group_id(key, schema, members):
    """Member i is a trainer with weight 1 + i, bandwidth 0 and nonce i at 10.0.0.1:9."""
    out = b"thgroup2" + struct.pack("<QI", schema, len(members)) + key
    for peer, i in sorted((m, i) for i, m in enumerate(members)):
        out += peer + struct.pack("<BBH", 0, 4, 9) + bytes([10, 0, 0, 1] + 12 * [0])
        out += struct.pack("<ddQ", 0, 1 + i, i)
    return hashlib.sha256(out).digest()


def array(name, data):
    rows = [data[i:i + 12] for i in range(0, len(data), 12)]
    body = "\n".join("    " + " ".join("0x%02x," % b for b in row) for row in rows)
    return "static const uint8_t %s[%d] = {\n%s\n};" % (name, len(data), body)


KEY = line_key(0x1122334455667788, 1000003, (5, 4, 4), (3, 2, 1))
MEMBERS = [hashlib.sha256(b"member %d" % i).digest() for i in range(5)]
GROUP = group_id(KEY, 0xABCDEF, MEMBERS)
ORDER = sorted(range(5), key=lambda i: hashlib.sha256(GROUP + MEMBERS[i]).digest())

print("/* SPDX-License-Identifier: Apache-2.0 */")
print("/* Written by golden_names.py. Member i is the SHA-256 of \"member i\". */")
print(array("golden_key", KEY))
print(array("golden_group", GROUP))
print("static const uint32_t golden_order[5] = {%s};" % ", ".join(map(str, ORDER)))

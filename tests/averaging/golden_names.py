#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Prints golden_names.h: a line's key, written out here from the description in averaging/grid.h.

    python3 golden_names.py > golden_names.h
"""
import struct


def line_key(run, rnd, sizes, cell):
    axis = rnd % len(sizes)
    out = b"hthline3" + struct.pack("<QBB", run, axis, len(sizes))
    out += b"".join(struct.pack("<I", s) for s in sizes)
    return out + b"".join(struct.pack("<I", c) for i, c in enumerate(cell) if i != axis)


def array(name, data):
    rows = [data[i:i + 12] for i in range(0, len(data), 12)]
    body = "\n".join("    " + " ".join("0x%02x," % b for b in row) for row in rows)
    return "static const uint8_t %s[%d] = {\n%s\n};" % (name, len(data), body)


KEY = line_key(0x1122334455667788, 1000003, (5, 4, 4), (3, 2, 1))

print("/* SPDX-License-Identifier: Apache-2.0 */")
print("/* Written by golden_names.py. */")
print(array("golden_key", KEY))

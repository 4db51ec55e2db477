#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes golden_pass.h: a run's id and a peer's credentials, made without hearth's code from the
layout in admission/pass.h. Run it in this folder:

    python3 golden_pass.py > golden_pass.h
    python3 golden_pass.py creds > ../fuzz/corpus/fuzz_pass/deputy
"""
import struct
import sys

sys.path.insert(0, "../dht")
from golden_record import sha, sign  # noqa: E402

DAY_US = 86400 * 1000000
NOW_US = 1700000000 * 1000000


def seed(n):
    return bytes([n] * 32)


def public(secret):
    return sign(secret, b"")[0]


def sealed(words, secret, body):
    return body + sign(secret, words + b"\0" + body)[1]


def cert(by, key, run, serial, roles, name):
    body = (b"HCRT" + bytes([1, 0, 2, roles]) +
            struct.pack("<QQQ", serial, NOW_US - DAY_US, NOW_US + 30 * DAY_US) + run + public(key) +
            struct.pack("<I", 0) + bytes([len(name)]) + name)
    return sealed(b"hearth certificate", by, body)


def main():
    owner, deputy, invite, peer = seed(1), seed(2), seed(3), seed(4)
    run = sha(b"hearth run\0" + public(owner) + sha(b"run golden\n"))
    credential = sealed(b"hearth pass", invite, b"P\x01" + public(peer) +
                        struct.pack("<QQ", 8, NOW_US) + bytes(32))
    credential += cert(deputy, invite, run, 8, 3, "ana-mária".encode())
    credential += cert(owner, deputy, run, 7, 19, b"dora")
    if sys.argv[1:] == ["creds"]:
        sys.stdout.buffer.write(credential)
        return
    print("/* SPDX-License-Identifier: Apache-2.0 */")
    print("/* Written by golden_pass.py. */")
    for name, data in (("GOLDEN_RUN", run), ("GOLDEN_CREDS", credential)):
        print("static const uint8_t %s[%d] = {" % (name, len(data)))
        for i in range(0, len(data), 12):
            print("    " + " ".join("0x%02x," % b for b in data[i:i + 12]))
        print("};")


main()

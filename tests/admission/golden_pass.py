#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes golden_pass.h: a run's id, credentials of peers and a list of revoked invites, made without
hearth's code from the layouts in admission/pass.h and revoke.h. Run it in this folder:

    python3 golden_pass.py > golden_pass.h
    python3 golden_pass.py creds > ../fuzz/corpus/fuzz_pass/deputy
    python3 golden_pass.py successor > ../fuzz/corpus/fuzz_pass/successor
    python3 golden_pass.py revoked > ../fuzz/corpus/fuzz_revoked/deputy
"""
import struct
import sys

sys.path.insert(0, "../dht")
from golden_record import sha, sign  # noqa: E402

DAY_S = 86400
NOW_S = 1700000000


def seed(n):
    return bytes([n] * 32)


def public(secret):
    return sign(secret, b"")[0]


def sealed(words, secret, body, before=b""):
    return body + sign(secret, words + b"\0" + before + body)[1]


def cert(by, key, run, serial, roles, name, silence=None):
    body = bytes([2, 0 if silence is None else 2, 2, roles])
    body += struct.pack("<QI", serial, NOW_S + 30 * DAY_S) + public(key) + bytes([len(name)]) + name
    if silence is not None:
        body += struct.pack("<I", silence)
    return sealed(b"hearth certificate", by, body, run + bytes(8))


def main():
    owner, deputy, invite, peer, successor = (seed(n) for n in range(1, 6))
    run = sha(b"hearth run\0" + public(owner) + sha(b"run golden\n"))
    credential = sealed(b"hearth pass", invite, b"\x02" + public(peer) + struct.pack("<I", NOW_S),
                        run + struct.pack("<Q", 8))
    credential += cert(deputy, invite, run, 8, 3, "ana-mária".encode())
    deputy_cert = cert(owner, deputy, run, 7, 19, b"dora")
    by_successor = (credential + cert(successor, deputy, run, 7, 19, b"dora") +
                    cert(owner, successor, run, 6, 31, b"sara", 30 * DAY_S))
    credential += deputy_cert
    revoked = sealed(b"hearth revoked", deputy, b"HREV" + struct.pack("<BBHQ", 1, 0, 2, NOW_S * 1000000) +
                     run + struct.pack("<QQ", 5, 8)) + deputy_cert
    if len(sys.argv) > 1:
        sys.stdout.buffer.write({"creds": credential, "successor": by_successor,
                                 "revoked": struct.pack("<H", len(revoked)) + revoked}[sys.argv[1]])
        return
    print("/* SPDX-License-Identifier: Apache-2.0 */")
    print("/* Written by golden_pass.py. */")
    for name, data in (("GOLDEN_RUN", run), ("GOLDEN_CREDS", credential),
                       ("GOLDEN_BY_SUCCESSOR", by_successor), ("GOLDEN_REVOKED", revoked)):
        print("static const uint8_t %s[%d] = {" % (name, len(data)))
        for i in range(0, len(data), 12):
            print("    " + " ".join("0x%02x," % b for b in data[i:i + 12]))
        print("};")


main()

#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""hivemind's side of `hearth bench peers`, driven through pipes so that both sides work in turns.

    peer.py CASE        CASE is a JSON object: what to do, by the names in benchmarks/peers.c

The script starts hivemind's processes, compares their results with a computation of its own, warms
them up, and then answers lines. Each line that it prints is a JSON object:

    (start)     {"peer": "hivemind 1.1.12", "with": "PyTorch 2.15.0, ...", "malloc": "tcmalloc"}
    go          {"value": 1038.2}             one run of the case; C adds "good", steps that succeeded
    (anything)  {"error": "..."}              and the end
    (end of input)                            the end of all processes in the script's group

Logs of hivemind go to standard error. All sockets listen on 127.0.0.1.
"""
import importlib
import json
import os
import shutil
import signal
import sys
import tempfile
import threading

OUT = os.fdopen(os.dup(1), "w", buffering=1)  # libraries' prints must not mix with the protocol
os.dup2(2, 1)
os.register_at_fork(after_in_child=OUT.close)  # so that our end is the end of the output
SOCKETS = tempfile.mkdtemp(prefix="hearth-peer-")  # of hivemind's daemons


def say(**fields):
    OUT.write(json.dumps(fields) + "\n")


def end():
    """Kills the process group: hivemind's own shutdown takes long and can leave daemons."""
    shutil.rmtree(SOCKETS, ignore_errors=True)
    if os.getpgrp() == os.getpid():
        os.killpg(0, signal.SIGKILL)
    os._exit(0)


def hear(wake):
    """Reads without sys.stdin: its lock, held at a fork, would hang each child."""
    while True:
        got = os.read(0, 4096)
        if not got:
            end()
        for _ in range(got.count(b"\n")):
            wake.release()


def malloc():
    with open("/proc/self/maps", encoding="utf-8") as maps:
        return "tcmalloc" if "libtcmalloc" in maps.read() else "the C library's malloc"


def main():
    wake = threading.Semaphore(0)
    threading.Thread(target=hear, args=(wake,), daemon=True).start()
    case = json.loads(sys.argv[1])
    import hivemind
    import torch

    hivemind.p2p.P2P._UNIX_SOCKET_PREFIX = "/unix%s/" % SOCKETS
    module = importlib.import_module(case["module"])
    work = module.start(**case["work"])
    say(
        peer="hivemind " + hivemind.__version__,
        **{"with": "PyTorch %s, Python %s" % (torch.__version__, sys.version.split()[0])},
        malloc=malloc(),
    )
    while True:
        wake.acquire()
        say(**work())


if __name__ == "__main__":
    try:
        main()
    except BaseException as error:
        say(error="%s: %s" % (type(error).__name__, str(error).split("\n", 1)[0]))
        raise
    finally:
        end()

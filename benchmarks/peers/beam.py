# SPDX-License-Identifier: Apache-2.0
"""Case beam: the best k of a square grid of experts for each row of a batch, over hivemind's DHT.

The experts are declared from several DHT peers; one more peer searches, with its cache warm.
"""
import random
import statistics
import time

import torch
from hivemind.dht import DHT
from hivemind.moe.client.beam_search import MoEBeamSearcher
from hivemind.moe.server.dht_handler import declare_experts
from hivemind.utils import get_dht_time

from common import LOOPBACK, SEED

PEERS = 8  # hold the records; one more peer searches
DECLARE = 256  # uids per declaration
WARM_SEARCHES = 2
LIFE_S = 3600
TRIES = 5
# Rows of one call. hivemind's DHT process reads requests without waiting, and dies when one of more
# than 16 KiB, which is written in two parts, is not there whole.
AT_ONCE = 16


def declare(draw, dhts, uids):
    for _ in range(TRIES):  # a store that took too long on a busy machine counts as refused
        if all(declare_experts(draw.choice(dhts), uids, get_dht_time() + LIFE_S).values()):
            return
    raise RuntimeError("hivemind's DHT did not take all experts")


def start(side, rows, k, searches):
    torch.manual_seed(SEED)
    uids = ["grid.%d.%d" % (i, j) for i in range(side) for j in range(side)]
    dhts = [DHT(start=True, **LOOPBACK)]
    addrs = dhts[0].get_visible_maddrs()
    dhts += [DHT(initial_peers=addrs, start=True, **LOOPBACK) for _ in range(PEERS)]
    draw = random.Random(SEED)
    for at in range(0, len(uids), DECLARE):
        declare(draw, dhts[:-1], uids[at : at + DECLARE])
    searcher = MoEBeamSearcher(dhts[-1], "grid.", (side, side))

    def search():
        scores = [torch.randn(rows, side).numpy() for _ in range(2)]
        begin = time.perf_counter()
        found = []
        for at in range(0, rows, AT_ONCE):
            part = [each[at : at + AT_ONCE] for each in scores]
            found += searcher.batch_find_best_experts(part, k)
        return scores, found, time.perf_counter() - begin

    def verify():
        (first, second), found, _ = search()
        for row in range(rows):
            every = [float(a + b) for a in first[row] for b in second[row]]
            want = sorted(range(len(every)), key=every.__getitem__)[: -k - 1 : -1]
            if [e.uid for e in found[row]] != [uids[i] for i in want]:
                raise RuntimeError("row %d: hivemind's beam search missed one of the best" % row)

    for _ in range(WARM_SEARCHES):
        search()
    verify()
    return lambda: {"value": 1e3 * statistics.median(search()[2] for _ in range(searches))}

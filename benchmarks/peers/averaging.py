# SPDX-License-Identifier: Apache-2.0
"""Case C: averagers that find each other through the DHT and average in groups of four.

Each averager is a process with hivemind's DHT and averager processes under it; fp16 on the wire,
matchmaking and time limits as hivemind's averaging benchmark has them. The clock starts when all
are up and ends with the last step.
"""
import time

import torch
from hivemind.averaging import DecentralizedAverager
from hivemind.compression import Float16Compression
from hivemind.dht import DHT

from common import LOOPBACK, Crew

LAYERS, GROUP_BITS = 3, 2
MATCHMAKING_S, ROUND_S = 5, 15


def tensors(width, seed):
    """The shapes of three transformer layers, 12 h^2 + 19 h numbers each."""
    shapes = [(width, 3 * width), (3 * width,), (3 * width,), (width, width), (width,), (width,)]
    shapes += [(width, 4 * width), (4 * width,), (4 * width,), (2, width, width, 2)]
    shapes += [(width,), (width,), (width,)]
    make = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=make) for _ in range(LAYERS) for shape in shapes]


def node(pipe, index, peers, width, group, rounds):
    torch.set_num_threads(1)
    dht = DHT(initial_peers=peers, start=True, **LOOPBACK)
    averager = DecentralizedAverager(
        tensors(width, index),
        dht,
        prefix="peers",
        initial_group_bits=format(index % 2**GROUP_BITS, "0%db" % GROUP_BITS),
        target_group_size=group,
        min_matchmaking_time=MATCHMAKING_S,
        compression=Float16Compression(),
        start=True,
    )
    pipe.send("up")
    while True:
        (what,) = pipe.recv()
        good = 0
        for _ in range(rounds if what == "run" else 0):
            try:
                good += averager.step(timeout=ROUND_S) is not None
            except Exception as error:  # a failed round does not count
                print("averager %d: %r" % (index, error), flush=True)
        if what == "reset":
            with averager.get_tensors() as mine:
                for old, new in zip(mine, tensors(width, index)):
                    old.copy_(new)
        with averager.get_tensors() as mine:
            flat = torch.cat([t.flatten() for t in mine])
            pipe.send((good, flat.double().mean().item(), flat[:64].tolist()))


def spread(heads):
    return torch.tensor(heads).std(dim=0).mean().item()


def start(nodes, width, group, rounds):
    root = DHT(start=True, **LOOPBACK)
    peers = root.get_visible_maddrs()
    crew = Crew(node, [(i, peers, width, group, rounds) for i in range(nodes)])

    def work():
        before = crew.tell("reset")
        begin = time.perf_counter()
        after = crew.tell("run")
        took = time.perf_counter() - begin
        good = sum(each[0] for each in after)
        off = abs(sum(a[1] - b[1] for a, b in zip(after, before))) / nodes
        left = spread([a[2] for a in after]) / spread([b[2] for b in before])
        # Groups of four that all succeed keep the mean and bring the averagers together.
        if good == nodes * rounds and (off > 1e-4 or left > 0.5):
            raise RuntimeError("the mean moved by %.3g, %.3g of the spread is left" % (off, left))
        return {"value": took, "good": good}

    return work

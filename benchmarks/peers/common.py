# SPDX-License-Identifier: Apache-2.0
"""Shared by several cases: hivemind's server of experts in a process, and the same experts here."""
import multiprocessing as mp

import torch
from hivemind.moe.server.layers import name_to_block
from hivemind.moe.server.server import Server

# No daemon may look for a router or relays: everything stays on 127.0.0.1. A busy machine takes
# longer than hivemind's usual 15 s to start many of them.
LOOPBACK = {
    "nat_port_map": False,
    "auto_nat": False,
    "use_relay": False,
    "startup_timeout": 120,
}
SEED = 1


def experts_like(kind, d, count, seed):
    """Experts with the weights of a server that serve_experts started with this seed."""
    torch.manual_seed(seed)
    return [name_to_block[kind](d) for _ in range(count)]


def distance(got, want):
    return float((got - want).norm() / want.norm().clamp(min=1e-9))


def must_be_near(what, got, want, limit=1e-4):
    off = distance(got, want)
    if not off <= limit:
        raise RuntimeError("%s: hivemind's result is %.3g off a direct computation" % (what, off))


def _serve(pipe, uids, kind, d, handlers, batch_max, seed, peers):
    torch.manual_seed(seed)
    server = Server.create(
        expert_uids=list(uids),
        expert_cls=kind,
        hidden_dim=d,
        optim_cls=torch.optim.Adam,
        num_handlers=handlers,
        max_batch_size=batch_max,
        device="cpu",
        initial_peers=peers,
        start=True,
        **LOOPBACK,
    )
    pipe.send((server.dht.peer_id, server.dht.get_visible_maddrs()))
    server.join()


def serve_experts(uids, kind, d, handlers, batch_max, seed=SEED, peers=()):
    """Starts hivemind's server; returns its peer id and addresses once it is ready."""
    here, there = mp.Pipe()
    mp.Process(
        target=_serve, args=(there, uids, kind, d, handlers, batch_max, seed, list(peers))
    ).start()
    there.close()
    return hear([here])[0]


def hear(pipes):
    try:
        return [pipe.recv() for pipe in pipes]
    except EOFError:
        raise RuntimeError("one of hivemind's processes died") from None


class Crew:
    """Processes that each run one command at a time, all at once."""

    AT_ONCE = 4  # processes that start at the same time

    def __init__(self, target, args):
        self.pipes = []
        for i, each in enumerate(args):
            here, there = mp.Pipe()
            mp.Process(target=target, args=(there, *each)).start()
            there.close()
            self.pipes.append(here)
            if (i + 1) % self.AT_ONCE == 0 or i + 1 == len(args):
                hear(self.pipes[i - i % self.AT_ONCE :])

    def tell(self, *what):
        for pipe in self.pipes:
            pipe.send(what)
        return hear(self.pipes)

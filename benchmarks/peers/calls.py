# SPDX-License-Identifier: Apache-2.0
"""Cases A: clients in closed loops, each a process with a daemon of its own, and one server.

A client picks an expert at random, sends a batch, waits for the output; with `backward` it then
sends the batch and a gradient of ones and waits for the input's gradient. Clients are connected
and know the experts' schemas before the clock starts. A call that fails is repeated within the
measured time, as hivemind's own mixture would ask another expert: now and then half of a large
tensor gets lost between two of its daemons.
"""
import random
import sys
import time

import torch
from hivemind.moe.client.expert import RemoteExpert
from hivemind.moe.client.remote_expert_worker import RemoteExpertWorker
from hivemind.moe.expert_uid import ExpertInfo
from hivemind.p2p import P2P

from common import LOOPBACK, SEED, Crew, experts_like, must_be_near, serve_experts

WARM_ROWS = 8
TRIES = 3


def connect(server, count):
    peer_id, addrs = server
    p2p = RemoteExpertWorker.run_coroutine(P2P.create(initial_peers=addrs, **LOOPBACK))
    experts = [RemoteExpert(ExpertInfo("expert.%d" % i, peer_id), p2p) for i in range(count)]
    for expert in experts:
        assert expert.info is not None
    return experts


def call(expert, batch, backward):
    for left in reversed(range(TRIES)):
        try:
            return call_once(expert, batch, backward)
        except Exception as error:
            if left == 0:
                raise
            print("hivemind's call failed and is repeated: %s" % error, file=sys.stderr)


def call_once(expert, batch, backward):
    x = batch.detach().requires_grad_(backward)
    y = expert(x)
    if backward:
        y.backward(batch.detach())  # the block's norm makes zero, or noise, of a constant one
    return y.detach(), x.grad


def verify(experts, kind, d, backward):
    batch = torch.randn(16, d)
    for i, like in enumerate(experts_like(kind, d, len(experts), SEED)):
        if i in (0, len(experts) // 2, len(experts) - 1):
            got, want = call(experts[i], batch, backward), call_once(like, batch, backward)
            must_be_near("output of expert %d" % i, got[0], want[0])
            if backward:
                must_be_near("gradient of expert %d" % i, got[1], want[1])


def client(pipe, index, clients, server, kind, d, count, rows, batches, backward):
    torch.set_num_threads(1)
    torch.manual_seed(index)
    draw = random.Random(index)
    experts = connect(server, count)
    batch = torch.randn(rows, d)
    pipe.send("up")
    while True:
        (what,) = pipe.recv()
        if what == "verify" and index == 0:
            verify(experts, kind, d, backward)
        elif what == "warm":  # a new expert's gradients and moments are memory not yet touched
            for expert in experts[index::clients]:
                call(expert, torch.randn(WARM_ROWS, d), backward)
        elif what == "run":
            for _ in range(batches):
                call(draw.choice(experts), batch, backward)
        pipe.send("done")


def start(kind, d, experts, clients, handlers, rows, batches, backward, batch_max=8192):
    uids = ["expert.%d" % i for i in range(experts)]
    server = serve_experts(uids, kind, d, handlers, batch_max)
    crew = Crew(
        client,
        [(i, clients, server, kind, d, experts, rows, batches, backward) for i in range(clients)],
    )
    crew.tell("verify")
    crew.tell("warm")

    def work():
        begin = time.perf_counter()
        crew.tell("run")
        return {"value": clients * batches * rows / (time.perf_counter() - begin)}

    return work

# SPDX-License-Identifier: Apache-2.0
"""Cases E: a trainer's steps through one RemoteMixtureOfExperts over two servers.

A step is the gate, the beam search, forward calls, the mean square loss against the input,
backward calls and SGD on the gate. hivemind sends one call per row and expert.
"""
import statistics
import time

import torch
from hivemind.dht import DHT
from hivemind.moe.client.moe import RemoteMixtureOfExperts
from hivemind.moe.server.dht_handler import get_experts

from common import LOOPBACK, SEED, experts_like, must_be_near, serve_experts

WARM_STEPS = 2


def wait_until_declared(dht, uids):
    until = time.monotonic() + 60
    while any(expert is None for expert in get_experts(dht, uids)):
        if time.monotonic() > until:
            raise RuntimeError("not all experts are in hivemind's DHT after 60 s")
        time.sleep(0.2)


def verify(layer, x, kind, d, side, servers):
    """The mixture against the same experts, gate and softmax in this process."""
    each = side * side // servers
    like = [e for s in range(servers) for e in experts_like(kind, d, each, SEED + s)]
    with torch.no_grad():
        rows, columns = layer.proj(x).split_with_sizes((side, side), dim=-1)
        scores = (rows[:, :, None] + columns[:, None, :]).flatten(1)
        best, index = scores.topk(layer.k_best, dim=-1)
        weight = torch.softmax(best, dim=-1)
        outputs = torch.stack([e(x) for e in like], dim=1)
        chosen = outputs[torch.arange(len(x))[:, None], index]
        want = (weight[..., None] * chosen).sum(dim=1)
        must_be_near("output of the layer", layer(x), want)


def start(kind, d, side, servers, handlers, rows, k, steps, batch_max=8192):
    torch.set_num_threads(1)
    uids = ["ffn.%d.%d" % (i, j) for i in range(side) for j in range(side)]
    each = len(uids) // servers
    addrs = []
    for s in range(servers):
        mine = uids[s * each : (s + 1) * each]
        addrs += serve_experts(mine, kind, d, handlers, batch_max, SEED + s, addrs)[1]
    dht = DHT(initial_peers=addrs, start=True, **LOOPBACK)
    wait_until_declared(dht, uids)
    torch.manual_seed(SEED)
    layer = RemoteMixtureOfExperts(
        in_features=d, grid_size=(side, side), dht=dht, uid_prefix="ffn.", k_best=k
    )
    optim = torch.optim.SGD(layer.parameters(), lr=0.01)
    x = torch.randn(rows, d)
    verify(layer, x[:16], kind, d, side, servers)

    def step():
        begin = time.perf_counter()
        optim.zero_grad()
        loss = ((layer(x) - x) ** 2).mean()
        loss.backward()
        optim.step()
        return time.perf_counter() - begin

    for _ in range(WARM_STEPS):
        step()
    return lambda: {"value": 1 / statistics.median(step() for _ in range(steps))}

#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""PyTorch's side of `hearth bench kernels`, driven through pipes so that both work in turns.

One line in, one line out, one thread:

    (start)                      ready VERSION      or  absent WHY, and the end
    case OP TYPE WIDTH ROWS      ok                 or  unknown
    go TYPE N                    NANOSECONDS of the thread's own time, the fastest of N runs of the
                                 type's last case
    quit

TYPE is fp32 or bf16. OP is
    linear_forward, linear_backward_data, linear_backward_weight   the two products of the block,
                                 each timed with its weights in the cache
    ffn_forward, ffn_forward_backward, ffn_train_step              the block of Learning@home and
                                 hivemind: LayerNorm(x + W2 gelu(W1 x)), hidden 4 x width
    adamw                        WIDTH elements of one vector, fp32
    picture:NUMBERS              a training step of a picture model (torch_picture.py) on ROWS samples
Where PyTorch has several ways, all are timed and the fastest counts: gradients dropped or zeroed in
place, a block of bf16 weights or autocast (a training step keeps fp32 weights, so autocast alone),
AdamW fused or not.
"""
import os
import sys
import time

os.environ["OPENBLAS_NUM_THREADS"] = "1"
os.environ["OMP_NUM_THREADS"] = "1"


def say(text):
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


try:
    import torch
    import torch_picture
except Exception as error:  # a broken installation counts as none
    say("absent " + str(error).splitlines()[0][:100])
    sys.exit(0)

torch.set_num_threads(1)
torch.manual_seed(1)
TYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


class Block(torch.nn.Module):
    def __init__(self, width):
        super().__init__()
        self.up = torch.nn.Linear(width, 4 * width)
        self.down = torch.nn.Linear(4 * width, width)
        self.norm = torch.nn.LayerNorm(width, eps=1e-12)

    def forward(self, x):
        return self.norm(x + self.down(torch.nn.functional.gelu(self.up(x), approximate="tanh")))


def product(op, dtype, inner, outer, rows):
    w = torch.rand(outer, inner).to(dtype)
    bias = torch.rand(outer).to(dtype)
    x = torch.rand(rows, inner).to(dtype)
    dy = torch.rand(rows, outer).to(dtype)
    if op == "linear_forward":
        return lambda: torch.nn.functional.linear(x, w, bias)
    if op == "linear_backward_data":
        return lambda: torch.mm(dy, w)
    return lambda: (torch.mm(dy.t(), x), dy.sum(0))


def adamw(parameters):
    parameters = list(parameters)
    makers = [torch.optim.AdamW(parameters, lr=1e-3)]
    try:
        makers.append(torch.optim.AdamW(parameters, lr=1e-3, fused=True))
    except (TypeError, RuntimeError):  # an older PyTorch has none for the CPU
        pass
    return makers


def ffn_ways(op, dtype, width, rows, pure):
    """The ways of one block: its weights are of the type, or fp32 under autocast."""
    block = Block(width)
    x = torch.rand(rows, width) * 2 - 1
    dy = torch.rand(rows, width) * 2 - 1
    cast = dtype != torch.float32 and not pure
    if pure:
        block, x, dy = block.to(dtype), x.to(dtype), dy.to(dtype)

    def forward():
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=cast):
            return block(x)

    if op == "ffn_forward":

        def infer():
            with torch.no_grad():
                forward()

        return [infer]
    x.requires_grad_(True)

    def both(drop, optim):
        x.grad = None
        block.zero_grad(set_to_none=drop)
        y = forward()
        y.backward(dy.to(y.dtype))
        if optim is not None:
            optim.step()

    optims = adamw(block.parameters()) if op == "ffn_train_step" else [None]
    return [lambda d=drop, o=optim: both(d, o) for drop in (True, False) for optim in optims]


def adamw_ways(elements):
    vector = torch.nn.Parameter(torch.rand(elements))
    vector.grad = torch.rand(elements)
    return [optim.step for optim in adamw([vector])[-1:]]  # two states would be too much memory


def make(op, dtype, width, rows):
    """The parts of a case, each a list of ways to do it."""
    if op == "adamw":
        return [adamw_ways(width)] if dtype == torch.float32 else []
    if op.startswith("picture:"):
        return [torch_picture.ways(op, dtype, width, rows, adamw)]
    if op in ("linear_forward", "linear_backward_data", "linear_backward_weight"):
        shapes = ((width, 4 * width), (4 * width, width))
        return [[product(op, dtype, inner, outer, rows)] for inner, outer in shapes]
    if op not in ("ffn_forward", "ffn_forward_backward", "ffn_train_step"):
        return []
    ways = ffn_ways(op, dtype, width, rows, False)
    if dtype != torch.float32 and op != "ffn_train_step":
        ways += ffn_ways(op, dtype, width, rows, True)
    return [ways]


def fastest(ways, runs):
    best = None
    for _ in range(runs):
        for way in ways:
            start = time.thread_time_ns()
            way()
            took = time.thread_time_ns() - start
            best = took if best is None else min(best, took)
    return best


def main():
    cases = {}
    say("ready " + torch.__version__)
    for line in sys.stdin:
        word = line.split()
        if word[:1] == ["quit"]:
            return
        if word[:1] == ["case"] and len(word) == 5 and word[2] in TYPES:
            cases.pop(word[2], None)
            parts = make(word[1], TYPES[word[2]], int(word[3]), int(word[4]))
            if parts:
                cases[word[2]] = parts
                for ways in parts:
                    fastest(ways, 1)  # warms up and makes lazy state
            say("ok" if parts else "unknown")
        elif word[:1] == ["go"] and len(word) == 3 and word[1] in cases:
            say(str(sum(fastest(ways, max(1, int(word[2]))) for ways in cases[word[1]])))
        else:
            say("unknown")


main()

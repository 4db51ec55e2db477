#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""PyTorch's side of `hearth bench kernels`, driven through pipes so that both work in turns.

One line in, one line out, one thread, fp32:

    (start)                 ready VERSION            or  absent WHY, and the end
    case OP WIDTH ROWS      ok                       or  unknown
    go N                    NANOSECONDS of the thread's own time, the fastest of N runs of the case
    quit

OP is ffn_forward, ffn_forward_backward, ffn_train_step (the block of Learning@home and hivemind:
LayerNorm(x + W2 gelu(W1 x)), hidden 4 x width) or adamw (WIDTH elements of one vector). Gradients
are dropped before each backward or zeroed in place, whichever is faster: both are timed.
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
except Exception as error:  # a broken installation counts as none
    say("absent " + str(error).splitlines()[0][:100])
    sys.exit(0)

torch.set_num_threads(1)
torch.manual_seed(1)


class Block(torch.nn.Module):
    def __init__(self, width):
        super().__init__()
        self.up = torch.nn.Linear(width, 4 * width)
        self.down = torch.nn.Linear(4 * width, width)
        self.norm = torch.nn.LayerNorm(width, eps=1e-12)

    def forward(self, x):
        return self.norm(x + self.down(torch.nn.functional.gelu(self.up(x), approximate="tanh")))


def ffn_cases(op, width, rows):
    block = Block(width)
    x = torch.rand(rows, width) * 2 - 1
    dy = torch.rand(rows, width) * 2 - 1
    if op == "ffn_forward":

        def forward():
            with torch.no_grad():
                block(x)

        return [forward]
    x.requires_grad_(True)
    step = op == "ffn_train_step"
    optim = torch.optim.AdamW(block.parameters(), lr=1e-3) if step else None

    def both(drop):
        x.grad = None
        block.zero_grad(set_to_none=drop)
        block(x).backward(dy)
        if step:
            optim.step()

    return [lambda: both(True), lambda: both(False)]


def adamw_cases(elements):
    vector = torch.nn.Parameter(torch.rand(elements))
    vector.grad = torch.rand(elements)
    plain = torch.optim.AdamW([vector], lr=1e-3)
    return [plain.step]


def make(op, width, rows):
    if op == "adamw":
        return adamw_cases(width)
    if op in ("ffn_forward", "ffn_forward_backward", "ffn_train_step"):
        return ffn_cases(op, width, rows)
    return []


def fastest(cases, runs):
    best = None
    for _ in range(runs):
        for case in cases:
            start = time.thread_time_ns()
            case()
            took = time.thread_time_ns() - start
            best = took if best is None else min(best, took)
    return best


def main():
    cases = []
    say("ready " + torch.__version__)
    for line in sys.stdin:
        word = line.split()
        if word[:1] == ["quit"]:
            return
        if word[:1] == ["case"] and len(word) == 4:
            cases = make(word[1], int(word[2]), int(word[3]))
            if cases:
                fastest(cases, 1)  # warms up and makes lazy state
            say("ok" if cases else "unknown")
        elif word[:1] == ["go"] and len(word) == 2 and cases:
            say(str(fastest(cases, max(1, int(word[1])))))
        else:
            say("unknown")


main()

# SPDX-License-Identifier: Apache-2.0
"""The FFN block of kernels/blocks.h in PyTorch on a card, eager and compiled, as CSV lines like
those of kernels_bench: forward + backward + AdamW, medians of event timings."""
import sys

import torch

dims = [int(x) for x in sys.argv[1].split(",")]
rows = [int(x) for x in sys.argv[2].split(",")]


class Block(torch.nn.Module):
    def __init__(self, d):
        super().__init__()
        self.up = torch.nn.Linear(d, 4 * d)
        self.down = torch.nn.Linear(4 * d, d)
        self.norm = torch.nn.LayerNorm(d)

    def forward(self, x):
        hidden = torch.nn.functional.gelu(self.up(x), approximate="tanh")
        return self.norm(x + self.down(hidden))


def median_us(step):
    for _ in range(5):
        step()
    times = []
    for _ in range(11):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        step()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end) * 1e3)
    return sorted(times)[len(times) // 2]


for d in dims:
    for r in rows:
        for mode in ("eager", "compiled"):
            block = Block(d).cuda()
            run = torch.compile(block) if mode == "compiled" else block
            optim = torch.optim.AdamW(block.parameters(), fused=True)
            x = torch.randn(r, d, device="cuda", requires_grad=True)
            dy = torch.randn(r, d, device="cuda")

            def step():
                optim.zero_grad(set_to_none=True)
                with torch.autocast("cuda", dtype=torch.bfloat16):
                    y = run(x)
                y.float().backward(dy)
                optim.step()

            us = median_us(step)
            gflops = 6 * 2 * r * d * 4 * d * 1e-3 / us
            print(f"torch-{mode},bf16,ffn_train_step,{d},{r},{us:.1f},{gflops:.1f},,,,", flush=True)

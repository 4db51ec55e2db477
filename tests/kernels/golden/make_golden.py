#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes golden.h and golden_block.h: inputs and PyTorch's answers for test_golden.c.

Inputs are float32 numbers; the answers are computed in float64 (torch's own layers and autograd)
and rounded once, so that the comparison shows our error and not torch's. Made with Debian 12's
python3-torch 1.13.1; any later version gives the same to the tolerance of the test.

    python3 make_golden.py golden.h > golden.h
    python3 make_golden.py golden_block.h > golden_block.h
"""
import math
import sys

import torch
import torch.nn.functional as F

torch.manual_seed(20)
torch.set_default_dtype(torch.float64)


def show(name, tensor):
    values = [float(v) for v in tensor.detach().to(torch.float32).flatten()]
    print(f"static const float {name}[{len(values)}] = {{")
    line = "   "
    for v in values:
        text = f" {v:.9g}"
        if "." not in text and "e" not in text:
            text += ".0"
        text += "f,"
        if len(line) + len(text) > 100:
            print(line)
            line = "   "
        line += text
    print(line)
    print("};")


def rand(*shape):
    return (torch.rand(*shape) * 2 - 1).to(torch.float32).to(torch.float64).requires_grad_(True)


def grads(name, out, dout, inputs):
    out.backward(dout)
    show(f"{name}_out", out)
    show(f"{name}_dout", dout)
    for key, t in inputs.items():
        show(f"{name}_{key}", t)
        show(f"{name}_d{key}", t.grad)


def gelu():
    x = torch.linspace(-8, 8, 65).to(torch.float32).to(torch.float64).requires_grad_(True)
    grads("gelu", F.gelu(x, approximate="tanh"), torch.ones(65), {"x": x})


def layernorm():
    x, g, b = rand(5, 19), rand(19), rand(19)
    grads("norm", F.layer_norm(x, (19,), g, b, 1e-5), rand(5, 19).detach(),
          {"x": x, "gamma": g, "beta": b})


def rotate(x):
    """Rotary positions, halves paired: x [B, H, T, dh]."""
    T, dh = x.shape[-2:]
    half = dh // 2
    rate = 10000.0 ** (-2 * torch.arange(half, dtype=torch.float64) / dh)
    angle = torch.arange(T, dtype=torch.float64)[:, None] * rate
    a, b = x[..., :half], x[..., half:]
    return torch.cat([a * angle.cos() - b * angle.sin(), a * angle.sin() + b * angle.cos()], -1)


def attend(qkv, B, T, H):
    d = qkv.shape[1] // 3
    q, k, v = (t.reshape(B, T, H, d // H).transpose(1, 2) for t in qkv.split(d, 1))
    q, k = rotate(q), rotate(k)
    mask = torch.full((T, T), -math.inf).triu(1)
    p = F.softmax(q @ k.transpose(2, 3) / math.sqrt(d // H) + mask, -1)
    return (p @ v).transpose(1, 2).reshape(B * T, d)


def attention():
    qkv = rand(2 * 7, 3 * 12)
    grads("attn", attend(qkv, 2, 7, 2), rand(14, 12).detach(), {"qkv": qkv})


def ffn():
    """hivemind's expert: LayerNorm(x + W2 gelu(W1 x)), eps 1e-12; our weights are [in, out]."""
    x, w1, b1, w2, b2 = rand(5, 6), rand(6, 24), rand(24), rand(24, 6), rand(6)
    g, b = rand(6), rand(6)
    y = x + F.linear(F.gelu(F.linear(x, w1.T, b1), approximate="tanh"), w2.T, b2)
    grads("ffn", F.layer_norm(y, (6,), g, b, 1e-12), rand(5, 6).detach(),
          {"x": x, "w1": w1, "b1": b1, "w2": w2, "b2": b2, "gamma": g, "beta": b})


def tblock():
    B, T, H, d = 2, 5, 2, 8
    t = {"x": rand(B * T, d), "g1": rand(d), "c1": rand(d), "wqkv": rand(d, 3 * d),
         "bqkv": rand(3 * d), "wo": rand(d, d), "bo": rand(d), "g2": rand(d), "c2": rand(d),
         "w1": rand(d, 4 * d), "b1": rand(4 * d), "w2": rand(4 * d, d), "b2": rand(d)}
    a = F.layer_norm(t["x"], (d,), t["g1"], t["c1"], 1e-5)
    u = t["x"] + attend(a @ t["wqkv"] + t["bqkv"], B, T, H) @ t["wo"] + t["bo"]
    h = F.gelu(F.layer_norm(u, (d,), t["g2"], t["c2"], 1e-5) @ t["w1"] + t["b1"],
               approximate="tanh")
    grads("block", u + h @ t["w2"] + t["b2"], rand(B * T, d).detach(), t)


def cross_entropy():
    logits = (rand(6, 11) * 4).detach().to(torch.float32).to(torch.float64).requires_grad_(True)
    labels = torch.tensor([0, 10, 3, -100, 7, 3])
    loss = F.cross_entropy(logits, labels)
    loss.backward()
    show("xent_x", logits)
    show("xent_dx", logits.grad)
    show("xent_loss", loss.reshape(1))


def optimiser(name, make):
    w = rand(21)
    show(f"{name}_w", w)
    opt = make([w])
    for step in range(3):
        w.grad = rand(21).detach() * 10 ** (step - 1)
        w.grad = w.grad.to(torch.float32).to(torch.float64)
        show(f"{name}_g{step}", w.grad)
        opt.step()
        show(f"{name}_w{step}", w)


print("/* SPDX-License-Identifier: Apache-2.0 */")
print(f"/* {sys.argv[1]}: written by make_golden.py; do not edit. */")
if sys.argv[1] == "golden_block.h":
    tblock()
else:
    gelu()
    layernorm()
    attention()
    ffn()
    cross_entropy()
    optimiser("adam", lambda p: torch.optim.Adam(p, lr=0.01, weight_decay=0.1))
    optimiser("adamw",
              lambda p: torch.optim.AdamW(p, lr=0.01, weight_decay=0.1, betas=(0.8, 0.95)))
    optimiser("sgd", lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9, weight_decay=0.01))

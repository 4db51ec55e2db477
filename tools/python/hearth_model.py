#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Reads a model that `hearth export` wrote and computes its logits, with numpy alone.

    python3 hearth_model.py MODEL                  says what the model is
    python3 hearth_model.py MODEL IN.npy OUT.npy   logits of inputs

    import hearth_model
    model = hearth_model.load("MODEL")
    logits = model.logits(x)

Inputs: a classifier takes pixels [n, features] of 0 to 255 and gives [n, classes]; an lm takes
tokens [n, context] and gives [n, context, vocabulary]. Equations: trainer/model.h and
kernels/blocks.h of hearth's sources. All is fp32, row-major, weights are [inputs, outputs].
"""
import json
import os
import struct
import sys

import numpy as np


def read_safetensors(path):
    """The tensors of a file by name, as fp32."""
    with open(path, "rb") as f:
        (size,) = struct.unpack("<Q", f.read(8))
        head = json.loads(f.read(size))
        data = f.read()
    head.pop("__metadata__", None)
    tensors = {}
    for name, t in head.items():
        part = data[slice(*t["data_offsets"])]
        if t["dtype"] == "BF16":
            x = (np.frombuffer(part, "<u2").astype("<u4") << 16).view("<f4")
        elif t["dtype"] == "F32":
            x = np.frombuffer(part, "<f4")
        else:
            raise ValueError(f"{path}: '{name}' is {t['dtype']}, expected F32 or BF16")
        tensors[name] = x.reshape(t["shape"])
    return tensors


# ---- operations -------------------------------------------------------------------------------


def layer_norm(x, w, name, eps=1e-5):
    x = x - x.mean(-1, keepdims=True)
    x = x / np.sqrt((x * x).mean(-1, keepdims=True) + np.float32(eps))
    return x * w[name + ".weight"][0] + w[name + ".bias"][0]


def linear(x, w, name):
    y = x @ w[name + ".weight"]
    return y + w[name + ".bias"][0] if name + ".bias" in w else y


def gelu(x):
    return x / (1 + np.exp(-2 * 0.7978845608 * (x + 0.044715 * x * x * x)))


def softmax(x):
    x = np.exp(x - x.max(-1, keepdims=True))
    return x / x.sum(-1, keepdims=True)


def rope_line(positions, head_dim):
    """Angles [positions, head_dim / 2] of rows in a line."""
    rate = 10000.0 ** (-np.arange(head_dim // 2) * 2.0 / head_dim)
    return np.arange(positions)[:, None] * rate


def rotate(x, angles):
    """x [..., rows, head_dim]: element i of the first half with element i of the second."""
    half = x.shape[-1] // 2
    cos, sin = np.cos(angles).astype("f4"), np.sin(angles).astype("f4")
    a, b = x[..., :half], x[..., half:]
    return np.concatenate([a * cos - b * sin, a * sin + b * cos], -1)


def attention(qkv, heads, angles, sees):
    """qkv [n, rows, 3 d] -> [n, rows, d]; sees [rows, rows]: query row, key row."""
    n, rows, d3 = qkv.shape
    q, k, v = qkv.reshape(n, rows, 3, heads, d3 // 3 // heads).transpose(2, 0, 3, 1, 4)
    if angles is not None:
        q, k = rotate(q, angles), rotate(k, angles)
    scores = q @ k.swapaxes(-1, -2) / np.float32(np.sqrt(q.shape[-1]))
    y = softmax(np.where(sees, scores, np.float32(-np.inf))) @ v
    return y.transpose(0, 2, 1, 3).reshape(n, rows, d3 // 3)


# ---- the model --------------------------------------------------------------------------------


class Model:
    def __init__(self, path):
        with open(os.path.join(path, "config.json"), encoding="utf-8") as f:
            self.config = json.load(f)
        if self.config.get("format") != "hearth-model-1":
            raise ValueError(f"{path}/config.json: not a model that hearth export wrote")
        self.options = self.config["model"]
        self.w, self.experts = {}, {}
        for name, x in read_safetensors(os.path.join(path, "model.safetensors")).items():
            if name.startswith("experts/"):
                _, uid, name = name.split("/")
                self.experts.setdefault(uid, {})[name] = x
            else:
                self.w[name] = x

    def logits(self, x):
        """See the top of the file."""
        kind = self.options["kind"]
        if kind == "classifier":
            return self.classifier(np.asarray(x, "f4"))
        if kind == "lm":
            return self.lm(np.asarray(x, "i8"))
        raise ValueError(f"models of kind {kind} are not known here")

    def classifier(self, pixels):
        into = self.config["input"]
        x = (pixels / np.float32(255) - np.float32(into["mean"])) / np.float32(into["std"])
        x = linear(x, self.w, "input")
        for layer in range(self.options["layers"]):
            x = self.mixture(x[:, None], layer)[:, 0]
        return linear(layer_norm(x, self.w, "norm"), self.w, "output")

    def lm(self, tokens):
        rows, heads = tokens.shape[1], self.options["heads"]
        x = self.w["embedding.weight"][tokens]
        angles, sees = rope_line(rows, x.shape[-1] // heads), np.tri(rows, dtype=bool)
        for layer in range(self.options["layers"]):
            name = f"layers.{layer}.attn"
            qkv = linear(layer_norm(x, self.w, name + "_norm"), self.w, name + ".qkv")
            x = x + linear(attention(qkv, heads, angles, sees), self.w, name + ".out")
            x = self.mixture(x, layer)
        return linear(layer_norm(x, self.w, "norm"), self.w, "output")

    # ---- experts ----

    def mixture(self, x, layer):
        """x [n, rows, d] plus the weighted mean of its best experts, of those that are there."""
        h = layer_norm(x, self.w, f"layers.{layer}.norm")
        if self.options["expert"] == "transformer":  # a unit is a sequence, else a row
            units, pooled = h, h.mean(1)
        else:
            units = h.reshape(-1, 1, h.shape[-1])
            pooled = units[:, 0]
        tables = linear(pooled, self.w, f"layers.{layer}.gate")
        uids, coords = self.live(layer)
        if not uids:
            return x
        scores, offset = 0, 0
        for axis, size in enumerate(self.options["grid"]):
            scores = scores + tables[:, offset + coords[:, axis]]
            offset += size
        # Ties go to the lower place in the grid. hearth's beam search gives the same experts unless
        # a grid of three axes has more than 64 live prefixes.
        best = np.argsort(-scores, 1, kind="stable")[:, : self.options["top_k"]]
        weight = softmax(np.take_along_axis(scores, best, 1))
        y = np.zeros_like(units)
        for i, uid in enumerate(uids):
            unit, slot = np.nonzero(best == i)
            if len(unit) > 0:
                y[unit] += weight[unit, slot][:, None, None] * self.expert(uid, units[unit])
        return x + y.reshape(x.shape)

    def live(self, layer):
        """Names and coordinates of a layer's experts, in the order of the grid."""
        grid = self.options["grid"]
        names = [
            (f"ffn{layer}." + ".".join(map(str, c)), c)
            for c in np.ndindex(*grid)
            if self.options["expert"] == "nop"
            or f"ffn{layer}." + ".".join(map(str, c)) in self.experts
        ]
        return [n for n, _ in names], np.array([c for _, c in names]).reshape(-1, len(grid))

    def expert(self, uid, x):
        kind, w = self.options["expert"], self.experts.get(uid)
        if kind == "nop":
            return x
        if kind == "ffn":
            y = linear(gelu(linear(x, w, "layers.0")), w, "layers.2")
            return layer_norm(x + y, w, "norm", 1e-12)
        rows, heads = x.shape[1], self.options["heads"]
        qkv = linear(layer_norm(x, w, "norm1"), w, "attn.qkv")
        angles = rope_line(rows, x.shape[-1] // heads)
        y = attention(qkv, heads, angles, np.tri(rows, dtype=bool))
        u = x + linear(y, w, "attn.out")
        return u + linear(gelu(linear(layer_norm(u, w, "norm2"), w, "ffn.0")), w, "ffn.2")


def load(path):
    return Model(path)


def main(args):
    if len(args) not in (1, 3):
        print(__doc__, file=sys.stderr)
        return 2
    model = load(args[0])
    if len(args) == 3:
        np.save(args[2], model.logits(np.load(args[1])).astype("f4"))
        return 0
    c = model.config
    print(
        f"{c['run']}: {c['model']['kind']} at step {c['step']}, {c['parameters']} parameters, "
        f"{len(model.experts)} experts"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

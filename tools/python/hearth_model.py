#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Reads a model that `hearth export` wrote and computes its logits, with numpy alone.

    python3 hearth_model.py MODEL                     says what the model is
    python3 hearth_model.py MODEL IN.npy OUT.npy...   logits of inputs

    import hearth_model
    model = hearth_model.load("MODEL")
    (logits,) = model.logits(x)

    kind         inputs                              logits
    classifier   pixels [n, features], 0 to 255      [n, classes]
    lm           ids [n, context]                    [n, context, vocabulary]
                 (masked: id `vocab` is the mask)
    picture      ids [n, text], then codes           [n, text - 1, vocabulary] and
                 [n, height * width - 1]             [n, height * width, codes]

Equations: trainer/model.h, kernels/blocks.h and kernels/mask.h of hearth's sources. All is fp32,
row-major; weights are [inputs, outputs].
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


def picture_places(o):
    """Text position, row and column of each row of a picture's sequence; row -1: text."""
    i = np.arange(o["text"] + o["height"] * o["width"] - 1)
    code = i - o["text"]
    is_text = code < 0
    row, column = code // o["width"], code % o["width"]
    return np.where(is_text, i, o["text"]), np.where(is_text, -1, row), np.where(is_text, -1, column)


def rope_picture(o, head_dim):
    """The same on three axes: text, rows, columns."""
    half = head_dim // 2
    third = half // 3
    t, row, column = picture_places(o)
    j = np.arange(third)
    text = t[:, None] * 10000.0 ** (-j / third)
    sides = [(place + 1)[:, None] * 100.0 ** (-j / third) for place in (row, column)]
    rest = np.zeros((len(t), half - 3 * third))
    return np.concatenate([text, *sides, rest], 1)


def sees_picture(o, mask):
    """[rows, rows]: whether a query row sees a key row, before padding."""
    _, row, column = picture_places(o)
    i = np.arange(len(row))
    before = i[None, :] <= i[:, None]
    down, right = row[:, None] - row[None, :], np.abs(column[:, None] - column[None, :])
    reach = o["window"] // 2
    near = (down <= reach) & (right <= reach)
    allowed = {"full": before, "row": down == 0, "column": right == 0, "conv": near}[mask]
    return before & (allowed | (row[None, :] < 0))


def rotate(x, angles):
    """x [..., rows, head_dim]: element i of the first half with element i of the second."""
    half = x.shape[-1] // 2
    cos, sin = np.cos(angles).astype("f4"), np.sin(angles).astype("f4")
    a, b = x[..., :half], x[..., half:]
    return np.concatenate([a * cos - b * sin, a * sin + b * cos], -1)


def attention(qkv, heads, angles, sees):
    """qkv [n, rows, 3 d] -> [n, rows, d]; sees [.., rows, rows]: query row, key row."""
    n, rows, d3 = qkv.shape
    q, k, v = qkv.reshape(n, rows, 3, heads, d3 // 3 // heads).transpose(2, 0, 3, 1, 4)
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
        """A list of one array, of a picture two: see the top of the file."""
        kind = self.options["kind"]
        if kind == "picture":
            return self.picture(np.asarray(x, "i8"))
        return [self.lm(np.asarray(x, "i8")) if kind == "lm" else self.classifier(x)]

    def classifier(self, pixels):
        into, pixels = self.config["input"], np.asarray(pixels, "f4")
        x = (pixels / np.float32(255) - np.float32(into["mean"])) / np.float32(into["std"])
        x = linear(x, self.w, "input")
        for layer in range(self.options["layers"]):
            x = self.mixture(x[:, None], layer)[:, 0]
        return linear(layer_norm(x, self.w, "norm"), self.w, "output")

    def lm(self, ids):
        o, rows = self.options, ids.shape[1]
        masked = o["objective"] == "masked"
        sees = np.ones((rows, rows), bool) if masked else np.tri(rows, dtype=bool)
        x = self.embed("embedding", ids)
        angles = rope_line(rows, x.shape[-1] // o["heads"])
        for layer in range(o["layers"]):
            x = self.layer(x, layer, angles, sees)
        x = layer_norm(x, self.w, "norm")
        return self.tied(x, "embedding", "output") if o["tied"] else linear(x, self.w, "output")

    def picture(self, ids):
        o = self.options
        text = ids[:, : o["text"]]
        # A text ends with its last id that is not padding (0); at least one id stays.
        n = o["text"] - np.argmax((text != 0)[:, ::-1], 1)
        n = np.where((text != 0).any(1), n, 1)
        padding = np.arange(ids.shape[1])[None, :] >= n[:, None]
        padding[:, o["text"] :] = False
        codes = self.embed("codes", ids[:, o["text"] :])
        x = np.concatenate([self.embed("words", text), codes], 1)
        angles = rope_picture(o, x.shape[-1] // o["heads"])
        for layer in range(o["layers"]):
            last = layer + 1 == o["layers"]
            mask = o["last_mask"] if last else o["masks"][layer % len(o["masks"])]
            sees = sees_picture(o, mask) & ~padding[:, None, None, :]
            x = self.layer(x, layer, angles, sees)
        x = layer_norm(x, self.w, "norm")
        head = o["text"] - 1
        return [self.tied(x[:, :head], "words", "words"), self.tied(x[:, head:], "codes", "codes")]

    def embed(self, table, ids):
        x = self.w[table + ".weight"][ids]
        return x @ self.w["embedding.factor"] if self.options["embed_dim"] > 0 else x

    def tied(self, x, table, head):
        if self.options["embed_dim"] > 0:
            x = x @ self.w["embedding.factor"].T
        return x @ self.w[table + ".weight"].T + self.w[head + ".bias"][0]

    def set_of(self, layer):
        """The weight set that a layer uses."""
        o = self.options
        if o["share"] == 0:
            return layer
        own = layer + 1 == o["layers"] and not o["share_last"]
        return o["share"] if own else layer % o["share"]

    def layer(self, x, layer, angles, sees):
        own = f"layers.{layer}."
        shared = own if self.options["share"] == 0 else f"sets.{self.set_of(layer)}."
        qkv = linear(layer_norm(x, self.w, own + "attn_norm"), self.w, shared + "attn.qkv")
        y = linear(attention(qkv, self.options["heads"], angles, sees), self.w, shared + "attn.out")
        x = x + y * self.w.get(own + "attn_scale", np.float32(1))
        if self.options["expert"] != "none":
            return self.mixture(x, layer)
        h = linear(layer_norm(x, self.w, own + "norm"), self.w, shared + "ffn.0")
        a, b = np.split(h, 2, -1)
        y = linear(gelu(a) * b, self.w, shared + "ffn.2")
        return x + y * self.w.get(own + "ffn_scale", np.float32(1))

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
        uids, coords = self.live(self.set_of(layer))
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

    def live(self, number):
        """Names and coordinates of a set's experts, in the order of its grid."""
        grid = self.options["grid"]
        names = [(f"ffn{number}." + ".".join(map(str, c)), c) for c in np.ndindex(*grid)]
        if self.options["expert"] != "nop":
            names = [(name, c) for name, c in names if name in self.experts]
        return [name for name, _ in names], np.array([c for _, c in names]).reshape(-1, len(grid))

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


load = Model


def main(args):
    if len(args) == 0 or len(args) == 2:
        print(__doc__, file=sys.stderr)
        return 2
    model = load(args[0])
    if len(args) > 2:
        for path, logits in zip(args[2:], model.logits(np.load(args[1]))):
            np.save(path, np.ascontiguousarray(logits, "<f4"))
        return 0
    c, count = model.config, len(model.experts)
    what = f"{c['model']['kind']} at step {c['step']}"
    print(f"{c['run']}: {what}, {c['parameters']} parameters, {count} experts")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

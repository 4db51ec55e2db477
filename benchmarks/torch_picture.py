# SPDX-License-Identifier: Apache-2.0
"""A picture model of trainer/model.h in PyTorch, for torch_ffn.py: one training step.

Rows of text and of codes have tables and heads of their own, as ours; attention is PyTorch's scaled
dot product with a boolean mask per kind, made ahead.
"""
import torch
import torch.nn.functional as F

KINDS = ("row", "column", "row", "row")  # repeated; the last layer is "conv"
IMAGE_WEIGHT = 7


def sees(kind, text, width, window, seq):
    """[query, key]"""
    q, k = torch.arange(seq)[:, None], torch.arange(seq)[None, :]
    down = (q - text) // width - (k - text) // width
    right = (q - text) % width - (k - text) % width
    near = {
        "row": down == 0,
        "column": right == 0,
        "conv": (down.abs() <= window // 2) & (right.abs() <= window // 2),
    }[kind]
    return (k <= q) & ((k < text) | near)


def angles(head, text, width, seq):
    half, third = head // 2, head // 2 // 3
    p = torch.arange(seq)
    picture = p >= text
    t = torch.where(picture, torch.full_like(p, text), p).float()
    y = torch.where(picture, (p - text) // width + 1, 0).float()
    x = torch.where(picture, (p - text) % width + 1, 0).float()
    j = torch.arange(third).float() / third
    parts = [t[:, None] * 10000.0**-j, y[:, None] * 100.0**-j, x[:, None] * 100.0**-j]
    return torch.cat(parts + [torch.zeros(seq, half - 3 * third)], 1)


class Weights(torch.nn.Module):
    """What layers share."""

    def __init__(self, dim):
        super().__init__()
        self.qkv = torch.nn.Linear(dim, 3 * dim, bias=False)
        self.out = torch.nn.Linear(dim, dim)
        self.up = torch.nn.Linear(dim, 8 * dim)
        self.down = torch.nn.Linear(4 * dim, dim)


class Own(torch.nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.norm1, self.norm2 = torch.nn.LayerNorm(dim), torch.nn.LayerNorm(dim)
        self.scale1 = torch.nn.Parameter(torch.full((dim,), 0.1))
        self.scale2 = torch.nn.Parameter(torch.full((dim,), 0.1))


class Picture(torch.nn.Module):
    def __init__(self, dim, shape):
        super().__init__()
        layers, self.heads, share, self.text, height, width, words, codes, window = shape
        seq = self.text + height * width - 1
        self.words, self.codes = torch.nn.Embedding(words, dim), torch.nn.Embedding(codes, dim)
        torch.nn.init.normal_(self.words.weight, std=0.02)
        torch.nn.init.normal_(self.codes.weight, std=0.02)
        sets = [Weights(dim) for _ in range(share + 1)]
        self.sets = torch.nn.ModuleList(sets)
        self.of = [share if i + 1 == layers else i % share for i in range(layers)]
        self.own = torch.nn.ModuleList([Own(dim) for _ in range(layers)])
        self.norm = torch.nn.LayerNorm(dim)
        self.bias_words = torch.nn.Parameter(torch.zeros(words))
        self.bias_codes = torch.nn.Parameter(torch.zeros(codes))
        kinds = ["conv" if i + 1 == layers else KINDS[i % 4] for i in range(layers)]
        self.masks = {k: sees(k, self.text, width, window, seq) for k in set(kinds)}
        self.kinds = kinds
        a = angles(dim // self.heads, self.text, width, seq)
        self.cos, self.sin = a.cos(), a.sin()

    def turn(self, x):
        half = x.shape[-1] // 2
        a, b = x[..., :half], x[..., half:]
        return torch.cat((a * self.cos - b * self.sin, a * self.sin + b * self.cos), -1)

    def attend(self, w, x, mask):
        b, s, d = x.shape
        q, k, v = w.qkv(x).view(b, s, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
        q, k = self.turn(q).to(v.dtype), self.turn(k).to(v.dtype)
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        return w.out(y.transpose(1, 2).reshape(b, s, d))

    def forward(self, tokens, masks):
        x = torch.cat((self.words(tokens[:, : self.text]), self.codes(tokens[:, self.text :])), 1)
        for kind, i, own in zip(self.kinds, self.of, self.own):
            w = self.sets[i]
            x = x + own.scale1 * self.attend(w, own.norm1(x), masks[kind])
            a, b = w.up(own.norm2(x)).chunk(2, -1)
            x = x + own.scale2 * w.down(F.gelu(a, approximate="tanh") * b)
        h, t = self.norm(x), self.text - 1
        return (
            F.linear(h[:, :t], self.words.weight, self.bias_words),
            F.linear(h[:, t:], self.codes.weight, self.bias_codes),
        )


def batch(model, samples, shape):
    """Tokens, labels (-1: none) and masks that leave out the padding of the texts."""
    text, height, width, words, codes = shape[3:8]
    seq = text + height * width - 1
    tokens = torch.cat(
        (torch.randint(1, words, (samples, text)), torch.randint(codes, (samples, seq - text))), 1
    )
    tokens[:, text // 2 + 1 : text] = 0
    labels = torch.randint(1, words, (samples, text - 1)), torch.randint(codes, (samples, seq + 1 - text))
    labels[0][:, text // 2 :] = -1
    key = torch.ones(samples, 1, 1, seq, dtype=torch.bool)
    key[..., text // 2 + 1 : text] = False
    return tokens, labels, {k: m & key for k, m in model.masks.items()}


def ways(name, dtype, dim, samples, adamw):
    shape = [int(n) for n in name.split(":")[1].split(",")]
    model = Picture(dim, shape)
    tokens, labels, masks = batch(model, samples, shape)

    def step(optim):
        model.zero_grad(set_to_none=True)
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=dtype != torch.float32):
            logits = model(tokens, masks)
            text, codes = (
                F.cross_entropy(y.flatten(0, 1).float(), t.flatten(), ignore_index=-1)
                for y, t in zip(logits, labels)
            )
        ((text + IMAGE_WEIGHT * codes) / (1 + IMAGE_WEIGHT)).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optim.step()

    return [lambda o=o: step(o) for o in adamw(model.parameters())]

# SPDX-License-Identifier: Apache-2.0
"""The models of examples/models in Python, with the same names, written from their papers.
Attention is a softmax of products; rotations are products of complex numbers. PyTorch cannot shard
one weight by segments, so a weight with segments is several layers here."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.distributed.tensor import DTensor, Replicate
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel

# Sizes, as in tensor_parallel.cpp.
LAYERS, HEADS, KV_HEADS, WIDTH, VOCABULARY, TOKENS, IMAGE, PATCH, CLASSES = (
    2, 4, 2, 32, 51, 12, 8, 4, 10)


class Fused(nn.ModuleList):
    def __init__(self, into, out, number, bias=True):
        super().__init__(nn.Linear(into, out, bias=bias) for _ in range(number))

    def forward(self, x):
        return [part(x) for part in self]


def fused_of(model):
    return {name: module for name, module in model.named_modules() if isinstance(module, Fused)}


def load(model, weights):
    weights = dict(weights)
    for name, module in fused_of(model).items():
        for kind in ("weight", "bias"):
            if f"{name}.{kind}" in weights:
                parts = weights.pop(f"{name}.{kind}").chunk(len(module))
                weights |= {f"{name}.{i}.{kind}": part for i, part in enumerate(parts)}
    model.load_state_dict(weights)


def whole_weights(model):
    """Returns whole tensors under our names."""
    weights = {}
    for name, tensor in model.named_parameters():
        tensor = tensor.detach()
        weights[name] = tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
    for name, module in fused_of(model).items():
        for kind in ("weight", "bias"):
            if f"{name}.0.{kind}" in weights:
                parts = [weights.pop(f"{name}.{i}.{kind}") for i in range(len(module))]
                weights[f"{name}.{kind}"] = torch.cat(parts)
    return weights


def attention(q, k, v, causal):
    """Attention of [N, T, features of all heads]; keys and values may have fewer heads."""
    q, k, v = (x.unflatten(-1, (-1, WIDTH // HEADS)).transpose(1, 2) for x in (q, k, v))
    k, v = (x.repeat_interleave(q.size(1) // x.size(1), dim=1) for x in (k, v))
    scores = q @ k.transpose(-1, -2) / q.size(-1)**0.5
    if causal:
        mask = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
        scores = scores.masked_fill(mask, float("-inf"))
    return (scores.softmax(-1) @ v).transpose(1, 2).flatten(2)


def logits_of(x, embedding):
    """Returns logits of an output layer whose weight is the embedding's."""
    if isinstance(embedding.weight, DTensor):
        x = DTensor.from_local(x, embedding.weight.device_mesh, [Replicate()])
    return F.linear(x, embedding.weight)


class GptBlock(nn.Module):
    def __init__(self):
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.attn = nn.ModuleDict({"c_attn": Fused(WIDTH, WIDTH, 3),
                                   "c_proj": nn.Linear(WIDTH, WIDTH)})
        self.mlp = nn.ModuleDict({"c_fc": nn.Linear(WIDTH, 4 * WIDTH),
                                  "c_proj": nn.Linear(4 * WIDTH, WIDTH)})

    def forward(self, x):
        y = attention(*self.attn["c_attn"](self.ln_1(x)), causal=True)
        x = x + self.attn["c_proj"](y)
        y = F.gelu(self.mlp["c_fc"](self.ln_2(x)), approximate="tanh")
        return x + self.mlp["c_proj"](y)


class Gpt(nn.Module):
    def __init__(self):
        super().__init__()
        self.transformer = nn.ModuleDict({
            "wte": nn.Embedding(VOCABULARY, WIDTH), "wpe": nn.Embedding(TOKENS, WIDTH),
            "h": nn.ModuleList(GptBlock() for _ in range(LAYERS)), "ln_f": nn.LayerNorm(WIDTH)})

    def forward(self, tokens):
        net = self.transformer
        x = net["wte"](tokens) + net["wpe"](torch.arange(tokens.size(1)))
        for block in net["h"]:
            x = block(x)
        return logits_of(net["ln_f"](x), net["wte"])

    plan = {"transformer.wte": RowwiseParallel(input_layouts=Replicate()),
            "transformer.h.*.attn.c_attn.*": ColwiseParallel(),
            "transformer.h.*.attn.c_proj": RowwiseParallel(),
            "transformer.h.*.mlp.c_fc": ColwiseParallel(),
            "transformer.h.*.mlp.c_proj": RowwiseParallel()}


class RMSNorm(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(WIDTH))

    def forward(self, x):
        return x / (x.square().mean(-1, keepdim=True) + 1e-5).sqrt() * self.weight


def rotated(x):
    """Numbers i and i + half of a head are one complex number."""
    halves = x.unflatten(-1, (-1, 2, WIDTH // HEADS // 2))  # [N, T, heads, 2, half]
    numbers = torch.complex(halves[..., 0, :], halves[..., 1, :])
    speeds = 10000.0**-torch.linspace(0, 1, numbers.size(-1) + 1, dtype=torch.double)[:-1]
    angles = torch.arange(x.size(1), dtype=torch.double)[:, None, None] * speeds
    numbers = numbers * torch.polar(torch.ones_like(angles), angles)
    return torch.cat([numbers.real, numbers.imag], -1).flatten(2)


class LlamaBlock(nn.Module):
    def __init__(self):
        super().__init__()
        of_kv = WIDTH // HEADS * KV_HEADS
        self.input_layernorm, self.post_attention_layernorm = RMSNorm(), RMSNorm()
        self.self_attn = nn.ModuleDict({
            f"{name}_proj": nn.Linear(WIDTH, out, bias=False)
            for name, out in (("q", WIDTH), ("k", of_kv), ("v", of_kv), ("o", WIDTH))})
        self.mlp = nn.ModuleDict({"gate_proj": nn.Linear(WIDTH, 3 * WIDTH, bias=False),
                                  "up_proj": nn.Linear(WIDTH, 3 * WIDTH, bias=False),
                                  "down_proj": nn.Linear(3 * WIDTH, WIDTH, bias=False)})

    def forward(self, x):
        y = self.input_layernorm(x)
        q, k, v = (self.self_attn[f"{name}_proj"](y) for name in "qkv")
        x = x + self.self_attn["o_proj"](attention(rotated(q), rotated(k), v, causal=True))
        y = self.post_attention_layernorm(x)
        gate, up = self.mlp["gate_proj"](y), self.mlp["up_proj"](y)
        return x + self.mlp["down_proj"](gate * gate.sigmoid() * up)


class Llama(nn.Module):
    def __init__(self):
        super().__init__()
        self.model = nn.ModuleDict({"embed_tokens": nn.Embedding(VOCABULARY, WIDTH),
                                    "layers": nn.ModuleList(LlamaBlock() for _ in range(LAYERS)),
                                    "norm": RMSNorm()})
        self.lm_head = nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, tokens):
        x = self.model["embed_tokens"](tokens)
        for block in self.model["layers"]:
            x = block(x)
        return self.lm_head(self.model["norm"](x))

    plan = {"model.embed_tokens": RowwiseParallel(input_layouts=Replicate()),
            "model.layers.*.self_attn.[qkv]_proj": ColwiseParallel(),
            "model.layers.*.self_attn.o_proj": RowwiseParallel(),
            "model.layers.*.mlp.gate_proj": ColwiseParallel(),
            "model.layers.*.mlp.up_proj": ColwiseParallel(),
            "model.layers.*.mlp.down_proj": RowwiseParallel(),
            "lm_head": ColwiseParallel(use_local_output=False)}


class VitBlock(nn.Module):
    def __init__(self):
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(WIDTH, eps=1e-6), nn.LayerNorm(WIDTH, eps=1e-6)
        self.self_attention = nn.ModuleDict({"in_proj": Fused(WIDTH, WIDTH, 3),
                                             "out_proj": nn.Linear(WIDTH, WIDTH)})
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 2 * WIDTH), nn.GELU(), nn.Dropout(0),
                                 nn.Linear(2 * WIDTH, WIDTH))

    def forward(self, x):
        y = attention(*self.self_attention["in_proj"](self.ln_1(x)), causal=False)
        x = x + self.self_attention["out_proj"](y)
        return x + self.mlp(self.ln_2(x))


class Vit(nn.Module):
    def __init__(self):
        super().__init__()
        self.class_token = nn.Parameter(torch.zeros(1, 1, WIDTH))
        self.conv_proj = nn.Conv2d(3, WIDTH, PATCH, stride=PATCH)
        self.encoder = nn.Module()
        self.encoder.pos_embedding = nn.Parameter(
            torch.zeros(1, (IMAGE // PATCH)**2 + 1, WIDTH))
        self.encoder.layers = nn.ModuleDict({f"encoder_layer_{i}": VitBlock()
                                             for i in range(LAYERS)})
        self.encoder.ln = nn.LayerNorm(WIDTH, eps=1e-6)
        self.heads = nn.ModuleDict({"head": nn.Linear(WIDTH, CLASSES)})

    def forward(self, images):
        # A patch is a row of pixels; the convolution is a product.
        pixels = F.unfold(images, PATCH, stride=PATCH).transpose(1, 2)
        patches = F.linear(pixels, self.conv_proj.weight.flatten(1), self.conv_proj.bias)
        x = torch.cat([self.class_token.expand(len(images), 1, WIDTH), patches], 1)
        x = x + self.encoder.pos_embedding
        for block in self.encoder.layers.values():
            x = block(x)
        return self.heads["head"](self.encoder.ln(x)[:, 0])

    plan = {"encoder.layers.*.self_attention.in_proj.*": ColwiseParallel(),
            "encoder.layers.*.self_attention.out_proj": RowwiseParallel(),
            "encoder.layers.*.mlp.0": ColwiseParallel(),
            "encoder.layers.*.mlp.3": RowwiseParallel()}


MODELS = {"gpt": Gpt, "llama": Llama, "vit": Vit}

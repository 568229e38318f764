# SPDX-License-Identifier: Apache-2.0
"""One rank of bench/inference in Python: decodes tokens with the GPT of examples/models/gpt.h,
whose layers and vocabulary all ranks share. Prints the median time of a token and the share of
all_reduce, as JSON. Weights are random, so that the cost alone is that of a real model."""

import argparse
import json
import os
import pathlib
import statistics
import time

import lockstep
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate
from torch.distributed.tensor.parallel import (ColwiseParallel, RowwiseParallel,
                                               parallelize_module)

PROMPT, WARMUP = 16, 16


class Communication:
    """Sums tensors, and measures the time of that."""

    def __init__(self, all_reduce):
        self.all_reduce, self.seconds = all_reduce, 0

    def __call__(self, tensor):
        begin = time.perf_counter()
        self.all_reduce(tensor)
        self.seconds += time.perf_counter() - begin
        return tensor


class RowwiseLinear(nn.Linear):
    """Adds the bias once, after the sum over the ranks."""

    def __init__(self, inputs, outputs, all_reduce):
        super().__init__(inputs, outputs)
        self.all_reduce = all_reduce

    def forward(self, x):
        return self.all_reduce(F.linear(x, self.weight)).add_(self.bias)


class Vocabulary(nn.Embedding):
    """The rows from `first` on."""

    def __init__(self, rows, width, first, all_reduce):
        super().__init__(rows, width)
        self.first, self.all_reduce = first, all_reduce

    def forward(self, tokens):
        here = tokens - self.first
        elsewhere = (here < 0) | (here >= self.num_embeddings)
        found = F.embedding(here.masked_fill(elsewhere, 0), self.weight)
        return self.all_reduce(found.masked_fill_(elsewhere.unsqueeze(-1), 0))


class Block(nn.Module):
    """The rows of `qkv` are q, k and v of the first head, then those of the second."""

    def __init__(self, options, parts, rowwise):
        super().__init__()
        width = options.width
        self.head_width = width // options.heads
        self.ln_1, self.ln_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width // parts)
        self.o = rowwise(width // parts, width)
        self.up = nn.Linear(width, 4 * width // parts)
        self.down = rowwise(4 * width // parts, width)
        self.keys = self.values = None

    def attention(self, x, length, most):
        q, k, v = (y.transpose(1, 2) for y in
                   self.qkv(x).unflatten(-1, (-1, 3, self.head_width)).unbind(-2))
        end = length + x.size(1)
        if self.keys is None:
            self.keys, self.values = torch.empty(2, 1, k.size(1), most, self.head_width)
        self.keys[:, :, length:end] = k
        self.values[:, :, length:end] = v
        y = F.scaled_dot_product_attention(q, self.keys[:, :, :end], self.values[:, :, :end],
                                           is_causal=length == 0)
        return self.o(y.transpose(1, 2).flatten(2))

    def forward(self, x, length, most):
        x = x + self.attention(self.ln_1(x), length, most)
        return x + self.down(F.gelu(self.up(self.ln_2(x)), approximate="tanh"))


class Gpt(nn.Module):
    """`parts`: how many the layers and the vocabulary have. This rank makes its own."""

    def __init__(self, options, parts, rank, all_reduce):
        super().__init__()
        width, self.most = options.width, PROMPT + WARMUP + options.tokens
        self.length = 0
        own = torch.arange(options.vocabulary).chunk(parts)[rank]
        self.wte = (Vocabulary(len(own), width, int(own[0]), all_reduce) if parts > 1 else
                    nn.Embedding(len(own), width))
        self.wpe = nn.Embedding(self.most, width)

        def rowwise(inputs, outputs):
            return (RowwiseLinear(inputs, outputs, all_reduce) if parts > 1 else
                    nn.Linear(inputs, outputs))

        self.h = nn.ModuleList(Block(options, parts, rowwise) for _ in range(options.layers))
        self.ln_f = nn.LayerNorm(width)
        self.lm_head = nn.Linear(width, len(own), bias=False)
        self.lm_head.weight = self.wte.weight

    def forward(self, tokens):
        """Returns this rank's logits of the next token."""
        end = self.length + tokens.size(1)
        x = self.wte(tokens) + self.wpe(torch.arange(self.length, end))
        for block in self.h:
            x = block(x, self.length, self.most)
        self.length = end
        return self.lm_head(self.ln_f(x[:, -1:]))[:, 0]


def cut(model):
    """Makes the parts of a whole model DTensors."""
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    parallelize_module(model, mesh, {"wte": RowwiseParallel(input_layouts=Replicate()),
                                     "lm_head": ColwiseParallel()})
    model.lm_head.weight = model.wte.weight
    for block in model.h:
        parallelize_module(block, mesh, {"qkv": ColwiseParallel(), "o": RowwiseParallel(),
                                         "up": ColwiseParallel(), "down": RowwiseParallel()})


def most_probable(logits, first, all_reduce):
    """Returns the token, [1, 1], equal on all ranks. `first`: of this rank's part."""
    value, token = logits.max(-1)
    if dist.get_world_size() == 1:
        return token.unsqueeze(0)
    all_best = torch.zeros(dist.get_world_size(), 2)  # Logit and token of each rank.
    all_best[dist.get_rank(), 0] = value[0]
    all_best[dist.get_rank(), 1] = token[0] + first
    all_reduce(all_best)
    return all_best[all_best[:, 0].argmax(), 1].long().view(1, 1)


def deepspeed(folder):
    """Returns the all_reduce of DeepSpeed's kernel, compiled from its sources."""
    from torch.utils import cpp_extension
    sources = [str(folder / "csrc/cpu/comm" / name) for name in ("shm_interface.cpp", "shm.cpp")]
    os.environ["LOCAL_SIZE"] = str(dist.get_world_size())
    kernel = cpp_extension.load("deepspeed_shm_comm", sources, extra_cflags=["-O2", "-fopenmp"])
    kernel.initialize(dist.get_world_size(), dist.get_rank())
    return torch.ops.deepspeed.inference_all_reduce_


def decode(model, first, communication, tokens):
    """Returns the median milliseconds of a token, and the share of communication."""
    next_token = most_probable(model(torch.arange(PROMPT).unsqueeze(0)), first, communication)
    times = []
    for number in range(WARMUP + tokens - 1):
        if number == WARMUP:
            communication.seconds = 0
        begin = time.perf_counter()
        next_token = most_probable(model(next_token), first, communication)
        next_token.item()
        if number >= WARMUP:
            times.append(time.perf_counter() - begin)
    return {"ms": 1e3 * statistics.median(times),
            "communication": communication.seconds / sum(times)}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("width", "layers", "heads", "vocabulary", "tokens"):
        parser.add_argument("--" + name, type=int, required=True)
    parser.add_argument("--by", choices=("direct", "dist", "dtensor", "deepspeed"), required=True)
    parser.add_argument("--backend", default="lockstep")
    parser.add_argument("--deepspeed", type=pathlib.Path, help="folder of its sources")
    options = parser.parse_args()
    dist.init_process_group(options.backend)
    rank, ranks = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    all_reduce = (lockstep.all_reduce_ if options.by == "direct" else
                  deepspeed(options.deepspeed) if options.by == "deepspeed" else dist.all_reduce)
    communication = Communication(all_reduce)
    if options.by == "dtensor":
        model = Gpt(options, 1, 0, communication)
        cut(model)
    else:
        model = Gpt(options, ranks, rank, communication)
    first = rank * -(-options.vocabulary // ranks)
    dist.barrier()
    # DTensor takes four times as long in inference_mode().
    with torch.no_grad() if options.by == "dtensor" else torch.inference_mode():
        found = decode(model.eval(), first, communication, options.tokens)
    if options.by == "dtensor":
        del found["communication"]  # Most is inside DTensor.
    if rank == 0:
        print(json.dumps(found), flush=True)
    if options.backend == "gloo":  # Its threads abort some runs at the interpreter's end.
        dist.barrier()
        os._exit(0)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

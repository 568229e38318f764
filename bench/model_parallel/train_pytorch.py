# SPDX-License-Identifier: Apache-2.0
"""PyTorch's side of bench/model_parallel: steps of the same GPT with DTensor tensor parallelism,
fully_shard() or torch.distributed.pipelining, over Gloo. Prints a JSON object with
the median time of a step."""

import argparse
import contextlib
import json
import statistics
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.distributed.tensor import Replicate
from torch.distributed.tensor.parallel import (ColwiseParallel, RowwiseParallel, loss_parallel,
                                               parallelize_module)


class Block(nn.Module):
    """q, k and v are separate Linears: PyTorch's styles cannot cut one that has all three."""

    def __init__(self, width, heads):
        super().__init__()
        self.head_width = width // heads
        self.ln_1, self.ln_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.q, self.k, self.v = (nn.Linear(width, width) for _ in range(3))
        self.o = nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        def by_head(y):
            return y.unflatten(-1, (-1, self.head_width)).transpose(1, 2)

        h = self.ln_1(x)
        y = F.scaled_dot_product_attention(by_head(self.q(h)), by_head(self.k(h)),
                                           by_head(self.v(h)), is_causal=True)
        x = x + self.o(y.transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.ln_2(x)), approximate="tanh"))


class Gpt(nn.Module):
    def __init__(self, options):
        super().__init__()
        self.wte = nn.Embedding(options.vocabulary, options.width)
        self.wpe = nn.Embedding(options.length, options.width)
        self.h = nn.ModuleList(Block(options.width, options.heads) for _ in range(options.layers))
        self.ln_f = nn.LayerNorm(options.width)
        self.lm_head = nn.Linear(options.width, options.vocabulary, bias=False)

    def forward(self, tokens):
        x = self.wte(tokens) + self.wpe(torch.arange(tokens.size(1)))
        for block in self.h:
            x = block(x)
        x = self.ln_f(x)
        return self.lm_head(x) if self.lm_head else F.linear(x, self.wte.weight)


def cut(model, mesh):
    parallelize_module(model, mesh, {
        "wte": RowwiseParallel(input_layouts=Replicate()),
        "lm_head": ColwiseParallel(use_local_output=False)})
    for block in model.h:
        parallelize_module(block, mesh, {
            "q": ColwiseParallel(), "k": ColwiseParallel(), "v": ColwiseParallel(),
            "o": RowwiseParallel(), "up": ColwiseParallel(), "down": RowwiseParallel()})


def shard(model, mesh):
    model.lm_head = None  # fully_shard() refuses one weight in two modules.
    for block in model.h:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)


class FirstStage(nn.Module):
    def __init__(self, model, blocks):
        super().__init__()
        self.wte, self.wpe, self.h = model.wte, model.wpe, model.h[:blocks]

    def forward(self, tokens):
        x = self.wte(tokens) + self.wpe(torch.arange(tokens.size(1)))
        for block in self.h:
            x = block(x)
        return x


class LastStage(nn.Module):
    def __init__(self, model, blocks):
        super().__init__()
        self.h, self.ln_f, self.lm_head = model.h[blocks:], model.ln_f, model.lm_head

    def forward(self, x):
        for block in self.h:
            x = block(x)
        return self.lm_head(self.ln_f(x))


def pipeline(model, options):
    """The stage of this rank, and a function that computes gradients. The first and the last weight
    are tied, so their gradients are added, as in ours."""
    is_first = dist.get_rank() == 0
    module = (FirstStage if is_first else LastStage)(model, options.cut - 1)
    stage = PipelineStage(module, dist.get_rank(), 2, torch.device("cpu"))
    schedule = Schedule1F1B(stage, 4, lambda logits, targets: F.cross_entropy(
        logits.flatten(0, 1), targets.flatten()))
    tied = module.wte.weight if is_first else module.lm_head.weight

    def backward(tokens):
        if is_first:
            schedule.step(tokens[:, :-1])
        else:
            schedule.step(target=tokens[:, 1:])
        dist.all_reduce(tied.grad)

    return module, backward


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("width", "layers", "heads", "vocabulary", "length", "batch", "steps"):
        parser.add_argument("--" + name, type=int, required=True)
    parser.add_argument("--parallel", required=True,
                        choices=("tensor", "fully-sharded", "pipeline"))
    parser.add_argument("--backend", default="gloo")
    parser.add_argument("--cut", type=int, help="layers of the first stage of a pipeline")
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.backend == "lockstep":
        import lockstep  # noqa: F401, registers it
    dist.init_process_group(options.backend)
    torch.manual_seed(0)
    model = Gpt(options)
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    is_cut = options.parallel == "tensor"
    backward = None
    if is_cut:
        cut(model, mesh)
        model.lm_head.weight = model.wte.weight  # One tied weight, as ours.
    elif options.parallel == "pipeline":
        model, backward = pipeline(model, options)
    else:
        shard(model, mesh)
    adamw = torch.optim.AdamW(model.parameters(), 1e-4)
    tokens = torch.randint(options.vocabulary, (options.batch, options.length + 1))
    times = []
    for step in range(-3, options.steps):
        dist.barrier()
        begin = time.perf_counter()
        adamw.zero_grad()
        if backward:
            backward(tokens)
        else:
            with loss_parallel() if is_cut else contextlib.nullcontext():
                F.cross_entropy(model(tokens[:, :-1]).flatten(0, 1),
                                tokens[:, 1:].flatten()).backward()
        adamw.step()
        if step >= 0:
            times.append((time.perf_counter() - begin) * 1e3)
    if dist.get_rank() == 0:
        print(json.dumps({"ms": statistics.median(times)}))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

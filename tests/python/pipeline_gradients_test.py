#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Pipelines have the losses and gradients of torch.distributed.pipelining: every schedule on two
ranks, with Gloo there. We divide losses by the number of microbatches, PyTorch gradients: bits are
equal if it is a power of two, otherwise the last ones differ.
"""

import pathlib
import subprocess
import sys
import tempfile

from plain_safetensors import read, write
from pytorch_side import run_ranks
from torch_or_skip import torch

import torch.nn.functional as F  # noqa: E402
from torch import nn  # noqa: E402
from torch.distributed.pipelining import PipelineStage, schedules  # noqa: E402

RANKS = 2
ROWS, FEATURES, WIDTH, CLASSES = 24, 12, 16, 5
EXACT = 4
MICROBATCHES = (EXACT, 6)
SCHEDULES = {"gpipe": "GPipe", "1f1b": "1F1B", "interleaved": "Interleaved1F1B",
             "looped_bfs": "LoopedBFS", "zb1p": "InterleavedZeroBubble", "zbv": "ZBVZeroBubble"}
STAGES = {"interleaved": [[0, 2], [1, 3]], "looped_bfs": [[0, 2], [1, 3]], "zbv": [[0, 3], [1, 2]]}
TOLERANCE = 1e-6  # Share of a tensor's largest value, or of 1.


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.linear = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        return x + F.gelu(self.linear(self.norm(x)))


def layers():
    return {"in": nn.Linear(FEATURES, WIDTH), "h.0": Block(), "h.1": Block(),
            "out": nn.Linear(WIDTH, CLASSES)}


def inputs():
    torch.manual_seed(3)
    result = {"classes": torch.randint(CLASSES, (ROWS,)), "x": torch.randn(ROWS, FEATURES)}
    for layer, module in layers().items():
        for name, parameter in module.named_parameters():
            result[f"{layer}.{name}"] = torch.randn_like(parameter) * 0.5
    return result


def run_schedule(rank, name, microbatches, tensors):
    """Returns loss and gradients of this rank, with their names."""
    mine = STAGES.get(name, [[0], [1]])[rank]
    count = 2 * len(mine)
    names, made = list(layers()), layers()
    for layer, module in made.items():
        module.load_state_dict({key: tensors[f"{layer}.{key}"] for key in module.state_dict()})
    size = len(names) // count
    own = {stage: names[stage * size:(stage + 1) * size] for stage in mine}
    stages = [PipelineStage(nn.Sequential(*(made[layer] for layer in own[stage])), stage, count,
                            torch.device("cpu")) for stage in mine]
    kind = schedules.get_schedule_class(SCHEDULES[name])
    is_single = issubclass(kind, schedules.PipelineScheduleSingle)
    schedule = kind(stages[0] if is_single else stages, microbatches, loss_fn=F.cross_entropy)
    losses = []
    schedule.step(*([tensors["x"]] if 0 in mine else []),
                  **({"target": tensors["classes"], "losses": losses} if count - 1 in mine else {}))
    results = {f"{layer}.{key}": parameter.grad for stage in mine for layer in own[stage]
               for key, parameter in made[layer].named_parameters()}
    if losses:
        results["loss"] = torch.stack(losses).double().mean()
    return {f"{name}.{microbatches}.{key}": tensor for key, tensor in results.items()}


def run_rank(rank, folder):
    tensors, results = read(folder / "inputs", {}), {}
    for name in SCHEDULES:
        for microbatches in MICROBATCHES:
            results |= run_schedule(rank, name, microbatches, tensors)
    torch.save(results, folder / f"theirs.{rank}")


def compare(folder, rank):
    """Returns the largest difference of losses and gradients, and its tensor's name."""
    ours, theirs = read(folder / f"ours.{rank}", {}), torch.load(folder / f"theirs.{rank}")
    losses = {name for name in ours if name.endswith(".loss")}
    assert len(losses) == len(SCHEDULES) * len(MICROBATCHES)
    missing = ours.keys() ^ theirs.keys()
    assert missing <= losses, f"not in both: {sorted(missing)}"  # One rank has PyTorch's losses.
    largest, equal = (0.0, "all"), 0
    for name, expected in theirs.items():
        assert ours[name].dtype == expected.dtype and ours[name].shape == expected.shape, name
        assert torch.isfinite(expected).all() and expected.abs().max() > 1e-3, name
        difference = (ours[name] - expected).abs().max().item()
        equal += difference == 0
        assert difference == 0 or f".{EXACT}." not in name, f"{name} differs by {difference}"
        largest = max(largest, (difference / max(1, expected.abs().max().item()), name))
    print(f"rank {rank}: {equal} of {len(theirs)} tensors have equal bits, largest difference "
          f"{largest}")
    return largest


def main():
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        write(folder / "inputs", inputs(), {})
        subprocess.run([sys.argv[1], folder], check=True)
        run_ranks(RANKS, folder, run_rank)
        differences = [compare(folder, rank) for rank in range(RANKS)]
    if max(differences)[0] > TOLERANCE:
        sys.exit(f"PyTorch {torch.__version__} differs by more than {TOLERANCE}")


if __name__ == "__main__":
    main()

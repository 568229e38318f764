#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""ChannelPruner finds the groups of Torch-Pruning in a CNN, ResNet-18 and EfficientNet-B0, and
leaves as many parameters (torch_pruning_plans has recorded ones). PruningMasks has the masks of
torch.nn.utils.prune, and GradualPruner the sparsities of torch.ao's CubicSL, bit for bit.

pruning_test.py PRUNING_TRACE
"""

import pathlib
import subprocess
import sys
import tempfile

from plain_safetensors import read, write
from torch_or_skip import torch
from torch.nn.utils import prune

PLANS = pathlib.Path(__file__).parent / "torch_pruning_plans"

# Calls of prune.METHOD(module, name, ...), or prune.global_unstructured().
CASES = {
    "l1": [("l1_unstructured", "conv", 0.5)],
    "l1_all": [("l1_unstructured", "conv", 1.0)],
    "l1_none": [("l1_unstructured", "conv", 0)],
    "l1_ties": [("l1_unstructured", "coarse", 0.5)],
    "l1_again": [("l1_unstructured", "conv", 0.3), ("l1_unstructured", "conv", 0.2),
                 ("l1_unstructured", "conv", 10)],
    "random": [("random_unstructured", "conv", 0.35)],
    "random_after_l1": [("l1_unstructured", "linear", 0.3), ("random_unstructured", "linear", 0.5)],
    "ln_2": [("ln_structured", "conv", 0.25, 2, 0)],
    "ln_1": [("ln_structured", "conv", 2, 1, 1)],
    "ln_inf": [("ln_structured", "linear", 0.5, float("inf"), -1)],
    "ln_again": [("ln_structured", "conv", 0.25, 2, 0), ("ln_structured", "conv", 0.5, 1, 0),
                 ("ln_structured", "conv", 0.5, 2, 1)],
    "ln_after_l1": [("l1_unstructured", "linear", 0.4), ("ln_structured", "linear", 0.5, 2, 0)],
    "random_structured": [("random_structured", "conv", 3, 0)],
    "random_structured_again": [("ln_structured", "linear", 0.3, 2, 0),
                                ("random_structured", "linear", 0.5, 0)],
    "global": [("global_unstructured", ("conv", "linear"), 0.6)],
    "global_after_l1": [("l1_unstructured", "linear", 0.2),
                        ("global_unstructured", ("linear", "coarse", "conv"), 300)],
}


def output_of(*arguments):
    done = subprocess.run([sys.argv[1], *arguments], check=True, text=True, capture_output=True)
    return done.stdout.splitlines()


def compare_plans():
    for file in sorted(PLANS.glob("*.txt")):
        ours, theirs = (sorted(lines) for lines in
                        (output_of("plan", file.stem), file.read_text().splitlines()))
        different = set(ours) ^ set(theirs)
        assert ours == theirs, f"{file.stem}: one side alone has {sorted(different)}"
        print(f"{file.stem}: {len(ours) - 1} groups are Torch-Pruning's")


def their_masks(weights, calls):
    torch.manual_seed(11)
    module = torch.nn.Module()
    for name, values in weights.items():
        module.register_parameter(name, torch.nn.Parameter(values.clone()))
    for method, name, *arguments in calls:
        if method == "global_unstructured":
            prune.global_unstructured([(module, each) for each in name],
                                      pruning_method=prune.L1Unstructured, amount=arguments[0])
        else:
            getattr(prune, method)(module, name, *arguments)
    return {name.removesuffix("_mask"): mask for name, mask in module.named_buffers()}


def compare_masks(folder):
    torch.manual_seed(3)
    weights = {"conv": torch.randn(12, 7, 3, 3), "linear": torch.randn(31, 45),
               "coarse": (torch.randn(9, 9) * 4).round() / 4}
    write(folder / "in", weights, {})
    output_of("masks", str(folder / "in"), str(folder / "out"))
    ours = read(folder / "out", {})
    theirs = {f"{case}.{name}": mask for case, calls in CASES.items()
              for name, mask in their_masks(weights, calls).items()}
    assert ours.keys() == theirs.keys(), f"one side alone has {ours.keys() ^ theirs.keys()}"
    for name, mask in theirs.items():
        different = (ours[name] != mask.bool()).sum().item()
        assert different == 0, f"{name}: {different} elements of the mask differ from Python's"
    print(f"{len(theirs)} masks are Python's")


def compare_schedule():
    compute = torch.ao.pruning.CubicSL.sparsity_compute_fn
    ours = [float.fromhex(line) for line in output_of("schedule")]
    theirs = [compute(0.1, 0.83, min(t, 56), 3, 1, 53, initially_zero=True) for t in range(1, 61)]
    assert ours == theirs, f"sparsities differ: {list(zip(ours, theirs))}"
    assert ours[-1] == 0.83 and ours[0] == 0


def main():
    compare_plans()
    with tempfile.TemporaryDirectory() as folder:
        compare_masks(pathlib.Path(folder))
    compare_schedule()


if __name__ == "__main__":
    main()

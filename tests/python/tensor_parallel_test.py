#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Layers and models that are cut over ranks compute what PyTorch's tensor parallelism does on Gloo.

The test compares parts of weights, results and gradients of every style at tp 2, 3 and 4. It also
compares the cross entropy of cut logits (loss_parallel), PrepareModuleInput and
PrepareModuleOutput. The GPT, the LLaMA and the ViT of examples/ train 20 steps at tp 2.
"""

import pathlib
import subprocess
import sys
import tempfile

from plain_safetensors import read, write
from pytorch_side import run_ranks
from torch_or_skip import torch

SIZES = (2, 3, 4)
STEPS = 20
TOLERANCE = 1e-6  # Share of a tensor's largest value, or of 1.


def weights(model):
    """Returns random weights of a model, with the scales of norms near 1."""
    from tensor_parallel_models import MODELS, whole_weights
    for name, tensor in whole_weights(MODELS[model]().double()).items():
        is_scale = tensor.dim() == 1 and name.endswith("weight")
        yield f"{model}.{name}", torch.randn_like(tensor) * 0.1 + is_scale


def inputs():
    from tensor_parallel_models import CLASSES, IMAGE, TOKENS, VOCABULARY
    torch.manual_seed(7)
    result = {"x": torch.randn(2, 12, 12), "w12": torch.randn(2, 12, 12),
              "w24": torch.randn(2, 12, 24), "tokens": torch.randint(11, (2, 12)),
              "linear.weight": torch.randn(24, 12) / 4, "linear.bias": torch.randn(24),
              "embedding.weight": torch.randn(11, 12),
              "logits": torch.randn(9, 11) * 3,
              "classes": torch.tensor([0, 1, 1, 10, -100, 5, 3, 7, 1])}
    result["classes"][4] = 1  # The same targets with either ignore_index.
    for norm in ("layer_norm", "rms_norm"):
        result[f"{norm}.weight"] = torch.randn(12)
    result["layer_norm.bias"] = torch.randn(12)
    begins = torch.randint(VOCABULARY, (STEPS, 4, 1))
    result["texts"] = (begins + 7 * torch.arange(TOKENS + 1)) % VOCABULARY
    result["image_classes"] = torch.randint(CLASSES, (6,)).repeat(STEPS, 1)
    images = torch.randn(6, 3, IMAGE, IMAGE, dtype=torch.double)
    result["images"] = images.repeat(STEPS, 1, 1, 1, 1)
    for model in ("gpt", "llama", "vit"):
        result |= weights(model)
    return result


def run_pytorch(folder):
    """All ranks in one job, which imports torch once."""
    import tensor_parallel_pytorch
    run_ranks(max(SIZES), folder, tensor_parallel_pytorch.run_rank, SIZES)


def compare(folder, tp, rank):
    """Returns the largest difference, and its tensor's name."""
    ours = read(folder / f"ours.{tp}.{rank}", {})
    theirs = torch.load(folder / f"theirs.{tp}.{rank}")
    assert ours.keys() == theirs.keys(), f"not in both: {sorted(ours.keys() ^ theirs.keys())}"
    largest = (0.0, "all")
    for name, expected in theirs.items():
        assert ours[name].dtype == expected.dtype and ours[name].shape == expected.shape, (
            f"{name}: {ours[name].shape} here, {expected.shape} in PyTorch")
        if expected.numel():
            difference = (ours[name] - expected).abs().max().item()
            assert difference == difference, f"{name} has a NaN"
            largest = max(largest, (difference / max(1, expected.abs().max().item()), name))
        if name.endswith(".losses"):
            assert expected[-1] < 0.7 * expected[0], f"{name}: {expected}"
    print(f"tp {tp}, rank {rank}: {len(theirs)} tensors, largest difference {largest}")
    return largest


def main():
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        tensors = inputs()  # The format stores large types first, so that all are aligned.
        names = sorted(tensors, key=lambda name: -tensors[name].element_size())
        write(folder / "inputs", {name: tensors[name] for name in names}, {})
        subprocess.run([sys.argv[1], folder], check=True)
        run_pytorch(folder)
        differences = [compare(folder, tp, rank) for tp in SIZES for rank in range(tp)]
    if max(differences)[0] > TOLERANCE:
        sys.exit(f"PyTorch {torch.__version__} differs by more than {TOLERANCE}")


if __name__ == "__main__":
    main()

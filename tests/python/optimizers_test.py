#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Lockstep's Adam, AdamW and SGD have the same weights and state after 25 steps as Python's with
fused=True, bit for bit. This also holds if clip_grad_norm_ clips the gradients before each step;
its total norms are the same.

optimizers_test.py OPTIMIZER_STEPS
"""

import os
import pathlib
import subprocess
import sys
import tempfile

from plain_safetensors import bytes_of, read, write
from torch_or_skip import torch

STEPS = 25
FULL = [((37, 51), torch.float32), ((41,), torch.float64), ((5, 7, 3), torch.float32)]
HALF = [((33,), torch.bfloat16), ((3, 22), torch.float16)]

ADAM = {"lr": 1e-2, "beta1": 0.9, "beta2": 0.999, "eps": 1e-8, "weight_decay": 0, "amsgrad": 0}
ADAM_CASES = (ADAM, ADAM | {"weight_decay": 0.1}, ADAM | {"weight_decay": 0.01, "amsgrad": 1},
              ADAM | {"lr": 3e-4, "beta1": 0.8, "beta2": 0.95, "eps": 1e-6})
SGD = {"lr": 1e-2, "momentum": 0, "dampening": 0, "weight_decay": 0, "nesterov": 0}
SGD_CASES = (SGD, SGD | {"weight_decay": 0.1}, SGD | {"momentum": 0.9},
             SGD | {"momentum": 0.9, "dampening": 0.3, "weight_decay": 0.01},
             SGD | {"momentum": 0.9, "nesterov": 1, "weight_decay": 0.1})
CLIPPING = [{"max_norm": max_norm, "norm_type": norm_type}
            for norm_type in (1.0, 2.0, 3.0, float("inf")) for max_norm in (0.7, 1e6)]


def made_inputs(kinds):
    torch.manual_seed(2)
    inputs = {}
    for n, (shape, dtype) in enumerate(kinds):
        inputs[f"weight.{n}"] = torch.randn(shape).to(dtype)
        inputs[f"gradients.{n}"] = torch.randn(STEPS, *shape).to(dtype)
    return inputs


def optimizer_in_python(algorithm, weights, options):
    if algorithm == "SGD":
        return torch.optim.SGD(weights,
                               fused=True,
                               **options | {"nesterov": options["nesterov"] == 1})
    same = {name: options[name] for name in ("lr", "eps", "weight_decay")}
    options = same | {"betas": (options["beta1"], options["beta2"]),
                      "amsgrad": options["amsgrad"] == 1}
    return getattr(torch.optim, algorithm)(weights, fused=True, **options)


def steps_in_python(algorithm, inputs, options, clipping):
    weights = [inputs[f"weight.{n}"].clone().requires_grad_() for n in range(len(inputs) // 2)]
    optimizer = optimizer_in_python(algorithm, weights, options)
    total_norms = []
    for step in range(STEPS):
        for n, weight in enumerate(weights):
            weight.grad = inputs[f"gradients.{n}"][step].clone()
        if clipping:
            total_norms.append(torch.nn.utils.clip_grad_norm_(weights, **clipping, foreach=True))
        optimizer.step()
    result = {"total_norms": torch.stack(total_norms)} if clipping else {}
    for n, weight in enumerate(weights):
        state = {k: v for k, v in optimizer.state[weight].items() if k != "step" and v is not None}
        result |= {f"weight.{n}": weight.detach()} | {f"{k}.{n}": v for k, v in state.items()}
    return result


def compare(program, directory, algorithm, inputs, options, clipping):
    given, result = directory / "given", directory / "result"
    write(given, inputs, {})
    numbers = [f"{name}={value!r}" for name, value in (options | clipping).items()]
    subprocess.run([program, given, result, algorithm, *numbers], check=True)
    ours = read(result, {})
    theirs = steps_in_python(algorithm, inputs, options, clipping)
    assert ours.keys() == theirs.keys(), f"{algorithm}: {list(ours)} are not {list(theirs)}"
    for name, tensor in theirs.items():
        assert tensor.dtype == ours[name].dtype, f"{algorithm}: the type of {name} differs"
        assert bytes_of(ours[name]) == bytes_of(tensor), f"{algorithm}: {name} differs, {numbers}"
        assert not torch.equal(tensor, inputs.get(name, tensor + 1)), f"{name} was not stepped"


def main():
    # Sums over many elements depend on the number of threads.
    torch.set_num_threads(1)
    os.environ["OMP_NUM_THREADS"] = "1"
    cases = [(algorithm, options, {}, FULL + HALF)
             for algorithm in ("Adam", "AdamW") for options in ADAM_CASES]
    cases += [("SGD", options, {}, FULL) for options in SGD_CASES]
    cases += [("SGD", SGD, clipping, FULL) for clipping in CLIPPING]
    cases += [("AdamW", ADAM, clipping, HALF + FULL) for clipping in CLIPPING]
    with tempfile.TemporaryDirectory() as name:
        for algorithm, options, clipping, kinds in cases:
            compare(sys.argv[1], pathlib.Path(name), algorithm, made_inputs(kinds), options,
                    clipping)
    print(f"equal, bit for bit, in {len(cases)} cases")


if __name__ == "__main__":
    main()

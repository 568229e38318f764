#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Lockstep's GradScaler has the scale, the growth tracker, the infinities and the omitted steps of
Python's, in each of 200 steps. Weights are those of Python's fused optimizers, bit for bit. Some
gradients are infinite from the beginning, others overflow because the scale is too large.

grad_scaler_test.py GRAD_SCALER_TRACE
"""

import os
import pathlib
import subprocess
import sys
import tempfile

from plain_safetensors import bytes_of, read, write
from torch_or_skip import torch

STEPS = 200
SHAPES = ((5, 7), (11,), (3, 4))  # The first two are Adam's, the last is SGD's.

SCALER = {"init_scale": 65536.0, "growth_factor": 2.0, "backoff_factor": 0.5,
          "growth_interval": 2000}
CASES = {
    "defaults": SCALER,
    "grows": SCALER | {"growth_interval": 4},
    "grows and shrinks by other factors": SCALER | {"init_scale": 1024.0, "growth_factor": 8.0,
                                                    "backoff_factor": 0.125, "growth_interval": 3},
    "no power of two": SCALER | {"init_scale": 1000.0, "growth_factor": 1.7,
                                 "backoff_factor": 0.3, "growth_interval": 2},
    "unscaled": SCALER | {"growth_interval": 7, "unscale_every": 2},
    "clipped": SCALER | {"growth_interval": 7, "unscale_every": 1, "max_norm": 0.5},
    "accumulated": SCALER | {"growth_interval": 5, "passes": 3},
    "tiny scale": SCALER | {"init_scale": 2.0**-100, "growth_interval": 1},
}


def made_inputs(largest):
    """Gradients of up to 1, except in every fifth step: the scale decides whether `largest`
    overflows. One step in twelve has an infinity or a NaN, in one of the weights."""
    torch.manual_seed(5)
    bad = (float("inf"), float("-inf"), float("nan"))
    inputs = {}
    for n, shape in enumerate(SHAPES):
        inputs[f"weight.{n}"] = torch.randn(shape)
        gradients = torch.randn(STEPS, *shape)
        gradients[::5].clamp_(-1, 1).mul_(largest)
        for step in range(4 * n + 1, STEPS, 12 * len(SHAPES)):
            gradients[step].view(-1)[step % gradients[step].numel()] = bad[step % 3]
        inputs[f"gradients.{n}"] = gradients
    return inputs


class Training:
    """Python's side: what grad_scaler_trace.cpp does."""

    def __init__(self, inputs, options, scaler):
        self.weights = [inputs[f"weight.{n}"].clone().requires_grad_() for n in range(len(SHAPES))]
        self.gradients = [inputs[f"gradients.{n}"] for n in range(len(SHAPES))]
        self.optimizers = [torch.optim.Adam(self.weights[:2], lr=1e-2, fused=True),
                           torch.optim.SGD(self.weights[2:], lr=1e-2, fused=True)]
        self.options, self.scaler = options, scaler

    def found(self, optimizer):
        return float(sum(self.scaler._found_inf_per_device(optimizer).values()) > 0)

    def step(self, step):
        for optimizer in self.optimizers:
            optimizer.zero_grad()
        for _ in range(self.options.get("passes", 1)):
            loss = sum((weight * gradients[step]).sum()
                       for weight, gradients in zip(self.weights, self.gradients))
            self.scaler.scale(loss).backward()
        every = self.options.get("unscale_every", 0)
        if every and step % every == 0:
            self.scaler.unscale_(self.optimizers[0])
            if "max_norm" in self.options:
                torch.nn.utils.clip_grad_norm_(self.weights[:2], self.options["max_norm"],
                                               foreach=True)
        for optimizer in self.optimizers:
            self.scaler.step(optimizer)
        found = [self.found(optimizer) for optimizer in self.optimizers]
        self.scaler.update()
        return [self.scaler.get_scale(), self.scaler._get_growth_tracker(), *found]

    def run(self, steps):
        trace = torch.tensor([self.step(step) for step in steps], dtype=torch.float64)
        return {"trace": trace} | {f"weight.{n}": weight.detach()
                                   for n, weight in enumerate(self.weights)}


def scaler_of(options):
    return torch.amp.GradScaler("cpu", **{name: options[name] for name in SCALER} |
                                {"growth_interval": int(options["growth_interval"])})


def ours(program, inputs, numbers):
    with tempfile.TemporaryDirectory() as name:
        given, result = pathlib.Path(name) / "given", pathlib.Path(name) / "result"
        write(given, inputs, {})
        subprocess.run([program, given, result,
                        *[f"{name}={value!r}" for name, value in numbers.items()]], check=True)
        return read(result, {})


def compare(what, mine, theirs, exact):
    assert mine.keys() == theirs.keys(), f"{what}: {list(mine)} are not {list(theirs)}"
    for step, (one, other) in enumerate(zip(mine["trace"].tolist(), theirs["trace"].tolist())):
        assert one == other, f"{what}: step {step} has {one}, and Python {other}"
    for name, tensor in theirs.items():
        # The fused kernels divide by the scale, which rounds as a product with its inverse does
        # only for powers of two.
        same = (bytes_of(mine[name]) == bytes_of(tensor) if exact
                else torch.allclose(mine[name], tensor, 1e-4, 1e-6))
        assert same, f"{what}: {name} differs"


def compare_case(program, what, options, largest):
    inputs = made_inputs(largest)
    theirs = Training(inputs, options, scaler_of(options)).run(range(STEPS))
    found = theirs["trace"][:, 2:]
    assert 0 < found[:, 0].sum() < STEPS / 2, f"{what}: no steps, or all, are omitted"
    assert (found[:, 0] != found[:, 1]).any(), f"{what}: optimizers omit the same steps"
    compare(what, ours(program, inputs, options), theirs, exact=what != "no power of two")
    return found[:, 0].sum().item()


def compare_resumed(program):
    """Continues from Python's own state_dict()."""
    inputs, options = made_inputs(1), CASES["grows"]
    first = Training(inputs, options, scaler_of(options))
    first.run(range(STEPS // 2 + 1))
    state = first.scaler.state_dict()
    assert state["_growth_tracker"] > 0 and state["scale"] != options["init_scale"]
    rest = {f"weight.{n}": weight.detach().clone() for n, weight in enumerate(first.weights)}
    rest |= {f"gradients.{n}": gradients[STEPS // 2 + 1:].clone()
             for n, gradients in enumerate(first.gradients)}
    scaler = torch.amp.GradScaler("cpu")
    scaler.load_state_dict(state)
    theirs = Training(rest, options, scaler).run(range(STEPS - STEPS // 2 - 1))
    compare("resumed", ours(program, rest, state), theirs, exact=True)


def main():
    torch.set_num_threads(1)
    os.environ["OMP_NUM_THREADS"] = "1"
    for what, options in CASES.items():
        # float32 ends at 3.4e38.
        few = compare_case(sys.argv[1], what, options, 1)
        many = compare_case(sys.argv[1], what, options, 1e34)
        assert many > few, f"{what}: no gradient overflows because of the scale"
    compare_resumed(sys.argv[1])
    print(f"equal in {2 * len(CASES) + 1} cases of {STEPS} steps")


if __name__ == "__main__":
    main()

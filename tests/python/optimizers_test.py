#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Lockstep's Adam, AdamW and SGD have the same weights and state after 25 steps as Python's with
fused=True, bit for bit. This also holds if clip_grad_norm_ clips the gradients before each step;
its total norms are the same. Those of LARS and LAMB equal a plain computation with their formulas,
and AveragedModel that of torch.optim.swa_utils.

optimizers_test.py OPTIMIZER_STEPS
"""

import math
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
LARS = {"lr": 0.5, "momentum": 0.9, "weight_decay": 0, "nesterov": 0, "trust_coefficient": 0.02,
        "eps": 1e-8, "clip": 0, "adapt": 1}
LARS_CASES = (LARS, LARS | {"weight_decay": 0.1, "nesterov": 1}, LARS | {"momentum": 0, "lr": 2},
              LARS | {"clip": 1, "lr": 0.02, "weight_decay": 0.01},
              LARS | {"adapt": 0, "lr": 1e-2, "weight_decay": 0.1})
LAMB = {"lr": 1e-2, "beta1": 0.9, "beta2": 0.999, "eps": 1e-6, "weight_decay": 0, "adapt": 1}
LAMB_CASES = (LAMB, LAMB | {"weight_decay": 0.1}, LAMB | {"adapt": 0, "weight_decay": 0.01},
              LAMB | {"lr": 3e-3, "beta1": 0.8, "beta2": 0.95, "eps": 1e-3})
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
    if algorithm in ("LARS", "LAMB"):
        return {"LARS": Lars, "LAMB": Lamb}[algorithm](weights, options)
    if algorithm == "SGD":
        return torch.optim.SGD(weights,
                               fused=True,
                               **options | {"nesterov": options["nesterov"] == 1})
    same = {name: options[name] for name in ("lr", "eps", "weight_decay")}
    options = same | {"betas": (options["beta1"], options["beta2"]),
                      "amsgrad": options["amsgrad"] == 1}
    return getattr(torch.optim, algorithm)(weights, fused=True, **options)


def norm_of(tensor):
    return tensor.double().square().sum().sqrt().item()


class Lars:
    """apex/parallel/LARC.py around SGD with momentum. Sums and products are rounded one by one."""

    def __init__(self, weights, options):
        self.weights, self.options = weights, options
        self.state = {weight: {} for weight in weights}

    def step(self):
        for weight in self.weights:
            self.step_one(weight, weight.grad, **self.options)

    def step_one(self, weight, gradient, *, lr, momentum, weight_decay, nesterov,
                 trust_coefficient, eps, clip, adapt):
        weight_norm, gradient_norm = norm_of(weight), norm_of(gradient)
        if not adapt:
            gradient = gradient + weight_decay * weight
        elif weight_norm != 0 and gradient_norm != 0:
            rate = trust_coefficient * weight_norm / (gradient_norm + weight_decay * weight_norm +
                                                      eps)
            if clip:
                rate = min(rate / lr, 1)
            gradient = (gradient + weight_decay * weight) * rate
        if momentum != 0:
            buffer = self.state[weight].get("momentum_buffer")
            buffer = gradient if buffer is None else momentum * buffer + gradient
            self.state[weight]["momentum_buffer"] = buffer
            gradient = gradient + momentum * buffer if nesterov else buffer
        weight -= lr * gradient


class Lamb(Lars):
    """Algorithm 2 of "Large Batch Optimization for Deep Learning" (You et al. 2020)."""

    def __init__(self, weights, options):
        super().__init__(weights, options)
        self.steps = 0
        for weight in weights:
            self.state[weight] = {name: torch.zeros_like(weight)
                                  for name in ("exp_avg", "exp_avg_sq")}

    def step(self):
        self.steps += 1
        super().step()

    def step_one(self, weight, gradient, *, lr, beta1, beta2, eps, weight_decay, adapt):
        state = self.state[weight]
        state["exp_avg"] = beta1 * state["exp_avg"] + (1 - beta1) * gradient
        state["exp_avg_sq"] = beta2 * state["exp_avg_sq"] + (1 - beta2) * (gradient * gradient)
        mean = state["exp_avg"] * (1 / (1 - beta1**self.steps))
        # The root of MKL in single precision is not always rounded correctly.
        root = state["exp_avg_sq"].double().sqrt().to(weight.dtype)
        root = root * (1 / math.sqrt(1 - beta2**self.steps))
        update = mean / (root + eps) + weight_decay * weight
        weight_norm, update_norm = norm_of(weight), norm_of(update)
        ratio = weight_norm / update_norm if adapt and weight_norm > 0 and update_norm > 0 else 1
        weight -= (lr * ratio) * update


def steps_in_python(algorithm, inputs, options, clipping):
    weights = [inputs[f"weight.{n}"].clone().requires_grad_() for n in range(len(inputs) // 2)]
    optimizer = optimizer_in_python(algorithm, weights, options)
    total_norms = []
    for step in range(STEPS):
        for n, weight in enumerate(weights):
            weight.grad = inputs[f"gradients.{n}"][step].clone()
        if clipping:
            total_norms.append(torch.nn.utils.clip_grad_norm_(weights, **clipping, foreach=True))
        with torch.no_grad():
            optimizer.step()
    result = {"total_norms": torch.stack(total_norms)} if clipping else {}
    for n, weight in enumerate(weights):
        state = {k: v for k, v in optimizer.state[weight].items() if k != "step" and v is not None}
        result |= {f"weight.{n}": weight.detach()} | {f"{k}.{n}": v for k, v in state.items()}
    return result


def averages_in_python(algorithm, inputs, options, _):
    swa_utils = torch.optim.swa_utils
    rule = (swa_utils.get_swa_multi_avg_fn() if algorithm == "SWA" else
            swa_utils.get_ema_multi_avg_fn(options["decay"]))
    net = torch.nn.Module()
    count = len(inputs) // 2
    for n in range(count):
        weight = inputs[f"weight.{n}"].clone()
        if n == 0:
            net.register_buffer("weight0", weight)
        else:
            net.register_parameter(f"weight{n}", torch.nn.Parameter(weight))
    net.register_buffer("count", torch.tensor(0))
    averaged = swa_utils.AveragedModel(net, multi_avg_fn=rule,
                                       use_buffers=options["use_buffers"] == 1)
    for step in range(STEPS):
        with torch.no_grad():
            for n in range(count):
                getattr(net, f"weight{n}").copy_(inputs[f"gradients.{n}"][step])
            net.count.add_(3)
        averaged.update_parameters(net)
    result = {f"weight.{n}": getattr(averaged.module, f"weight{n}").detach() for n in range(count)}
    return result | {"count": averaged.module.count}


def equal(algorithm, ours, theirs):
    """Whether both have the same bits. Norms are sums of doubles in another order, which is
    visible only in double precision."""
    if algorithm in ("LARS", "LAMB") and theirs.dtype == torch.float64:
        return torch.allclose(ours, theirs, rtol=1e-12, atol=1e-14)
    return bytes_of(ours) == bytes_of(theirs)


def compare(program, directory, algorithm, inputs, options, clipping):
    given, result = directory / "given", directory / "result"
    write(given, inputs, {})
    numbers = [f"{name}={value!r}" for name, value in (options | clipping).items()]
    subprocess.run([program, given, result, algorithm, *numbers], check=True)
    ours = read(result, {})
    in_python = averages_in_python if algorithm in ("EMA", "SWA") else steps_in_python
    theirs = in_python(algorithm, inputs, options, clipping)
    assert ours.keys() == theirs.keys(), f"{algorithm}: {list(ours)} are not {list(theirs)}"
    for name, tensor in theirs.items():
        assert tensor.dtype == ours[name].dtype, f"{algorithm}: the type of {name} differs"
        assert equal(algorithm, ours[name], tensor), f"{algorithm}: {name} differs, {numbers}"
        assert not torch.equal(tensor, inputs.get(name, tensor + 1)), f"{name} was not stepped"


def main():
    # Sums over many elements depend on the number of threads.
    torch.set_num_threads(1)
    os.environ["OMP_NUM_THREADS"] = "1"
    cases = [(algorithm, options, {}, FULL + HALF)
             for algorithm in ("Adam", "AdamW") for options in ADAM_CASES]
    cases += [("SGD", options, {}, FULL) for options in SGD_CASES]
    cases += [("LARS", options, {}, FULL) for options in LARS_CASES]
    cases += [("LAMB", options, {}, FULL) for options in LAMB_CASES]
    cases += [("EMA", {"decay": decay, "use_buffers": use_buffers}, {}, FULL + HALF)
              for decay in (0.999, 0.9, 0.3) for use_buffers in (0, 1)]
    cases += [("SWA", {"use_buffers": 0}, {}, FULL + HALF)]
    cases += [("SGD", SGD, clipping, FULL) for clipping in CLIPPING]
    cases += [("AdamW", ADAM, clipping, HALF + FULL) for clipping in CLIPPING]
    with tempfile.TemporaryDirectory() as name:
        for algorithm, options, clipping, kinds in cases:
            compare(sys.argv[1], pathlib.Path(name), algorithm, made_inputs(kinds), options,
                    clipping)
    print(f"equal, bit for bit, in {len(cases)} cases")


if __name__ == "__main__":
    main()

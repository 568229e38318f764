#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Lockstep's Adam and Python's torch.optim.Adam(fused=True) have the same weights and the same state
after 50 steps, bit for bit.

adam_test.py ADAM_STEPS
"""

import pathlib
import subprocess
import sys
import tempfile

from plain_safetensors import bytes_of, read, write
from torch_or_skip import torch

STEPS = 50


def steps_in_python(inputs, weight_decay, amsgrad):
    weight = inputs["weight"].clone().requires_grad_()
    adam = torch.optim.Adam([weight], 1e-2, weight_decay=weight_decay, amsgrad=amsgrad, fused=True)
    for gradient in inputs["gradients"]:
        weight.grad = gradient.clone()
        adam.step()
    state = {k: v for k, v in adam.state[weight].items() if k != "step"}
    return {"weight": weight.detach()} | state


def main():
    torch.manual_seed(2)
    inputs = {"weight": torch.randn(37, 51), "gradients": torch.randn(STEPS, 37, 51)}
    with tempfile.TemporaryDirectory() as name:
        given, result = pathlib.Path(name, "given"), pathlib.Path(name, "result")
        write(given, inputs, {})
        for weight_decay, amsgrad in ((0, False), (0.1, False), (0.01, True)):
            subprocess.run([sys.argv[1], given, str(weight_decay), str(int(amsgrad)), result],
                           check=True)
            ours, theirs = read(result, {}), steps_in_python(inputs, weight_decay, amsgrad)
            assert ours.keys() == theirs.keys(), f"{list(ours)} are not {list(theirs)}"
            assert not torch.equal(theirs["weight"], inputs["weight"]), "nothing was stepped"
            for key, tensor in theirs.items():
                assert bytes_of(ours[key]) == bytes_of(tensor), \
                    f"{key} differs with weight_decay={weight_decay}, amsgrad={amsgrad}"
    print("equal, bit for bit")


if __name__ == "__main__":
    main()

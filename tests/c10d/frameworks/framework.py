# SPDX-License-Identifier: Apache-2.0
"""Common parts of the programs in this folder. Each trains with one framework on each of its
ranks, once for each way to select the backend, and writes losses and weights to
$FRAMEWORK_RESULTS.

    gloo      the framework's default, with Gloo
    name      the backend's name, passed to the framework
    group     a group of Lockstep that the program has created before
    as_gloo   as "gloo", with LOCKSTEP_AS_GLOO=1 in the environment
"""

import os
import pathlib

import torch
import torch.distributed as dist
from torch import nn


def register_without_operators(*arguments, **options):
    def decorate(function):
        try:
            return registered(*arguments, **options)(function)
        except RuntimeError:
            return function

    return decorate


# PyPI's torchvision, which frameworks import, has operators only for CUDA's LibTorch.
registered = torch.library.register_fake
torch.library.register_fake = register_without_operators

torch.set_num_threads(1)

STEPS = 4
BATCH = 8


def is_lockstep(group=None):
    """Whether the group's backend for the CPU is Lockstep's."""
    from lockstep import _C

    return isinstance((group or dist.group.WORLD)._get_backend(torch.device("cpu")), _C.Backend)


def own_model():
    """The same on all ranks."""
    torch.manual_seed(5)
    return nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4))


def samples(rank):
    """Returns the inputs and classes of a rank, STEPS batches of them."""
    random = torch.Generator().manual_seed(100 + rank)
    inputs = torch.randn(STEPS * BATCH, 16, generator=random)
    return inputs, inputs[:, :4].argmax(1)


def batches(rank):
    inputs, classes = samples(rank)
    return zip(inputs.split(BATCH), classes.split(BATCH))


def result(losses, model):
    """Returns what is compared: the losses and the weights."""
    state = model if isinstance(model, dict) else model.state_dict()
    whole = {name: value.full_tensor() if hasattr(value, "full_tensor") else value
             for name, value in state.items()}
    return {"losses": torch.tensor([float(loss) for loss in losses], dtype=torch.float64),
            **{name: value.detach().clone() for name, value in whole.items()}}


def ways(*beside_gloo):
    """Returns the ways to test: the given ones and Gloo, or only as_gloo if requested."""
    return ["as_gloo"] if os.environ.get("LOCKSTEP_AS_GLOO") == "1" else ["gloo", *beside_gloo]


def run(train, *beside_gloo):
    """Calls train(backend) for each way, with the name of the backend, or None if the program
    has created the group. train() returns a dictionary of tensors."""
    found = {}
    for way in ways(*beside_gloo):
        if way == "group":
            dist.init_process_group("lockstep")
        backend = {"name": "lockstep", "group": None}.get(way, "gloo")
        found[way] = train(backend)
        assert is_lockstep() == (way != "gloo"), f"{way} does not use the expected backend"
        dist.destroy_process_group()
    write(found, os.environ["RANK"])


def write(found, rank):
    folder = pathlib.Path(os.environ["FRAMEWORK_RESULTS"])
    torch.save(found, folder / f"{'_'.join(found)}.{rank}")

#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""lockstep::DeviceMesh has the coordinates and groups of torch's init_device_mesh().

PyTorch's groups come from its fake backend, one rank after the other in this process. Sets of
several axes are compared with the flattened meshes.
"""

import itertools
import math
import string
import subprocess
import sys

from torch_or_skip import torch

import torch.distributed as dist  # noqa: E402
from torch.distributed.device_mesh import init_device_mesh  # noqa: E402
from torch.testing._internal.distributed.fake_pg import FakeStore  # noqa: E402

SHAPES = [(1,), (4,), (2, 3), (3, 2), (1, 4), (2, 2, 2), (2, 1, 3), (3, 2, 2), (2, 2, 1, 2)]


def sets_of(axes):
    """Returns all sets of axes in the order of mesh_groups.cpp."""
    for number in range(1, 2**len(axes)):
        yield tuple(axis for bit, axis in enumerate(axes) if number >> bit & 1)


def expected(shape, rank):
    axes = tuple(string.ascii_lowercase[:len(shape)])
    dist.init_process_group("fake", rank=rank, world_size=math.prod(shape), store=FakeStore())
    try:
        mesh = init_device_mesh("cpu", shape, mesh_dim_names=axes)
        groups = []
        for chosen in sets_of(axes):
            part = mesh[chosen]
            part = part._flatten() if len(chosen) > 1 else part
            groups.append(dist.get_process_group_ranks(part.get_group()))
        return list(mesh.get_coordinate()), groups
    finally:
        dist.destroy_process_group()


def numbers(text):
    return [int(word) for word in text.split()]


def main():
    # Each shape with none of its sizes inferred, and with each one of them.
    cases = [(shape, inferred) for shape in SHAPES for inferred in (None, *range(len(shape)))]
    lines = ""
    for shape, inferred in cases:
        sizes = [-1 if axis == inferred else size for axis, size in enumerate(shape)]
        lines += " ".join(map(str, [math.prod(shape), *sizes])) + "\n"
    answer = subprocess.run([sys.argv[1]], input=lines, capture_output=True, text=True, check=True)
    ours = iter(answer.stdout.splitlines())
    compared = 0
    for (shape, _), rank in itertools.chain.from_iterable(
            itertools.product([case], range(math.prod(case[0]))) for case in cases):
        coordinates, *groups = [numbers(part) for part in next(ours).split("|")]
        theirs = expected(shape, rank)
        assert (coordinates, groups) == theirs, (
            f"rank {rank} of {shape}: Python has {theirs}, we have {(coordinates, groups)}")
        compared += len(groups)
    assert next(ours, None) is None, "more lines than ranks"
    print(f"{compared} groups of {len(cases)} meshes are equal, with torch {torch.__version__}")


main()

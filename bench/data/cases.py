# SPDX-License-Identifier: Apache-2.0
"""The cases of bench/data: the data, the sides, and the target ratios.

A case of another kind of data is an entry of CASES, and its sides are functions in peers.py and in
the table of ours.cpp.
"""

import importlib.util
import os
import pathlib
import random
import struct
import subprocess
from typing import NamedTuple

import measure

PEERS = pathlib.Path(__file__).resolve().parent / "peers.py"


class Side(NamedTuple):
    """A program's argument, with its options. `needs` are Python modules; the side is skipped if
    one is missing. `ranks` are started by `lockstep run`."""
    name: str
    options: tuple = ()
    in_python: bool = False
    needs: tuple = ()
    ranks: int = 0

    def command(self, build, python, data):
        arguments = [self.name, *self.options, *(["--data", data] if data else [])]
        if self.in_python:
            return [python, PEERS, *arguments]
        if self.ranks:
            return measure.lockstep_run(build, self.ranks, "bench_data", *arguments)
        return [build / "bin" / "bench_data", *arguments]

    def why_not(self, python):
        for module in self.needs:
            if not has_module(python, module):
                return f"{python} has no {module}"
        return ""


class Case(NamedTuple):
    """The first side is ours. `targets` has the minimum ratio of a peer's cost to ours.
    `data(folder, python)` writes the input into a folder, and returns its path; empty if it
    cannot."""
    unit: str
    sides: dict
    targets: dict
    data: object = None


def has_module(python, module):
    look = f"import importlib.util, sys; sys.exit(importlib.util.find_spec({module!r}) is None)"
    if not python:
        return importlib.util.find_spec(module) is not None
    return subprocess.run([python, "-c", look], check=False).returncode == 0


TOKENS = 20_000_000


def random_tokens(folder, _python):
    """Writes uint16 without a header, like nanoGPT's prepare.py."""
    file, generator = folder / "train.bin", random.Random(1)
    block = struct.pack("<10000H", *(generator.randrange(50257) for _ in range(10000)))
    with open(file, "wb") as out:
        for _ in range(TOKENS // 10000):
            out.write(block)
    return file


def write_images(folder, python):
    """Writes JPEGs of ImageNet's usual size, by Pillow."""
    if not has_module(python, "PIL"):
        return ""
    subprocess.run([python, PEERS, "write-images", "--data", folder], check=True)
    return folder


def write_many_images(folder, python):
    """Creates 1.2 million files in 1000 classes, as links to a few images."""
    if not write_images(folder, python):
        return ""
    images = sorted(folder.glob("*/*.jpg"))
    links = folder / "links"
    for class_number in range(1000):
        place = links / f"class-{class_number}"
        place.mkdir(parents=True)
        for number in range(1200):
            os.link(images[(class_number + number) % len(images)], place / f"{number}.jpg")
    return links


CASES = {
    "images": Case(
        unit="us of CPU time an image",
        sides={
            "ImageFolder": Side("images-image-folder"),
            "with HostCache": Side("images-host-cache"),
            "torchvision": Side("images-torchvision", in_python=True,
                                needs=("torchvision", "PIL")),
        },
        targets={"torchvision": 2.5},
        data=write_images),
    "first-batch": Case(
        unit="ms from the index of 1.2 million files to a batch of 16 images",
        sides={
            "ImageFolder": Side("first-batch-image-folder", ("--threads", 1, "--batch-size", 16)),
            "torchvision": Side("first-batch-torchvision", ("--batch-size", 16), in_python=True,
                                needs=("torchvision", "PIL")),
        },
        targets={},
        data=write_many_images),
    "host-memory": Case(
        unit="MB of a HostCache in the memory of all ranks",
        sides={
            "4 ranks": Side("host-memory", ranks=4),
            "1 rank": Side("host-memory", ranks=1),
        },
        targets={"1 rank": 0.95},
        data=write_images),
    "in-memory": Case(
        unit="us of CPU time a sample",
        sides={
            "DataLoader": Side("in-memory-loader"),
            "DataLoader, 1 thread": Side("in-memory-loader", ("--threads", 1)),
            "torch::data": Side("in-memory-torch-data"),
            "TensorDataset": Side("in-memory-tensor-dataset", in_python=True),
            "torchvision": Side("in-memory-torchvision", in_python=True,
                                needs=("torchvision", "PIL")),
        },
        targets={"torch::data": 5, "torchvision": 40}),
    "step": Case(
        unit="ms a step",
        sides={
            "DataLoader": Side("step-loader", ("--threads", 1)),
            "cached batch": Side("step-cached"),
        },
        targets={"cached batch": 0.98}),
    "tokens": Case(
        unit="us of CPU time a batch of 12 x 1024 tokens",
        sides={
            "TokenFile": Side("tokens-file", ("--batch-size", 12)),
            "DataLoader": Side("tokens-loader", ("--batch-size", 12)),
            "nanoGPT": Side("tokens-nanogpt", ("--batch-size", 12), in_python=True,
                            needs=("numpy",)),
        },
        targets={"nanoGPT": 20},
        data=random_tokens),
}

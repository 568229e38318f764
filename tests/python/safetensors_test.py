#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Safetensors files and digests of tensors mean the same to Lockstep and to Python.

The test reads and writes the format by its specification. If Python's safetensors module is
installed, it must agree, byte for byte.
"""

import hashlib
import pathlib
import subprocess
import sys
import tempfile

from plain_safetensors import TYPES, bytes_of, read, write
from torch_or_skip import torch

try:
    import safetensors.torch as reference
except ImportError:
    reference = None

# Older modules do not support complex numbers.
KNOWN = TYPES.values() if reference is None else reference._TYPES.values()
METADATA = {"format": "pt", "accents": "é"} if reference is None else {"format": "pt"}


def samples():
    torch.manual_seed(1)
    tensors = {
        f"layer.{name}": (torch.randn(3, 5) * 50).to(dtype)
        for name, dtype in TYPES.items()
        if dtype in KNOWN
    }
    return tensors | {
        "scalar": torch.tensor(2.5), "empty": torch.empty(0, 4), "größe": torch.ones(2)
    }


def digest(tensors):
    total = hashlib.sha256()
    for tensor in tensors:
        line = f"{str(tensor.dtype)[6:]} {list(tensor.shape)}\n"
        total.update(line.encode() + bytes_of(tensor))
    return total.hexdigest()


def same(ours, theirs):
    assert ours.keys() == theirs.keys(), f"{list(ours)} are not {list(theirs)}"
    for name, tensor in theirs.items():
        assert ours[name].dtype == tensor.dtype and ours[name].shape == tensor.shape, name
        assert bytes_of(ours[name]) == bytes_of(tensor), name


def main():
    tensors = samples()
    with tempfile.TemporaryDirectory() as folder:
        by_hand, copied = pathlib.Path(folder, "by_hand"), pathlib.Path(folder, "copied")
        write(by_hand, tensors, METADATA)
        copy = subprocess.run(
            [sys.argv[1], by_hand, copied], stdout=subprocess.PIPE, text=True, check=True
        )
        same(read(copied, METADATA), tensors)
        header_length = int.from_bytes(copied.read_bytes()[:8], "little")
        assert header_length % 8 == 0, "the data is not aligned"
        assert copy.stdout.strip() == digest(tensors.values()), "the digests differ"
        if reference is not None:
            same(reference.load_file(copied), tensors)
            reference.save_file(tensors, by_hand, METADATA)
            assert copied.read_bytes() == by_hand.read_bytes(), "the bytes differ"
    print("equal to", "the specification" if reference is None else "the reference module")


main()

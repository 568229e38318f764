# SPDX-License-Identifier: Apache-2.0
"""Small data sets in the file formats of the large ones. Each picture has a stripe at its label's
place, so that a few steps of training suffice to tell them apart."""

import random
import struct


def pictures(count, channels, size):
    """Returns (label, pixels) of `count` pictures in ten classes."""
    noise = random.Random(count)
    for number in range(count):
        label = number % 10
        rows = [[255 if row // 2 == label else noise.randrange(64)] * size for row in range(size)]
        yield label, bytes(value for row in rows for value in row) * channels


def write_idx(folder, name, count):
    """Writes MNIST's files: train-images-idx3-ubyte, train-labels-idx1-ubyte for the name "train".
    """
    samples = list(pictures(count, channels=1, size=28))
    (folder / f"{name}-images-idx3-ubyte").write_bytes(
        struct.pack(">IIII", 0x803, count, 28, 28) + b"".join(pixels for _, pixels in samples))
    (folder / f"{name}-labels-idx1-ubyte").write_bytes(
        struct.pack(">II", 0x801, count) + bytes(label for label, _ in samples))


def write_fashion_mnist(folder):
    folder.mkdir(parents=True)
    write_idx(folder, "train", 512)
    write_idx(folder, "t10k", 125)  # Odd, so that two ranks have unequal shares.


def write_cifar10(folder):
    folder.mkdir(parents=True)
    names = [f"data_batch_{number}.bin" for number in range(1, 6)] + ["test_batch.bin"]
    for name in names:
        (folder / name).write_bytes(
            b"".join(bytes([label]) + pixels for label, pixels in pictures(100, 3, 32)))

# SPDX-License-Identifier: Apache-2.0
"""Small data sets in the file formats of the large ones. The position of a stripe in each image
is its label, so that some steps of training suffice to distinguish them."""

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


# --- Folders of images ---------------------------------------------------------------------------


def jpeg(blocks):
    """Returns a JPEG file of blocks of 8 x 8 equal pixels: rows of (Y, Cb, Cr), from -128 to 127.
    """
    def segment(marker, content):
        return bytes([0xff, marker]) + struct.pack(">H", len(content) + 2) + content

    height, width = len(blocks) * 8, len(blocks[0]) * 8
    bits, before = [], [0, 0, 0]
    for row in blocks:
        for block in row:
            for channel, value in enumerate(block):
                change = value - before[channel]
                before[channel] = value
                size = abs(change).bit_length()
                bits.append(f"{size:04b}")  # Each size has a code of four bits.
                if size:
                    bits.append(f"{change if change > 0 else change + 2**size - 1:0{size}b}")
                bits.append("0")  # The rest of the block is 0.
    text = "".join(bits)
    text += "1" * (-len(text) % 8)
    data = int(text, 2).to_bytes(len(text) // 8, "big").replace(b"\xff", b"\xff\0")
    components = b"".join(bytes([number, 0x11, 0]) for number in (1, 2, 3))
    return (b"\xff\xd8"
            + segment(0xdb, bytes([0, 8] + [1] * 63))
            + segment(0xc0, struct.pack(">BHHB", 8, height, width, 3) + components)
            + segment(0xc4, bytes([0x00, 0, 0, 0, 12] + [0] * 12 + list(range(12))))
            + segment(0xc4, bytes([0x10, 1] + [0] * 15 + [0]))
            + segment(0xda, bytes([3, 1, 0, 2, 0, 3, 0, 0, 63, 0])) + data + b"\xff\xd9")


def write_image_folder(folder, classes=4, images_each=40):
    """Writes train and val, with a folder of JPEGs for each class: a bright row of blocks at the
    position of the label, and noise."""
    noise = random.Random(1)
    for split, count in (("train", images_each), ("val", images_each // 4 + 1)):
        for label in range(classes):
            place = folder / split / f"class-{label}"
            place.mkdir(parents=True)
            for number in range(count):
                blocks = [[(100 if row == label + 1 else noise.randrange(-120, 0),
                            noise.randrange(-20, 20), noise.randrange(-20, 20))
                           for _ in range(7)] for row in range(classes + 2)]
                (place / f"{number}.jpg").write_bytes(jpeg(blocks))

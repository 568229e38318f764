#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Arrays, tokens and shards mean the same to Lockstep and to those who made the formats.

Arrays are NumPy's. Files of tokens are written as the scripts of nanoGPT, llm.c and Megatron-LM
write them. Shards are read and written by Python's tarfile and, if Python's webdataset module is
installed, by that, too: it must agree on every sample.
"""

import io
import pathlib
import struct
import subprocess
import sys
import tarfile
import tempfile

from torch_or_skip import torch

import numpy

try:
    import webdataset
except ImportError:
    webdataset = None

TYPES = {
    "Bool": numpy.bool_,
    "Byte": numpy.uint8,
    "Char": numpy.int8,
    "Short": numpy.int16,
    "Int": numpy.int32,
    "Long": numpy.int64,
    "UInt16": numpy.uint16,
    "UInt32": numpy.uint32,
    "UInt64": numpy.uint64,
    "Half": numpy.float16,
    "Float": numpy.float32,
    "Double": numpy.float64,
    "ComplexFloat": numpy.complex64,
    "ComplexDouble": numpy.complex128,
}


def ours(*words, text=None):
    done = subprocess.run([sys.argv[1], *map(str, words)],
                          input=text,
                          capture_output=True,
                          text=True,
                          check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


# --- Arrays --------------------------------------------------------------------------------------


def check_arrays(folder):
    names, generator = [], numpy.random.default_rng(1)
    for name, kind in TYPES.items():
        for shape in [(), (7,), (0, 3), (3, 4, 5)]:
            array = (generator.random(shape) * 100).astype(kind)
            for version in [(1, 0), (2, 0), (3, 0)]:
                with open(folder / f"{len(names)}.npy", "wb") as out:
                    numpy.lib.format.write_array(out, numpy.asarray(array), version)
                names.append(name)
    files = [folder / f"{i}.npy" for i in range(len(names))]
    lines = iter(ours("arrays", *files))
    for name, file, found, sizes, values in zip(names, files, lines, lines, lines, strict=True):
        loaded = numpy.load(file)
        assert found == name, f"{loaded.dtype}: {found}"
        assert tuple(map(int, sizes.split())) == loaded.shape
        assert values == (loaded.tobytes().hex() or "-"), f"{loaded.dtype} {loaded.shape}"


# --- Tokens --------------------------------------------------------------------------------------


def check_windows(tokens, length, stride, raw, *files):
    lines = ours("tokens", length, stride, raw, *files)
    begins = range(0, len(tokens) - length, stride)  # As range(len(data) - block_size) in nanoGPT.
    assert len(lines) == len(begins), f"{len(lines)} windows, not {len(begins)}"
    for line, begin in zip(lines, begins):
        numbers = list(map(int, line.split()))
        assert numbers[:length] == tokens[begin:begin + length].tolist()
        assert numbers[length:] == tokens[begin + 1:begin + 1 + length].tolist()


def write_llm_c(file, tokens, magic, version, kind):
    """As write_datafile() of llm.c's dev/data/data_common.py."""
    header = numpy.zeros(256, dtype=numpy.int32)
    header[0], header[1], header[2] = magic, version, len(tokens)
    file.write_bytes(header.tobytes() + tokens.astype(kind).tobytes())


def write_megatron(prefix, documents, code, kind):
    """As IndexedDatasetBuilder of Megatron-LM's core/datasets/indexed_dataset.py: X.bin and X.idx
    from documents, which are lists of sequences."""
    sequences = [sequence for document in documents for sequence in document]
    lengths = numpy.array([len(sequence) for sequence in sequences], dtype=numpy.int32)
    ends = numpy.cumsum(lengths.astype(numpy.int64)) * numpy.dtype(kind).itemsize
    pointers = numpy.concatenate([[0], ends[:-1]]).astype(numpy.int64)
    firsts = numpy.cumsum([0] + [len(document) for document in documents]).astype(numpy.int64)
    prefix.with_suffix(".bin").write_bytes(numpy.concatenate(sequences).astype(kind).tobytes())
    prefix.with_suffix(".idx").write_bytes(b"MMIDIDX\x00\x00" + struct.pack("<Q", 1) +
                                           struct.pack("<B", code) +
                                           struct.pack("<QQ", len(sequences), len(firsts)) +
                                           lengths.tobytes() + pointers.tobytes() +
                                           firsts.tobytes())


def check_tokens(folder):
    generator = numpy.random.default_rng(2)
    tokens = generator.integers(0, 50257, 1000)
    nano = folder / "nano.bin"
    tokens.astype(numpy.uint16).tofile(nano)
    for length, stride in [(1, 1), (8, 8), (8, 3), (999, 999), (64, 100)]:
        check_windows(tokens, length, stride, 1, nano)
    gpt2, llama3 = folder / "gpt2.bin", folder / "llama3.bin"
    write_llm_c(gpt2, tokens, 20240520, 1, numpy.uint16)
    check_windows(tokens, 32, 32, 0, gpt2)
    large = tokens + 78000  # Llama 3's vocabulary has 128256 tokens.
    write_llm_c(llama3, large, 20240801, 7, numpy.uint32)
    check_windows(large, 32, 32, 0, llama3)
    cuts = [0, 100, 130, 400, 401, 1000]
    sequences = [tokens[begin:end] for begin, end in zip(cuts, cuts[1:])]
    for code, kind in [(8, numpy.uint16), (4, numpy.int32), (5, numpy.int64)]:
        prefix = folder / f"megatron{code}"
        write_megatron(prefix, [sequences[:2], sequences[2:3], sequences[3:]], code, kind)
        check_windows(tokens, 32, 32, 0, prefix)


# --- Shards --------------------------------------------------------------------------------------


def samples():
    generator = numpy.random.default_rng(3)
    for i in range(30):
        key = "folder/" * (i % 3) + f"{i:04d}" + "é" * (i % 2) + "n" * (70 * (i % 4))
        yield key.encode(), {b"jpg": generator.bytes(50 * i), b"cls": str(i).encode()}


def line_of(key, parts):
    words = [key.hex()]
    for suffix, content in sorted(parts.items()):
        words += [suffix.hex(), content.hex() or "-"]
    return " ".join(words)


def write_tar(file, members, kind):
    with tarfile.open(file, "w", format=kind) as tar:
        for key, parts in members:
            for suffix, content in parts.items():
                info = tarfile.TarInfo(key.decode() + "." + suffix.decode())
                info.size = len(content)
                tar.addfile(info, io.BytesIO(content))


def read_tars(files):
    members = {}
    for file in files:
        with tarfile.open(file) as tar:
            for info in tar:
                members[info.name.encode()] = tar.extractfile(info).read()
    return members


def by_webdataset(files):
    dataset = webdataset.WebDataset([str(file) for file in files], shardshuffle=False)
    for sample in dataset:
        parts = {k.encode(): v for k, v in sample.items() if not k.startswith("__")}
        yield sample["__key__"].encode(), parts


def check_shards(folder):
    expected = list(samples())
    lines = [line_of(key, parts) for key, parts in expected]
    theirs = folder / "theirs.tar"
    for kind in [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT]:
        short = [each for each in expected if kind != tarfile.USTAR_FORMAT or len(each[0]) < 90]
        write_tar(theirs, short, kind)
        found = ours("shards", theirs)
        assert found == [line_of(*each) for each in short], f"tarfile's format {kind}"

    ours("write", folder / "ours", 8, text="\n".join(lines))
    files = sorted(folder.glob("ours-*.tar"))
    assert len(files) == 4, files
    assert ours("shards", str(folder / "ours-{000000..000003}.tar")) == lines
    flat = {key + b"." + suffix: content
            for key, parts in expected for suffix, content in parts.items()}
    assert read_tars(files) == flat
    subprocess.run(["tar", "-tf", files[0]], check=True, capture_output=True)

    if webdataset is None:
        return "; webdataset is not installed"
    assert [line_of(key, parts) for key, parts in by_webdataset(files)] == lines
    with webdataset.ShardWriter(str(folder / "web-%06d.tar"), maxcount=8, verbose=0) as writer:
        for key, parts in expected:
            writer.write({"__key__": key.decode()} | {k.decode(): v for k, v in parts.items()})
    assert sorted(ours("shards", str(folder / "web-{000000..000003}.tar"))) == sorted(lines)
    return f", and webdataset {webdataset.__version__}"


def main():
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        check_arrays(folder)
        check_tokens(folder)
        peer = check_shards(folder)
    print(f"equal to NumPy {numpy.__version__} and tarfile{peer}; torch {torch.__version__}")


main()

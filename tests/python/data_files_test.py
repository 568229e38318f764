#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Arrays, tokens and shards mean the same to Lockstep and to those who made the formats.

Arrays are NumPy's. Files of tokens are written as the scripts of nanoGPT, llm.c, Megatron-LM and
fairseq write them. Shards are read and written by Python's tarfile and, if Python's webdataset
module is installed, by that, too: it must agree on every sample. The folder field has small files
that others made.
"""

import bz2
import gzip

import io
import lzma
import os
import pathlib
import pickle
import random
import shutil
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

FIELD = pathlib.Path(__file__).with_name("field")

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


class Program:
    """data_files, which answers many commands: its start takes longer than most of them."""

    def __init__(self):
        self.process = subprocess.Popen([sys.argv[1]], stdin=subprocess.PIPE,
                                        stdout=subprocess.PIPE, text=True)

    def ask(self, *words):
        """Returns the lines of the answer, and the Error's message or None."""
        self.process.stdin.write("\t".join(map(str, words)) + "\n")
        self.process.stdin.flush()
        lines = []
        for line in self.process.stdout:
            line = line.rstrip("\n")
            if line == "done":
                return lines, None
            if line.startswith("refused "):
                return lines, line
            lines.append(line)
        raise AssertionError(f"{words}: data_files ended with {self.process.wait()}")

    def end(self):
        self.process.stdin.close()
        assert self.process.wait() == 0, self.process.returncode
        self.process.stdout.close()


program = Program()


def ours(*words):
    lines, message = program.ask(*words)
    assert message is None, f"{words}: {message}"
    return lines


def refusal(*words):
    """Returns the message of the Error that ours() ends with."""
    lines, message = program.ask(*words)
    assert message is not None, f"{words}: {lines}"
    return message


# --- Arrays --------------------------------------------------------------------------------------


def check_array(lines, name, loaded, where):
    """Compares the four lines of an array with what numpy.load() has returned."""
    found, sizes, strides, values = (next(lines) for _ in range(4))
    assert found == name, f"{where}: {found}"
    assert tuple(map(int, sizes.split())) == loaded.shape, where
    if loaded.size > 1:
        of_values = [stride // loaded.itemsize for stride in loaded.strides]
        pairs = zip(map(int, strides.split()), of_values, loaded.shape)
        assert all(ours == theirs or size == 1 for ours, theirs, size in pairs), where
    assert values == (loaded.tobytes().hex() or "-"), where


def arrays():
    generator = numpy.random.default_rng(1)
    for name, kind in TYPES.items():
        for shape in [(), (7,), (0, 3), (3, 4, 5), (1, 6), (5, 1)]:
            array = (generator.random(shape) * 100).astype(kind)
            yield name, numpy.asarray(array)
            yield name, numpy.asfortranarray(array)


def check_arrays(folder):
    names = []
    for name, array in arrays():
        for version in [(1, 0), (2, 0), (3, 0)]:
            with open(folder / f"{len(names)}.npy", "wb") as out:
                numpy.lib.format.write_array(out, array, version)
            names.append(name)
    files = [folder / f"{i}.npy" for i in range(len(names))]
    lines = iter(ours("arrays", *files))
    for name, file in zip(names, files):
        check_array(lines, name, numpy.load(file), file)


def npy_text(text, values):
    """A .npy with this header, as other writers make it."""
    header = text.encode() + b" " * ((53 - len(text)) % 64) + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header + values


def check_headers(folder):
    values = numpy.arange(12, dtype=numpy.float32)
    for text in ["{'descr': '<f4', 'fortran_order': False, 'shape': (3L, 4L), }",  # Python 2.
                 "{'descr': '=f4', 'fortran_order': False, 'shape': (3, 4), }",
                 "{'descr': 'f4', 'fortran_order': True, 'shape': (3, 4), }",
                 "{'descr': 'float32', 'fortran_order': False, 'shape': (3, 4), }",
                 "{'descr': '<f', 'fortran_order': False, 'shape': (3, 4), }",
                 "{'shape':(12,),'fortran_order':False,'descr':'<f4'}"]:
        file = folder / "text.npy"
        file.write_bytes(npy_text(text, values.tobytes()))
        check_array(iter(ours("arrays", file)), "Float", numpy.load(file), text)
    unaligned = folder / "unaligned.npy"
    text = b"{'descr': '<f4', 'fortran_order': False, 'shape': (12,)}\n"
    unaligned.write_bytes(b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text +
                          values.tobytes())
    assert unaligned.stat().st_size % 4 != 0
    check_array(iter(ours("arrays", unaligned)), "Float", numpy.load(unaligned), text)
    check_array(iter(ours("arrays", FIELD / "native.npy")), "Float",
                numpy.load(FIELD / "native.npy"), "native.npy")


def check_unsupported_types(folder):
    assert "unsupported" in refusal("arrays", FIELD / "datetime.npy")
    assert "'<M8[D]'" in refusal("arrays", FIELD / "datetime.npy")
    for kind in ["M8[ns]", "m8[s]", "S5", "U3", "V7", ">f4", ">i8", "longdouble", "clongdouble",
                 "i4,f8", [("a", "f4"), ("b", "i4", (2,))], "O"]:
        file = folder / "odd.npy"
        numpy.save(file, numpy.zeros(3, dtype=kind), allow_pickle=True)
        assert "unsupported" in refusal("arrays", file), kind


def check_npz(folder):
    generator = numpy.random.default_rng(4)
    named = {f"{'n' * (i % 9)}{i}{name}": array
             for i, (name, array) in enumerate(arrays()) if i % 5 == 0}
    named["folder/é"] = generator.random((64, 300)).astype(numpy.float32)
    for save in [numpy.savez, numpy.savez_compressed]:
        file = folder / "arrays.npz"
        save(file, **named)
        lines = iter(ours("npz", file, *named))
        assert [bytes.fromhex(word).decode() for word in next(lines).split()] == list(named)
        with numpy.load(file) as loaded:
            for name in named:
                kind = next(key for key, value in TYPES.items() if value == loaded[name].dtype)
                check_array(lines, kind, loaded[name], name)
        text = refusal("npz", file, "absent")
        assert "misuse" in text and "'n10Bool'" in text, text
        whole = file.read_bytes()
        file.write_bytes(whole[:len(whole) // 2])
        refusal("npz", file)
    numpy.savez_compressed(folder / "one.npz", numpy.arange(5))
    assert ours("arrays", folder / "one.npz")[0] == "Long"
    packed = bytearray((folder / "one.npz").read_bytes())
    packed[len(b"PK") + 60] ^= 0x20
    (folder / "one.npz").write_bytes(packed)
    assert "corrupt" in refusal("arrays", folder / "one.npz")


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


def check_arrays_of_tokens(folder):
    check_windows(numpy.load(FIELD / "t.npy"), 8, 8, 0, FIELD / "t.npy")
    for kind in ["u1", "i1", "<i2", "<u2", "<i4", "<u4", "<i8", "<u8"]:
        tokens = numpy.arange(100).astype(kind)
        numpy.save(folder / "tokens.npy", tokens)
        check_windows(tokens, 8, 3, 0, folder / "tokens.npy")
    for odd in [numpy.zeros(9), numpy.zeros((3, 3), "u2"), numpy.zeros(9, ">u2")]:
        numpy.save(folder / "odd.npy", odd)
        assert "unsupported" in refusal("tokens", 2, 2, 0, folder / "odd.npy")
    numpy.save(folder / "huge.npy", numpy.array([1, 2**63, 3], dtype="u8"))
    assert "corrupt" in refusal("tokens", 2, 2, 0, folder / "huge.npy")


def write_fairseq(prefix, sequences, code, kind):
    """As MMapIndexedDatasetBuilder of fairseq's data/indexed_dataset.py."""
    lengths = numpy.array([len(sequence) for sequence in sequences], dtype=numpy.int32)
    ends = numpy.cumsum(lengths.astype(numpy.int64)) * numpy.dtype(kind).itemsize
    pointers = numpy.concatenate([[0], ends[:-1]]).astype(numpy.int64)
    prefix.with_suffix(".bin").write_bytes(numpy.concatenate(sequences).astype(kind).tobytes())
    prefix.with_suffix(".idx").write_bytes(b"MMIDIDX\x00\x00" + struct.pack("<Q", 1) +
                                           struct.pack("<B", code) +
                                           struct.pack("<Q", len(sequences)) + lengths.tobytes() +
                                           pointers.tobytes())


def check_indexes(folder):
    multimodal = numpy.fromfile(FIELD / "mg_u16_mm.bin", dtype=numpy.uint16)
    assert len(multimodal) == 35
    check_windows(multimodal, 8, 3, 0, FIELD / "mg_u16_mm")
    assert ours("documents", FIELD / "mg_u16_mm.idx") == ["0 12 20 27 31 "]
    tokens = numpy.random.default_rng(5).integers(0, 30000, 300)
    sequences = numpy.split(tokens, [100, 130, 131, 250])
    for code, kind in [(8, numpy.uint16), (9, numpy.uint32), (4, numpy.int32), (5, numpy.int64)]:
        prefix = folder / f"fairseq{code}"
        write_fairseq(prefix, sequences, code, kind)
        check_windows(tokens, 16, 16, 0, prefix)
        assert ours("documents", prefix) == ["0 100 130 131 250 "]
    (folder / "old.bin").write_bytes(bytes(100))
    (folder / "old.idx").write_bytes(b"TNTIDX\x00\x00" + struct.pack("<Q", 1) + bytes(100))
    assert "--dataset-impl mmap" in refusal("tokens", 2, 2, 0, folder / "old")


def other_formats(folder):
    """Yields files that are not raw tokens, each with a word that its Error must contain."""
    array, text = numpy.arange(200, dtype=numpy.uint16), bytes(range(256)) * 4
    numpy.save(folder / "a.npy", array)
    yield "npy", (folder / "a.npy").read_bytes()
    for save in [numpy.savez, numpy.savez_compressed]:
        save(folder / "a.npz", array)
        yield "zip", (folder / "a.npz").read_bytes()
    torch.save(torch.arange(200), folder / "a.pt")
    yield "zip", (folder / "a.pt").read_bytes()
    torch.save(torch.arange(200), folder / "a.pt", _use_new_zipfile_serialization=False)
    yield "torch.save", (folder / "a.pt").read_bytes()
    yield "gzip", gzip.compress(text)
    yield "bzip2", bz2.compress(text)
    yield "xz", lzma.compress(text)
    if shutil.which("zstd"):
        yield "zstd", subprocess.run(["zstd", "-c"], input=text, capture_output=True,
                                     check=True).stdout
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        for value in [array, array.tolist(), {"tokens": array}, tuple(array.tolist())]:
            yield "pickle", pickle.dumps(value, protocol)
    yield "Parquet", b"PAR1" + bytes(100) + b"PAR1"
    yield "Arrow", b"ARROW1\0\0" + bytes(100)
    yield "Arrow", struct.pack("<IiI", 0xffffffff, 120, 16) + bytes(1000)
    yield "HDF5", b"\x89HDF\r\n\x1a\n" + bytes(100)
    for kind in [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT]:
        write_tar(folder / "a.tar", [(b"a", {b"txt": text})], kind)
        yield "tar", (folder / "a.tar").read_bytes()
    yield "tar", (FIELD / "mk_v7.tar").read_bytes()
    write_llm_c(folder / "a.bin", array, 20240520, 1, numpy.uint16)
    yield "llm.c", (folder / "a.bin").read_bytes()
    write_llm_c(folder / "a.bin", array, 20240522, 1, numpy.uint16)
    yield "HellaSwag", (folder / "a.bin").read_bytes()
    yield "Megatron", (FIELD / "mg_u16_mm.idx").read_bytes()
    header = b'{"a":{"dtype":"I64","shape":[2],"data_offsets":[0,16]}}'
    yield "safetensors", struct.pack("<Q", len(header)) + header + bytes(16)
    yield "text", b'{"text": "Some words of a sample that has not been tokenized."}\n' * 3


def check_other_formats(folder):
    for word, content in other_formats(folder):
        file = folder / "foreign.bin"
        file.write_bytes(content + bytes(len(content) % 2 if word in ("gzip", "text") else 0))
        text = refusal("tokens", 2, 2, 1, file)
        assert word in text and "misuse" in text, f"{word}: {text}"
        if word not in ("npy", "llm.c"):  # These are read without `raw`.
            text = refusal("tokens", 2, 2, 0, file)
            assert word in text or "MMIDIDX" in text, f"{word}: {text}"
    generator = numpy.random.default_rng(6)
    for vocabulary in [65, 50257, 65536]:  # Real tokens do not match a known format.
        for _ in range(20):
            tokens = generator.integers(0, vocabulary, 100).astype(numpy.uint16)
            tokens.tofile(folder / "real.bin")
            check_windows(tokens, 50, 50, 1, folder / "real.bin")


# --- IDX -----------------------------------------------------------------------------------------


def write_idx(file, array):
    content = bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape)
    content += array.astype(numpy.uint8).tobytes()
    file.write_bytes(gzip.compress(content) if file.suffix == ".gz" else content)


def check_idx(folder):
    """EMNIST's names, with and without gzip, by prefix, by folder and by MNIST's names."""
    generator = numpy.random.default_rng(7)
    data = {}
    folder = folder / "emnist"
    folder.mkdir()
    for split, end in [("letters", ".gz"), ("digits", "")]:
        for name in ["train", "test"]:
            images = generator.integers(0, 256, (9, 28, 28))
            labels = generator.integers(1, 27, 9)
            prefix = f"emnist-{split}-{name}"
            write_idx(folder / f"{prefix}-images-idx3-ubyte{end}", images)
            write_idx(folder / f"{prefix}-labels-idx1-ubyte{end}", labels)
            data[split, name] = [images.astype(numpy.uint8).tobytes().hex(),
                                 labels.astype(numpy.int64).tobytes().hex()]
    for (split, name), expected in data.items():
        assert ours("idx", folder / f"emnist-{split}", int(name == "train")) == expected
    text = refusal("idx", folder, 1)
    assert "emnist-letters" in text and "emnist-digits" in text, text
    assert "not found" in refusal("idx", folder / "emnist-absent", 1)
    for file in folder.glob("emnist-digits-*"):
        file.rename(folder / file.name.removeprefix("emnist-digits-").replace("-idx", ".idx"))
    for name in ["train", "test"]:  # MNIST's names come first.
        assert ours("idx", folder, int(name == "train")) == data["digits", name]
    for file in [*folder.glob("train-*"), *folder.glob("test-*")]:
        file.unlink()
    assert ours("idx", folder, 1) == data["letters", "train"]  # The only dataset in the folder.


# --- Shards --------------------------------------------------------------------------------------


def samples():
    generator = numpy.random.default_rng(3)
    for i in range(30):
        key = "folder/" * (i % 3) + f"{i:04d}" + "é" * (i % 2) + "n" * (70 * (i % 4))
        yield key.encode(), {b"jpg": generator.bytes(50 * i), b"cls": str(i).encode()}


def line_of(key, parts):
    words = [key.hex()]
    for suffix, content in sorted(parts.items()):
        words += [suffix.hex() or "-", content.hex() or "-"]
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
        own = ["__key__", "__url__", "__local_path__"]
        parts = {k.encode(): v for k, v in sample.items() if k not in own}
        yield sample["__key__"].encode(), parts


def shards_by_us(*sources, how="shards", skipped=0):
    lines = ours(how, *sources)
    assert lines[-1] == f"{skipped} skipped", lines[-1]
    return lines[:-1]


def odd_names(seed):
    """Names from which WebDataset derives keys and parts in unexpected ways."""
    generator = random.Random(seed)
    names = {"a.txt", "d/.y.jpg", "__x__/b.txt", "a.B.TXT", "d.e/.h.txt", "..txt", "x/..txt"}
    while len(names) < 40:
        name = "".join(generator.choice("aB./_é\n") for _ in range(generator.randrange(1, 9)))
        if name.strip("/") == name and "//" not in name:
            names.add(name)
    return sorted(names)


def odd_archives(folder):
    """Yields archives, with their numbers of entries that are neither files nor folders."""
    types = [tarfile.SYMTYPE, tarfile.FIFOTYPE, tarfile.CHRTYPE, tarfile.BLKTYPE, b"Z", b"M"]
    for kind in [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT]:
        for seed in range(4):
            file = folder / f"odd-{kind}-{seed}.tar"
            skipped = 0
            with tarfile.open(file, "w", format=kind) as tar:
                for i, name in enumerate(odd_names(seed)):
                    info = tarfile.TarInfo(name)
                    if i % 5 == 4:
                        info.type = types[(i // 5 + seed) % len(types)]
                        skipped += 1
                    elif i % 7 == 6:
                        info.type = tarfile.DIRTYPE
                    content = name.encode() * i if info.isreg() else b""
                    info.size = len(content)
                    tar.addfile(info, io.BytesIO(content))
            yield file, skipped
    tree = folder / "tree"
    tree.mkdir()
    (tree / "a.bin").write_bytes(b"dense")
    for name, size in [("hole.bin", 70000), ("tail.bin", 123457), ("empty.bin", 0)]:
        with open(tree / name, "wb") as out:
            out.truncate(size)
            for place in range(0, size - 9000, 17000):
                if name == "tail.bin":
                    out.seek(place)
                    out.write(bytes([place % 251]) * 4321)
    (tree / ".hidden.txt").write_text("hidden")
    for form in ["v7", "ustar", "gnu", "oldgnu", "pax"]:
        file = folder / f"tree-{form}.tar"
        sparse = [] if form in ("v7", "ustar") else ["--sparse"]
        subprocess.run(["tar", "-C", folder, f"--format={form}", *sparse, "-cf", file, "tree"],
                       check=True)
        yield file, 0
    for version in ["0.0", "0.1", "1.0"]:
        file = folder / f"tree-{version}.tar"
        subprocess.run(["tar", "-C", folder, "--format=pax", "--sparse", "-cf", file,
                        f"--sparse-version={version}", "tree"], check=True)
        yield file, 0
    label = folder / "label.tar"
    subprocess.run(["tar", "-C", folder, "-V", "a label", "-cf", label, "tree"], check=True)
    yield label, 0
    for name, skipped in [("v7", 0), ("label", 0), ("gzip", 0), ("dirs_pax", 2), ("links_pax", 1),
                          ("hidden_pax", 0)]:
        shutil.copy(FIELD / f"mk_{name}.tar", folder)  # Its index is beside it.
        yield folder / f"mk_{name}.tar", skipped


def endings(folder):
    """Yields archives with various ends, all with the samples of the first one."""
    whole = (folder / "ours-000000.tar").read_bytes()
    contents = {"none": whole[:-1024], "half": whole[:-512], "long": whole + bytes(50000),
                "garbage": whole + b"garbage", "twice": whole * 2}
    for name, content in contents.items():
        file = folder / f"end-{name}.tar"
        file.write_bytes(content)
        yield file


def check_odd_shards(folder):
    for file, skipped in odd_archives(folder):
        found = shards_by_us(file, skipped=skipped)
        assert found, file
        if webdataset is not None:
            assert found == [line_of(*each) for each in by_webdataset([file])], file
        if skipped or "v7" in file.name or "label" in file.name or "gzip" in file.name:
            refusal("strict", file)
    first = shards_by_us(folder / "ours-000000.tar", how="strict")
    for file in endings(folder):
        assert shards_by_us(file) == first, file
        if webdataset is not None:
            assert [line_of(*each) for each in by_webdataset([file])] == first, file
        if file.name != "end-long.tar":
            assert "corrupt" in refusal("strict", file), file
    assert shards_by_us(folder / "end-twice.tar", how="concatenated") == first * 2
    assert shards_by_us(folder / "end-twice.tar") == first  # With another index.


def check_compressed_shards(folder):
    plain = folder / "ours-000001.tar"
    expected = shards_by_us(plain)
    content = plain.read_bytes()
    packed = {".tar.gz": gzip.compress(content), ".tgz": gzip.compress(content),
              ".tar.bz2": bz2.compress(content), ".tar.xz": lzma.compress(content)}
    if shutil.which("zstd"):
        packed[".tar.zst"] = subprocess.run(["zstd", "-c"], input=content, capture_output=True,
                                            check=True).stdout
    for end, bytes_ in packed.items():
        file = folder / f"packed{end}"
        file.write_bytes(bytes_)
        assert shards_by_us(file) == expected, file
        if webdataset is not None and "zst" not in end:
            assert [line_of(*each) for each in by_webdataset([file])] == expected, file
        assert "unsupported" in refusal("strict", file)
        file.write_bytes(bytes_[:len(bytes_) // 2])
        assert "corrupt" in refusal("shards", file)


def check_hard_links(folder):
    tree = folder / "links"
    tree.mkdir()
    (tree / "a.jpg").write_bytes(b"image")
    (tree / "a.cls").write_bytes(b"1")
    os.link(tree / "a.jpg", tree / "b.jpg")
    (tree / "b.cls").write_bytes(b"2")
    file = folder / "links.tar"
    names = ["a.jpg", "a.cls", "b.cls", "b.jpg"]
    for form in ["v7", "ustar", "gnu", "pax"]:
        subprocess.run(["tar", "-C", tree, f"--format={form}", "-cf", file, *names], check=True)
        expected = [line_of(b"a", {b"jpg": b"image", b"cls": b"1"}),
                    line_of(b"b", {b"jpg": b"image", b"cls": b"2"})]
        assert shards_by_us(file) == expected, form
        assert "--hard-dereference" in refusal("strict", file) or form == "v7"


def check_shards(folder):
    expected = list(samples())
    lines = [line_of(key, parts) for key, parts in expected]
    theirs = folder / "theirs.tar"
    for kind in [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT]:
        short = [each for each in expected if kind != tarfile.USTAR_FORMAT or len(each[0]) < 90]
        write_tar(theirs, short, kind)
        found = shards_by_us(theirs)
        assert found == [line_of(*each) for each in short], f"tarfile's format {kind}"

    (folder / "samples.txt").write_text("\n".join(lines))
    ours("write", folder / "ours", 8, folder / "samples.txt")
    files = sorted(folder.glob("ours-*.tar"))
    assert len(files) == 4, files
    assert shards_by_us(str(folder / "ours-{000000..000003}.tar")) == lines
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
    assert sorted(shards_by_us(str(folder / "web-{000000..000003}.tar"))) == sorted(lines)
    return f", and webdataset {webdataset.__version__}"


def main():
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        check_arrays(folder)
        check_headers(folder)
        check_unsupported_types(folder)
        check_npz(folder)
        check_tokens(folder)
        check_arrays_of_tokens(folder)
        check_indexes(folder)
        check_other_formats(folder)
        check_idx(folder)
        peer = check_shards(folder)
        check_odd_shards(folder)
        check_compressed_shards(folder)
        check_hard_links(folder)
    program.end()
    print(f"equal to NumPy {numpy.__version__} and tarfile{peer}; torch {torch.__version__}")


main()

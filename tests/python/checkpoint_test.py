#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Python reads Lockstep's checkpoints with only json and safetensors. Every tensor is in one file,
bit for bit as saved. The checksums are those of docs/checkpoint-format.md. Without Python's
safetensors module, the test reads the files by their specification.
"""

import argparse
import hashlib
import json
import pathlib
import re
import subprocess
import tempfile

import plain_safetensors
from torch_or_skip import torch

try:
    from safetensors import safe_open
except ImportError:
    safe_open = None

VALUES = {"epoch": 3, "lr": 0.1, "best": {"double": "inf"}, "amsgrad": False, "name": "größe",
          "betas": [0.9, 0.999]}


def crc32c_table():
    """Returns the table of the Castagnoli polynomial, its bits reversed (RFC 3720, appendix B.4).
    """
    table = []
    for value in range(256):
        for _ in range(8):
            value = value >> 1 ^ (0x82F63B78 if value & 1 else 0)
        table.append(value)
    return table


TABLE = crc32c_table()


def crc32c(data):
    """Returns the checksum in the form of manifests: 8 hexadecimal digits."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc = crc >> 8 ^ TABLE[(crc ^ byte) & 255]
    return f"{crc ^ 0xFFFFFFFF:08x}"


def digest(tensor):
    line = f"{str(tensor.dtype)[6:]} {list(tensor.shape)}\n"
    return hashlib.sha256(line.encode() + plain_safetensors.bytes_of(tensor)).hexdigest()


def tensors_in(file, metadata):
    if safe_open is None:
        return plain_safetensors.read(file, metadata)
    with safe_open(file, framework="pt") as opened:
        return {name: opened.get_tensor(name) for name in opened.keys()}


def check_file(file, entry):
    """Checks the checksums of a file, and its tensors."""
    content = file.read_bytes()
    assert len(content) == entry["bytes"], file
    data = 8 + int.from_bytes(content[:8], "little")
    header = json.loads(content[8:data])
    assert crc32c(content[:data]) == entry["header_crc32c"], file
    tensors = tensors_in(file, header.pop("__metadata__", {}))
    assert tensors.keys() == header.keys() == entry["tensors"].keys(), file
    for name, crc in entry["tensors"].items():
        begin, end = header[name]["data_offsets"]
        assert crc32c(content[data + begin:data + end]) == crc, name
    return tensors


def check(checkpoint, printed):
    text = (checkpoint / "manifest.json").read_bytes()
    manifest = json.loads(text)
    assert manifest["crc32c"] == crc32c(text[:text.rindex(b',\n  "crc32c"')]), "the manifest's CRC"
    assert manifest["step"] == 7 and manifest["world_size"] == 2
    values = {"model": {}, "rest": VALUES, "gpt": {}}
    assert manifest["values"] == values, manifest["values"]

    expected = {(part, name): digest for part, name, digest in
                re.findall(r"tensor (\w+) (\S+) ([0-9a-f]{64})$", printed, re.M)}
    found = {}
    for entry in manifest["files"]:
        for name, tensor in check_file(checkpoint / entry["name"], entry).items():
            assert (entry["part"], name) not in found, f"{name} is there twice"
            found[entry["part"], name] = digest(tensor)
    assert found == expected, sorted(set(found.items()) ^ set(expected.items()))
    listed = {path.name for path in checkpoint.iterdir()}
    assert listed == {"manifest.json"} | {entry["name"] for entry in manifest["files"]}, listed
    return found, len(manifest["files"])


def check_merged(lockstep, folder, found):
    """Checks the one file of all tensors of a part that `lockstep checkpoint merge` writes."""
    for part in ("model", "gpt"):
        file = pathlib.Path(folder, part + ".safetensors")
        subprocess.run([lockstep, "checkpoint", "merge", folder, file, "--part", part],
                       stdout=subprocess.DEVNULL,
                       check=True)
        merged = {(part, name): digest(tensor)
                  for name, tensor in tensors_in(file, {"format": "pt"}).items()}
        assert merged == {key: value for key, value in found.items() if key[0] == part}, part


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("program")
    parser.add_argument("--lockstep", required=True)
    options = parser.parse_args()
    assert crc32c(b"123456789") == "e3069283"
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        command = [options.lockstep, "run", "-n", "2", options.program, folder]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
        found, files = check(pathlib.Path(folder, "latest"), done.stdout)
        check_merged(options.lockstep, folder, found)
    print(len(found), "tensors in", files, "files, read with",
          "the specification" if safe_open is None else "safetensors")


main()

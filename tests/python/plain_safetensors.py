# SPDX-License-Identifier: Apache-2.0
"""Safetensors files, written and read by the specification alone."""

import ctypes
import json
import struct

from torch_or_skip import torch

# In the reference writer's order of rank, which puts the last one first.
TYPES = {
    "BOOL": torch.bool,
    "U8": torch.uint8,
    "I8": torch.int8,
    "F8_E5M2": torch.float8_e5m2,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E8M0": torch.float8_e8m0fnu,
    "F8_E4M3FNUZ": torch.float8_e4m3fnuz,
    "F8_E5M2FNUZ": torch.float8_e5m2fnuz,
    "I16": torch.int16,
    "U16": torch.uint16,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I32": torch.int32,
    "U32": torch.uint32,
    "F32": torch.float32,
    "C64": torch.complex64,
    "F64": torch.float64,
    "I64": torch.int64,
    "U64": torch.uint64,
}

def bytes_of(tensor):
    tensor = tensor.detach().contiguous()
    return ctypes.string_at(tensor.data_ptr(), tensor.nbytes)


def write(file, tensors, metadata):
    header, data = {"__metadata__": metadata}, b""
    for name, tensor in tensors.items():
        kind = next(key for key, dtype in TYPES.items() if dtype == tensor.dtype)
        values = bytes_of(tensor)
        offsets = [len(data), len(data) + len(values)]
        header[name] = {"dtype": kind, "shape": list(tensor.shape), "data_offsets": offsets}
        data += values
    text = json.dumps(header).encode()
    file.write_bytes(struct.pack("<Q", len(text)) + text + data)


def read(file, metadata):
    content = file.read_bytes()
    (length,) = struct.unpack("<Q", content[:8])
    header = json.loads(content[8 : 8 + length])
    assert header.pop("__metadata__", {}) == metadata
    tensors = {}
    for name, entry in header.items():
        begin, end = entry["data_offsets"]
        data = bytearray(content[8 + length + begin : 8 + length + end])
        values = torch.frombuffer(data, dtype=torch.uint8) if data else torch.empty(0).byte()
        assert begin % TYPES[entry["dtype"]].itemsize == 0, f"{name} is not aligned"
        tensors[name] = values.view(TYPES[entry["dtype"]]).reshape(entry["shape"])
    return tensors

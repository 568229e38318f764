# SPDX-License-Identifier: Apache-2.0
"""The package: compiled code, and a description of its inputs and outputs."""

import contextlib
import ctypes
import hashlib
import json
import os
import pathlib
import struct
import tempfile
from unittest import mock

import torch
from torch._inductor import aot_compile, decomposition, lowering
from torch.export.pt2_archive._package import package_pt2

from .model import ExportError

FORMAT = "lockstep-compiled-1"

TORCH_LIBRARY = pathlib.Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"

# Compilers' default instruction sets, as named in /proc/cpuinfo.
INSTRUCTION_SETS = ("sse", "ssse3", "popcnt", "abm", "movbe", "bmi", "adx", "f16c", "fma", "avx",
                    "amx", "gfni", "vaes", "vpclmulqdq", "sha")
# x86-64-v3 of the psABI, as /proc/cpuinfo reports it.
X86_64_V3 = ["abm", "avx", "avx2", "bmi1", "bmi2", "f16c", "fma", "movbe", "popcnt", "sse", "sse2",
             "sse4_1", "sse4_2", "ssse3"]

SAFETENSORS_TYPES = {
    torch.float64: "F64", torch.int64: "I64", torch.complex64: "C64", torch.float32: "F32",
    torch.int32: "I32", torch.bfloat16: "BF16", torch.float16: "F16", torch.int16: "I16",
    torch.int8: "I8", torch.uint8: "U8", torch.bool: "BOOL"}


def instruction_sets(cpu):
    """Returns the instruction sets that the code may use; a host must have all of them."""
    if cpu == "x86-64-v3":
        return X86_64_V3
    for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("flags"):
            return sorted(flag for flag in line.split() if flag.startswith(INSTRUCTION_SETS))
    raise ExportError("/proc/cpuinfo has no flags: code can be exported on x86-64 only, because "
                      "this CPU's instruction sets are unknown")


def compile_graph(graph, cpu, threads):
    """Returns the names of the files that run the graph: the shared library and, if it calls
    operators by name, a list of them."""
    options = {
        "aot_inductor.package": True,
        # The process that loads the code has LibTorch. A link would need libtorch.so, which may
        # load CUDA's libraries.
        "aot_inductor.link_libtorch": False,
        "fallback_random": True,  # LibTorch's random numbers.
        "cpp.threads": threads or -1,
        "cpp.dynamic_threads": threads == 0,
    }
    if cpu == "x86-64-v3":
        options |= {"cpp.march": cpu, "cpp.simdlen": 256}
    arguments, keywords = graph.program.example_inputs
    with max_pool_of_aten():
        files = aot_compile(graph.program.module(check_guards=False), arguments, keywords,
                            options=options)
    return [file for file in files if file.endswith(".so") or
            (file.endswith(".json") and not file.endswith("_metadata.json"))]


@contextlib.contextmanager
def max_pool_of_aten():
    """Lets ATen's functions compute max_pool2d. Inductor's own backward adds to single elements
    in the order of samples and channels, and each addition misses the cache."""
    pool = torch.ops.aten.max_pool2d_with_indices.default
    backward = torch.ops.aten.max_pool2d_with_indices_backward.default
    calls = {operator: lowering.fallback_handler(operator, add_to_fallback_set=False)
             for operator in (pool, backward)}
    with (mock.patch.dict(decomposition.decompositions),
          mock.patch.dict(lowering.lowerings, calls)):
        for operator in calls:
            decomposition.decompositions.pop(operator, None)
        yield


def load(files):
    """Returns the function that runs compiled code in this process."""
    ctypes.CDLL(TORCH_LIBRARY, ctypes.RTLD_GLOBAL)  # Python's torch hides its symbols.
    (library,) = (file for file in files if file.endswith(".so"))
    return torch._C._aoti.AOTIModelContainerRunnerCpu(library, 1).run


def digests(graph, files):
    """Returns the path of each file in the package, and the digest of its contents by
    lockstep::sha256()."""
    found = {}
    for file in map(pathlib.Path, files):
        content = file.read_bytes()
        digest = hashlib.sha256(f"uint8 [{len(content)}]\n".encode() + content)
        found[f"data/aotinductor/{graph}/{file.name}"] = digest.hexdigest()
    return found


def described(tensor):
    """Element type, sizes, and the dimensions in memory order, outermost first."""
    order = sorted(range(tensor.dim()), key=lambda dim: -tensor.stride(dim))
    return {"dtype": str(tensor.dtype).removeprefix("torch."), "sizes": list(tensor.shape),
            "order": order}


def signature(step, inputs, dims, graphs, files, options):
    names = {}
    for name, parameter in step.hidden[0].named_parameters(remove_duplicate=False):
        names.setdefault(id(parameter), []).append(name)
    return {
        "format": FORMAT, "torch": torch.__version__,
        "instruction_sets": instruction_sets(options.cpu), "threads": options.threads,
        "bf16": step.bf16,
        "parameters": [
            {"names": names[id(parameter)], "role": step.roles[number], **described(parameter)}
            for number, parameter in enumerate(step._parameters.values())],
        "buffers": [
            {"names": [name], **described(buffer)}
            for name, buffer in zip(step.buffer_names, step._buffers.values())],
        "inputs": [{"batch_dim": dim, **described(tensor)}
                   for tensor, dim in zip(inputs, dims, strict=True)],
        "graphs": {
            name: {"updated": graph.updated, "outputs": graph.outputs,
                   "batch": graph.batch, "files": digests(name, files[name])}
            for name, graph in graphs.items()},
    }


@contextlib.contextmanager
def replacing(*paths):
    """Yields a temporary file's name for each path. If nothing fails, all of them replace the
    existing files."""
    with contextlib.ExitStack() as folders:
        new = [os.path.join(folders.enter_context(tempfile.TemporaryDirectory(
            dir=path.parent, prefix=".lockstep-")), path.name) for path in paths]
        yield new
        for source, path in zip(new, paths, strict=True):
            os.replace(source, path)


def write(path, files, description, weights, state):
    """Writes the package and the weights, or changes neither."""
    with replacing(path, weights) as (new_package, new_weights):
        package_pt2(new_package, aoti_files=files,
                    extra_files={"lockstep.json": json.dumps(description, indent=1)})
        write_weights(new_weights, state)


def bytes_of(tensor):
    tensor = tensor.detach().contiguous()
    return ctypes.string_at(tensor.data_ptr(), tensor.nbytes)


def require_types(tensors):
    """Errors: ExportError if safetensors does not support one of the tensors."""
    for name, tensor in tensors.items():
        if tensor.dtype not in SAFETENSORS_TYPES:
            raise ExportError(f"{name} is of {tensor.dtype}, which no file of safetensors can have")


def write_weights(path, tensors):
    """Writes a safetensors file: larger element types first, then by name, as the reference
    does."""
    names = sorted(tensors, key=lambda name: (-tensors[name].element_size(), name))
    header, end = {"__metadata__": {"format": "pt"}}, 0
    for name in names:
        tensor = tensors[name]
        header[name] = {"dtype": SAFETENSORS_TYPES[tensor.dtype], "shape": list(tensor.shape),
                        "data_offsets": [end, end + tensor.nbytes]}
        end += tensor.nbytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for name in names:
            file.write(bytes_of(tensors[name]))

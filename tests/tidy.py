#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The architecture as a test: which room may include which, and what is banned.

Complaints are printed as FILE:LINE: REASON and fail the test; notes are only printed.
"""

import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent

# Each room of lockstep/ and the rooms it may include, besides itself.
LAYERS = {
    "base": set(),
    "job": {"base"},
    "comm": {"base", "job"},
    "launch": {"base", "job"},
    "tensor": {"base", "job", "comm"},
    "nn": {"base", "job", "comm", "tensor"},
    "optim": {"base", "job", "comm", "tensor"},
    "data": {"base", "job", "comm", "tensor"},
    "checkpoint": {"base", "job", "comm", "tensor"},
    "parallel": {"base", "job", "comm", "tensor", "nn", "optim"},
    "observe": {"base", "job", "comm", "tensor", "nn", "optim", "parallel"},
    "train": {"base", "job", "comm", "tensor", "nn", "optim", "data", "checkpoint", "parallel",
              "observe"},
}
WITHOUT_TORCH = {"base", "job", "comm", "launch"}

# Held by everything in lockstep/ but its tests.
BANNED = {
    r"\bstd::(cout|cerr|clog)\b": "libraries do not print",
    r"\b(v?f?printf|v?dprintf|puts|putchar|perror)\(": "libraries do not print",
    r"(?<![\w.>])(exit|quick_exit|terminate)\(": "libraries do not end the process",
    r"(\bstd|(?<!\w))::abort\(": "libraries do not end the process",
    r"\bsystem_clock\b": "it jumps: deadlines and durations need steady_clock",
    r"\bshm_open\(": "it leaves names behind: memory is shared by memfd_create",
    r"\bgetnameinfo\(": "it waits for name servers",
    r"(?<![\w.>])system\(": "start programs without a shell",
    r"\b(class|struct) \w*(Manager|Helper|Utils?)\b": "name what it does",
}
TORCH = re.compile(r"#include <(torch|ATen|c10|caffe2)/")
FMT = re.compile(r"#include <(fmt|spdlog)/")
LONG_HEADER = 300


def room_of(path):
    """The room of a file in lockstep/; None for the umbrella headers beside the rooms."""
    parts = path.relative_to(ROOT / "lockstep").parts
    return parts[0] if len(parts) > 1 else None


def code_of(line):
    """The line without string literals and its comment."""
    return re.sub(r'"(\\.|[^"\\])*"', '""', line).split("//")[0]


def arrows(room, line):
    included = re.match(r'#include [<"]lockstep/(?:(\w+)/|\w)', line)
    if included and included[1] not in LAYERS[room] | {room}:
        yield f"{room} may not include {included[1] or 'an umbrella of all rooms'}"
    if room in WITHOUT_TORCH and TORCH.match(line):
        yield f"{room} must build without torch"


def foreign_fmt(path, room, line):
    if FMT.match(line):
        if path.suffix == ".h":
            yield "fmt and spdlog stay out of headers: a user's unit may see another version"
        elif room not in WITHOUT_TORCH:
            yield "torch brings another fmt: fmt and spdlog are for rooms without torch"


def bans(path, line):
    if path.stem.endswith("_test"):
        return
    for pattern, reason in BANNED.items():
        if re.search(pattern, code_of(line)):
            yield reason


def complaints_of_library(path, lines):
    room = room_of(path)
    if room is None:
        return
    if room not in LAYERS:
        yield 1, f"room '{room}' is not in LAYERS"
        return
    for number, line in enumerate(lines, 1):
        for reason in (*arrows(room, line), *foreign_fmt(path, room, line), *bans(path, line)):
            yield number, reason


def complaints_of_any(path, lines):
    if not any("SPDX-License-Identifier: Apache-2.0" in line for line in lines):
        yield 1, "no SPDX line"
    if path.suffix == ".h" and "#pragma once" not in lines:
        yield 1, "no #pragma once"


def sources():
    for folder in ("lockstep", "tools", "examples", "tests", "bench"):
        for path in sorted((ROOT / folder).rglob("*")):
            if path.suffix in {".h", ".cpp", ".c", ".py", ".sh"}:
                yield path
    yield from (ROOT / "dev", ROOT / ".ci" / "run")


def main():
    found = []
    for path in sources():
        name = path.relative_to(ROOT)
        lines = path.read_text().splitlines()
        library = name.parts[0] == "lockstep"
        found += [f"{name}:{number}: {reason}" for number, reason in complaints_of_any(path, lines)]
        if library:
            found += [f"{name}:{number}: {reason}"
                      for number, reason in complaints_of_library(path, lines)]
        if library and path.suffix == ".h" and len(lines) > LONG_HEADER:
            print(f"note: {name}: {len(lines)} lines: two things in one file?")
    print("\n".join(found) or "tidy")
    return bool(found)


if __name__ == "__main__":
    sys.exit(main())

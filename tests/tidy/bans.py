# SPDX-License-Identifier: Apache-2.0
"""Banned constructs of all sources, or of the library's sources; and lines that are too long."""

import re

from tidy.dependencies import WITHOUT_TORCH

LONG_LINE = 100
LONG_HEADER = 300

# Apply to everything in lockstep/ but its tests.
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
ANY_BANNED = re.compile("|".join(BANNED))

# Variables that are options are read only by read_variable(): lockstep/base/variables.h. These
# files read others, or need getenv() itself.
GETENV = re.compile(r"(?<![\w.>])getenv\(")
READERS = {
    "lockstep/base/log.cpp": "read_variable() logs",
    "lockstep/base/variables.cpp": "it is that function's",
    "lockstep/comm/engine/mpi/library.cpp": "a plugin: launchers' variables",
    "lockstep/comm/engine/nccl/devices.cpp": "a plugin: NCCL's",
    "lockstep/job/environment.cpp": "passes it to Variables, which accepts values by the same rule",
    "lockstep/job/launchers.cpp": "the same",
    "lockstep/job/store/job_token.cpp": "wipes the text in place",
    "lockstep/launch/console.cpp": "the terminal's",
    "lockstep/launch/rank_starter.cpp": "OMP_NUM_THREADS",
    "lockstep/launch/run.cpp": "PATH",
    "lockstep/launch/topology.cpp": "hwloc's",
}
TORCH = re.compile(r"#include <(torch|ATen|c10|caffe2)/")
FMT = re.compile(r"#include <(fmt|spdlog)/")


def complaints(tree):
    for file in tree.files:
        for number, reason in (*of_any(file), *(of_library(file) if file.in_library else ())):
            yield f"{file.path}:{number}: {reason}"


def notes(tree):
    """Printed, but no failure."""
    for file in tree.library:
        if file.path.suffix == ".h" and len(file.lines) > LONG_HEADER:
            yield f"note: {file.path}: {len(file.lines)} lines: two things in one file?"


def of_any(file):
    is_document = file.path.suffix == ".md"
    is_cmake = file.path.name == "CMakeLists.txt" or file.path.suffix == ".cmake"
    if not is_document and not is_cmake and "SPDX-License-Identifier: Apache-2.0" not in file.text:
        yield 1, "no SPDX line"
    if file.path.suffix == ".h" and "#pragma once" not in file.lines:
        yield 1, "no #pragma once"
    for number, line in enumerate(file.lines, 1):
        if len(line) > LONG_LINE and not (is_document and cannot_be_broken(line)):
            yield number, f"{len(line)} columns: {LONG_LINE} are the limit"


def cannot_be_broken(line):
    """True for a row of a Markdown table, and a line whose only word beyond its marker is a link.
    """
    return line.startswith("|") or re.fullmatch(r"\s*([-*>] |\d+\. )?\S*https?://\S+", line)


def of_library(file):
    for number, line in enumerate(file.lines, 1):
        if file.component in WITHOUT_TORCH and TORCH.match(line):
            yield number, f"{file.component} must build without torch"
        if FMT.match(line):
            if file.path.suffix == ".h":
                yield number, ("fmt and spdlog stay out of headers: "
                               "a user's unit may see another version")
            elif file.component not in WITHOUT_TORCH:
                yield number, ("torch brings another fmt: "
                               "fmt and spdlog are for components without torch")
        if (not file.is_test and str(file.path) not in READERS
                and GETENV.search(code_of(line))):
            yield number, "options are read by read_variable(): lockstep/base/variables.h"
        if not file.is_test and ANY_BANNED.search(line):
            for pattern, reason in BANNED.items():
                if re.search(pattern, code_of(line)):
                    yield number, reason


def code_of(line):
    """Returns the line without string literals and its comment."""
    return re.sub(r'"(\\.|[^"\\])*"', '""', line).split("//")[0]

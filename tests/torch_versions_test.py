#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Every unit compiles against the headers of other versions of LibTorch, without a warning.

torch_versions_test.py COMPILE_COMMANDS --torch TORCH FOLDER: each folder in FOLDER has the headers
of one version, as TORCH has, which the commands name. `./dev test --long` fetches them.
"""

import argparse
import concurrent.futures
import json
import os
import pathlib
import shlex
import subprocess
import sys

SKIPPED = 77  # SKIP_RETURN_CODE in CMakeLists.txt.
OUTPUT = ("-o", "-MF", "-MT", "-MQ")  # Options of a compiler with a file's name.


def syntax_check(command, torch, other):
    """Returns the words of a command that only checks a unit, against another torch package."""
    words, result = iter(shlex.split(command.replace(str(torch), str(other)))), []
    for word in words:
        if word in OUTPUT:
            next(words)
        elif word not in ("-c", "-MD", "-MMD"):
            result.append(word)
    return [*result, "-fsyntax-only"]


def complaints(unit, torch, other):
    """Returns the compiler's output for a unit; nothing if it succeeds."""
    done = subprocess.run(syntax_check(unit["command"], torch, other), cwd=unit["directory"],
                          stderr=subprocess.PIPE, text=True)
    return f"{unit['file']}, with {other}:\n{done.stderr}" if done.returncode else ""


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("commands", type=pathlib.Path)
    parser.add_argument("--torch", type=pathlib.Path, required=True)
    parser.add_argument("folder", type=pathlib.Path)
    options = parser.parse_args()
    versions = sorted(options.folder.absolute().glob("*/include/torch"))
    if not versions:
        print(f"skipped: no headers are in {options.folder}; `./dev test --long` fetches them")
        sys.exit(SKIPPED)
    torch = options.torch.absolute()
    units = [unit for unit in json.loads(options.commands.read_text())
             if f"{torch}/" in unit["command"]]
    assert units, f"no command names {torch}"
    failures = 0
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        for version in versions:
            other = version.parents[1]
            for text in pool.map(lambda unit: complaints(unit, torch, other), units):
                failures += bool(text)
                print(text, end="", flush=True)
            print(f"{other.name}: {len(units)} units", flush=True)
    sys.exit(f"{failures} units do not compile" if failures else 0)


if __name__ == "__main__":
    main()

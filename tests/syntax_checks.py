# SPDX-License-Identifier: Apache-2.0
"""Checks the syntax of units with other headers or another compiler than those of their build."""

import concurrent.futures
import json
import os
import shlex
import subprocess

# Options of a compiler with a file's name: its output, and headers precompiled for the build.
DROPPED = ("-o", "-MF", "-MT", "-MQ", "-include")


def units_of(commands):
    """Returns the entries of compile_commands.json."""
    units = json.loads(commands.read_text())
    assert units, f"{commands} has no units"
    return units


def units_with(commands, folder):
    """Returns the entries of compile_commands.json whose commands name a folder."""
    units = [unit for unit in units_of(commands) if f"{folder}/" in unit["command"]]
    assert units, f"no command names {folder}"
    return units


def syntax_check(command):
    """Returns the words of a command that only checks a unit."""
    words, result = iter(shlex.split(command)), []
    for word in words:
        if word in DROPPED:
            next(words)
        elif word not in ("-c", "-MD", "-MMD"):
            result.append(word)
    return [*result, "-fsyntax-only"]


def complaints(unit, name, change):
    """Returns the compiler's output for a unit; nothing if it succeeds."""
    done = subprocess.run(change(syntax_check(unit["command"])), cwd=unit["directory"],
                          stderr=subprocess.PIPE, text=True)
    return f"{unit['file']}, with {name}:\n{done.stderr}" if done.returncode else ""


def check(units, name, change):
    """Prints complaints about units, whose commands change() edits. Returns the number of units."""
    failures = 0
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        for text in pool.map(lambda unit: complaints(unit, name, change), units):
            failures += bool(text)
            print(text, end="", flush=True)
    print(f"{name}: {len(units)} units", flush=True)
    return failures

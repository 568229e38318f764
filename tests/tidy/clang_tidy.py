#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""clang_tidy.py BUILD REGEX [SOURCE...]: runs clang-tidy on the compiled files of a build folder
whose paths match. A file that passed before is skipped if nothing that it reads has changed since:
its headers, its flags, .clang-tidy and clang-tidy itself. ~/.cache/lockstep-lint remembers that.

Exit code: 0 when all files pass, 1 when one does not.
"""

import concurrent.futures
import functools
import hashlib
import json
import os
import pathlib
import re
import shlex
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
CACHE = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache",
                     "lockstep-lint")
CLANG_TIDY = "clang-tidy-16"
MONTH = 30 * 24 * 3600


def units(build, pattern):
    """Yields the file, the folder and the command of each matching entry."""
    for entry in json.loads((build / "compile_commands.json").read_text()):
        if re.search(pattern, entry["file"]):
            yield entry["file"], entry["directory"], shlex.split(entry["command"])


@functools.cache
def digest_of(path, root):
    content = pathlib.Path(path).read_bytes()
    return hashlib.sha256(content.replace(str(root).encode(), b"")).hexdigest()


@functools.cache
def version():
    return subprocess.run([CLANG_TIDY, "--version"], check=True, text=True,
                          stdout=subprocess.PIPE).stdout


def key_of(directory, command, tool, root=ROOT):
    """Returns a hash of all that the findings of a version of clang-tidy, `tool`, depend on. It
    does not contain the root, so that other clones of the same content have the same keys."""
    at = command.index("-o")
    flags = command[:at] + command[at + 2:]
    listed = subprocess.run([*flags, "-M", "-MF", "-"], cwd=directory, check=True, text=True,
                            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL).stdout
    read = [os.path.join(directory, name)
            for name in listed.split(":", 1)[1].replace("\\\n", " ").split()]
    texts = [tool, digest_of(root / ".clang-tidy", root), digest_of(__file__, root), *flags]
    texts += sorted(f"{name} {digest_of(name, root)}".replace(str(root), "") for name in read)
    return hashlib.sha256("\n".join(texts).replace(str(root), "").encode()).hexdigest()


def check(build, unit):
    """Returns the file, whether it passes, and what clang-tidy printed."""
    file, directory, command = unit
    mark = CACHE / key_of(directory, command, version())
    if mark.exists():
        mark.touch()
        return file, True, ""
    done = subprocess.run([CLANG_TIDY, "-quiet", f"-p={build}", file], text=True, cwd=directory,
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    if done.returncode == 0:
        mark.touch()
    return file, done.returncode == 0, done.stdout + done.stderr


def forget_old():
    for mark in CACHE.iterdir():
        if time.time() - mark.stat().st_mtime > MONTH:
            mark.unlink(missing_ok=True)


def main():
    build, pattern = pathlib.Path(sys.argv[1]).resolve(), "|".join(sys.argv[2:])
    CACHE.mkdir(parents=True, exist_ok=True)
    forget_old()
    found = list(units(build, pattern))
    if not found:
        sys.exit(f"{build}: no compiled file matches {pattern}")
    failed = 0
    with concurrent.futures.ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        checks = [pool.submit(check, build, unit) for unit in found]
        for number, done in enumerate(concurrent.futures.as_completed(checks), 1):
            file, passed, output = done.result()
            failed += not passed
            if not passed:
                print(output)
            if sys.stderr.isatty():
                print(f"\r\033[K{number} of {len(found)}: {pathlib.Path(file).name}", end="",
                      file=sys.stderr, flush=True)
    if sys.stderr.isatty():
        print("\r\033[K", end="", file=sys.stderr)
    print(f"clang-tidy: {len(found) - failed} of {len(found)} files pass")
    return failed > 0


if __name__ == "__main__":
    sys.exit(main())

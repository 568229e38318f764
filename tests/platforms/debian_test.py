#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Builds and tests Lockstep in a fresh system of another release of Debian, with its compiler.

debian_test.py PART --release RELEASE --source FOLDER --scratch FOLDER [--torch TORCH]
PART is no_torch: the components without LibTorch and their tests, with all packages of `./dev`;
demo: `./dev demo`, which installs its packages, with the LibTorch in the folder TORCH; or
all: `./dev test` with the version TORCH from PyPI, for the release's Python.
Skipped without root, or if the release cannot be fetched.
"""

import argparse
import os
import pathlib
import re
import shutil
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

from commands import run, skip  # noqa: E402
from fresh_system import System, in_own_mounts, own_release  # noqa: E402

COMMANDS = ("build", "test --long", "demo", "docs", "package", "bench", "python", "lint")
# The project's format is that of one version of clang-format, and its lint that of clang-tidy.
# Later releases do not have these versions.
ABSENT = {"clang-format-16", "clang-tidy-16"}
# Folders of the project that a clone does not have.
NOT_CLONED = shutil.ignore_patterns(".git", ".deps", "build", "__pycache__")


def fresh_system(args):
    """Makes a system with a copy of the project in /src, which uses this host's ccache."""
    system = System(args.scratch / "system", release=args.release)
    shutil.copytree(args.source, system.root / "src", ignore=NOT_CLONED)
    if shutil.which("ccache"):
        cache = subprocess.run(["ccache", "--get-config", "cache_dir"], text=True, check=True,
                               stdout=subprocess.PIPE).stdout.strip()
        pathlib.Path(cache).mkdir(parents=True, exist_ok=True)
        system.show(cache, "ccache", writable=True)
    return system


def missing_packages(system, commands):
    """Returns the packages that these commands of ./dev report as missing."""
    packages = set()
    for command in commands:
        output = system.run("/src/dev", *command.split(), fails=True, LOCKSTEP_NO_INSTALL="1")
        for names in re.findall(r"^lockstep: missing, .*: (.*)$", output, re.MULTILINE):
            packages.update(names.split())
    return packages


def install_packages(system):
    """Installs all packages that ./dev names. They exist, except those in ABSENT."""
    system.run("apt-get", "update")
    packages = missing_packages(system, COMMANDS)
    assert "g++" in packages and "libgtest-dev" in packages, packages
    found = system.run("apt-cache", "--names-only", "search", ".").splitlines()
    absent = packages - {line.split()[0] for line in found}
    if absent != ABSENT:
        sys.exit(f"the packages that this release lacks are {sorted(absent)}, not "
                 f"{sorted(ABSENT)}; change either ./dev or this test")
    system.run("apt-get", "install", "-y", "--no-install-recommends", *sorted(packages - absent))
    if left := missing_packages(system, ["test --long"]):
        sys.exit(f"./dev still reports {sorted(left)} as missing")


def no_torch(system, args):
    install_packages(system)
    build = "/src/build/no-torch"
    system.run("g++", "--version")
    system.run("cmake", "-S", "/src", "--preset", "no-torch", "-DLOCKSTEP_UNITY=ON",
               "-DLOCKSTEP_WARNINGS_AS_ERRORS=ON", "-DGloo_DIR=/usr/share/cmake/Gloo",
               CCACHE_DIR="/ccache")
    system.run("cmake", "--build", build, "-j", os.cpu_count(), CCACHE_DIR="/ccache")
    tested = system.run("ctest", "--test-dir", build, "--output-on-failure", "--no-tests=error",
                        "-LE", "^long$")
    print(re.search(r"^\d+% tests passed.*", tested, re.MULTILINE)[0])


def demo(system, args):
    system.show(pathlib.Path(args.torch).absolute(), "opt/libtorch")
    system.run("/src/dev", "demo", LOCKSTEP_TORCH="/opt/libtorch", CCACHE_DIR="/ccache")


def all_tests(system, args):
    tested = system.run("/src/dev", "test", "--torch", args.torch, CCACHE_DIR="/ccache",
                        PIP_CONSTRAINT="")
    print(re.search(r"^\d+% tests passed.*", tested, re.MULTILINE)[0])


PARTS = {"no_torch": no_torch, "demo": demo, "all": all_tests}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("part", choices=PARTS)
    parser.add_argument("--release", required=True, help="the release of Debian, by its name")
    parser.add_argument("--source", type=pathlib.Path, required=True)
    parser.add_argument("--scratch", type=pathlib.Path, required=True)
    parser.add_argument("--torch", help="the folder or, for all, the version of LibTorch")
    parser.add_argument("--in-own-mounts", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if own_release()[0] != "debian":
        skip("this host is no Debian, whose archive has the release")
    if not args.in_own_mounts:
        in_own_mounts(args.scratch, {})
    PARTS[args.part](fresh_system(args), args)


if __name__ == "__main__":
    main()

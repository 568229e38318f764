#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Installs Lockstep, builds a program against the copy with find_package(), and runs it.

  readme         the program and the CMakeLists.txt of README.md, on a small data set, with two ranks
  comm           a program that needs no LibTorch, against the same copy
  without_torch  the same, against a copy that was built without LibTorch
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

from small_datasets import write_fashion_mnist  # noqa: E402


def environment(**added):
    """Nothing of ours: an installed program finds its libraries by itself."""
    hidden = ("LD_LIBRARY_PATH", "CMAKE_PREFIX_PATH", "Torch_DIR", "Lockstep_DIR")
    return {k: v for k, v in os.environ.items() if k not in hidden} | added


def run(*command, fails=False, **added):
    """Runs a command, which must succeed or, if asked, fail; returns what it wrote."""
    print("+", *command, flush=True)
    done = subprocess.run([str(word) for word in command], env=environment(**added), text=True,
                          stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    print(done.stdout, flush=True)
    if fails == (done.returncode == 0):
        sys.exit(f"exit code {done.returncode}")
    return done.stdout


def install(build, prefix):
    run("cmake", "--install", build, "--prefix", prefix)
    include = prefix / "include"
    for header in include.rglob("*.h"):
        for name in re.findall(r'#include [<"](lockstep/[^">]+)', header.read_text()):
            if not (include / name).exists():
                sys.exit(f"{header} includes {name}, which is not installed")


def compile_program(folder, prefix, build):
    ccache = shutil.which("ccache") or ""
    run("cmake", "-G", "Ninja", "-S", folder, "-B", build, "-DCMAKE_BUILD_TYPE=Release",
        f"-DCMAKE_PREFIX_PATH={prefix}", f"-DCMAKE_CXX_COMPILER_LAUNCHER={ccache}")
    run("cmake", "--build", build)
    return build / "my_program"


def readme(args):
    text = (args.source / "README.md").read_text()
    project = args.scratch / "project"
    project.mkdir()
    for language, name in (("cpp", "my_program.cpp"), ("cmake", "CMakeLists.txt")):
        (project / name).write_text(re.search(f"```{language}\n(.*?)```", text, re.DOTALL)[1])

    prefix = args.scratch / "prefix"
    install(args.build, prefix)
    binary = compile_program(project, prefix, args.scratch / "build")

    images = args.scratch / "data" / "fashion-mnist"
    write_fashion_mnist(images)
    run(prefix / "bin" / "lockstep", "run", "-n", "2", binary, LOCKSTEP_DATA=str(images.parent),
        OMP_NUM_THREADS="1")

    # Its second program for LibTorch, on ranks with unequal inputs.
    programs = re.findall(r"```cpp\n(.*?)```", text, re.DOTALL)
    (project / "my_program.cpp").write_text(next(p for p in programs if "ddp.join" in p))
    binary = compile_program(project, prefix, args.scratch / "build")
    run(prefix / "bin" / "lockstep", "run", "-n", "3", binary, OMP_NUM_THREADS="1")

    # Its third, whose last line is the hash of weights that are the same on any number of ranks.
    (project / "my_program.cpp").write_text(next(p for p in programs if "share_parameters" in p))
    binary = compile_program(project, prefix, args.scratch / "build")
    hashes = {run(prefix / "bin" / "lockstep", "run", "-n", ranks, binary).split()[-1]
              for ranks in (1, 2, 4)}
    if len(hashes) != 1:
        sys.exit(f"the weights of 1, 2 and 4 ranks differ: {hashes}")


def comm(args):
    prefix = args.scratch / "prefix"
    install(args.build, prefix)
    binary = compile_program(HERE / "comm", prefix, args.scratch / "build")
    run(prefix / "bin" / "lockstep", "run", "-n", "2", binary)

    # And the README's program for it.
    project = args.scratch / "project"
    shutil.copytree(HERE / "comm", project)
    programs = re.findall(r"```cpp\n(.*?)```", (args.source / "README.md").read_text(), re.DOTALL)
    (project / "main.cpp").write_text(next(p for p in programs if "lockstep/comm/comm.h" in p))
    binary = compile_program(project, prefix, args.scratch / "readme")
    run(prefix / "bin" / "lockstep", "run", "-n", "4", binary)


def without_torch(args):
    # Beside the other build, as deep in the file system, so that ccache knows its units.
    build, prefix = args.build.with_name(f"{args.build.name}-without-torch"), args.scratch / "prefix"
    run("cmake", "-S", args.source, "--preset", "no-torch", "-B", build, "-DLOCKSTEP_BUILD_TESTS=OFF")
    run("cmake", "--build", build)
    install(build, prefix)
    binary = compile_program(HERE / "comm", prefix, args.scratch / "build")
    run(prefix / "bin" / "lockstep", "run", "-n", "2", binary)

    asker = args.scratch / "asker"
    asker.mkdir()
    (asker / "CMakeLists.txt").write_text(
        "cmake_minimum_required(VERSION 3.23)\nproject(asker LANGUAGES CXX)\n"
        "find_package(Lockstep 0.1 REQUIRED COMPONENTS lockstep)\n")
    refusal = run("cmake", "-G", "Ninja", "-S", asker, "-B", asker / "build",
                  f"-DCMAKE_PREFIX_PATH={prefix}", fails=True)
    if "has no component 'lockstep'" not in " ".join(refusal.split()):  # CMake breaks lines.
        sys.exit("the refusal of Lockstep::lockstep does not say why")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("test", choices=["readme", "comm", "without_torch"])
    for folder in ("source", "build", "scratch"):
        parser.add_argument(f"--{folder}", type=pathlib.Path, required=True)
    args = parser.parse_args()
    shutil.rmtree(args.scratch, ignore_errors=True)
    args.scratch.mkdir(parents=True)
    globals()[args.test](args)


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes the Debian packages, installs them into a fresh system, and runs programs there.

The system is made from the archive of this one's release. Programs are compiled outside, against
the headers and libraries that the packages have put into it. Skipped where no system can be made.
"""

import argparse
import pathlib
import re
import shutil
import sys

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

from commands import run  # noqa: E402
from fresh_system import System, in_own_mounts  # noqa: E402
from installed_test import (  # noqa: E402
    compile_program, expect, refused_configuration, torch_version)

PROJECT = """cmake_minimum_required(VERSION 3.23)
project(my_program CXX)
find_package(Lockstep 0.1 REQUIRED COMPONENTS lockstep)
add_executable(my_program my_program.cpp)
target_link_libraries(my_program PRIVATE Lockstep::lockstep)
"""

# Saves the sum over all ranks of a tensor.
PROGRAM = """#include <ATen/ops/ones.h>
#include <lockstep/checkpoint/safetensors.h>
#include <lockstep/comm/comm.h>
#include <lockstep/tensor/collectives.h>
int main(int, char** argv) {
  auto world = lockstep::init_process_group();
  at::Tensor sum = at::ones({3});
  lockstep::all_reduce(sum, world);
  if (world.rank() == 0) lockstep::save_safetensors(argv[1], {{"sum", sum}});
  lockstep::destroy_process_group(world);
}
"""


def make_packages(args):
    """Returns the files by the names of their packages."""
    run(args.source / "dev", "package", LOCKSTEP_NO_INSTALL="1", LOCKSTEP_TORCH=str(args.torch))
    files = list((args.source / "build" / "package").glob("*.deb"))
    if shutil.which("lintian"):
        run("lintian", "--allow-root", "--fail-on", "error", "--suppress-tags",
            "bogus-mail-host,bogus-mail-host-in-debian-changelog,root-in-contact", *files)
    return {file.name.split("_")[0]: file for file in files}


def comm_alone(system, packages, args):
    system.install(packages["lockstep-comm"])
    version = re.search(r"project\(Lockstep VERSION (\S+)",
                        (args.source / "CMakeLists.txt").read_text())[1]
    expect(f"lockstep {version}\n", system.run("lockstep", "--version"))
    report = system.run("lockstep", "doctor", "-n", "2")
    # Its library is installed with it, as recommended.
    expect("liblockstep-engine-gloo.so\n", report)
    expect("LibTorch  no part of this copy of Lockstep needs it", report)

    system.install(packages["lockstep-dev"], "--no-install-recommends")
    prefix = system.root / "usr"
    binary = compile_program(HERE / "comm", prefix, args.scratch / "comm")
    shutil.copy(binary, system.root / "tmp" / "sums")
    system.run("lockstep", "run", "-n", "2", "/tmp/sums")
    expect("or without Debian's package 'lockstep'",
           refused_configuration(args.project, prefix, f"-DTorch_DIR={args.torch}"))


def with_libtorch(system, packages, args):
    system.install(packages["lockstep"])
    binary = compile_program(args.project, system.root / "usr", args.scratch / "full",
                             f"-DTorch_DIR={args.torch}", "-DCMAKE_BUILD_RPATH=/opt/libtorch/lib")
    shutil.copy(binary, system.root / "tmp" / "saves")
    show = ("lockstep", "checkpoint", "show", "/tmp/sum.safetensors")
    version = torch_version(system.root / "usr")
    remedy = f"unpack LibTorch {version} to /opt/libtorch or link it there"
    expect(remedy, system.run(*show, fails=True))
    expect(remedy, system.run("lockstep", "doctor", "-n", "2", fails=True))

    system.show(args.torch.parents[2], "opt/libtorch")
    cuda = args.torch.parents[3] / "nvidia"
    if cuda.exists():  # Libraries that PyPI's build for CUDA expects beside its folder.
        system.show(cuda, "opt/nvidia")
    system.run("lockstep", "doctor", "-n", "2")
    system.run("lockstep", "run", "-n", "2", "/tmp/saves", "/tmp/sum.safetensors")
    expect("float32 [3]", system.run(*show))


def with_toolkit(system, packages, args):
    (args.project / "CMakeLists.txt").write_text(PROJECT.replace("COMPONENTS lockstep",
                                                                 "COMPONENTS toolkit"))
    expect("or 'lockstep-toolkit'",
           refused_configuration(args.project, system.root / "usr", f"-DTorch_DIR={args.torch}"))
    system.install(packages["lockstep-toolkit"])
    expect("--samples", system.run("lockstep", "shard", "--help"))


def purged(system):
    system.run("apt-get", "purge", "-y", "lockstep-comm")
    for file in (system.root / "usr").rglob("*"):
        if "lockstep" in file.name:
            sys.exit(f"{file} is left behind")


def test(args):
    args.project = args.scratch / "project"
    args.project.mkdir()
    (args.project / "CMakeLists.txt").write_text(PROJECT)
    (args.project / "my_program.cpp").write_text(PROGRAM)
    packages = make_packages(args)
    system = System(args.scratch / "system")
    comm_alone(system, packages, args)
    with_libtorch(system, packages, args)
    with_toolkit(system, packages, args)
    purged(system)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--source", type=pathlib.Path, required=True)
    parser.add_argument("--torch", type=pathlib.Path, required=True,
                        help="the folder of TorchConfig.cmake")
    parser.add_argument("--scratch", type=pathlib.Path, required=True)
    parser.add_argument("--in-own-mounts", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if not args.in_own_mounts:
        in_own_mounts(args.scratch, {"dpkg-shlibdeps": "dpkg-dev"})
    test(args)


if __name__ == "__main__":
    main()

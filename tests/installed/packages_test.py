#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes the Debian packages, installs them into a fresh system, and runs programs there.

The system is made from the archive of this one's release. Programs are compiled outside, against
the headers and libraries that the packages have put into it. Skipped where no system can be made.
"""

import argparse
import os
import pathlib
import re
import shutil
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

from installed_test import compile_program, expect, refused_configuration, run  # noqa: E402

SKIPPED = 77
TOOLS = ("mmdebstrap", "dpkg-shlibdeps", "unshare")
SOURCES = ("sources.list.d/debian.sources", "sources.list.d/ubuntu.sources", "sources.list")

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


def skip(reason):
    print(f"skipped: {reason}", flush=True)
    sys.exit(SKIPPED)


class System:
    """A folder with a fresh Debian or Ubuntu, in which commands run as if it were the whole host.

    Its mounts are those of this process and vanish with it.
    """

    def __init__(self, root):
        self.root = root
        etc = pathlib.Path("/etc/apt")
        sources = next(etc / name for name in SOURCES if (etc / name).exists())
        # It is removed soon, so files need not be synced.
        made = subprocess.run(["mmdebstrap", "--variant=apt", "--skip=cleanup/apt",
                               "--dpkgopt=force-unsafe-io", "", root, sources],
                              text=True, stderr=subprocess.PIPE)
        if made.returncode != 0:
            skip(f"mmdebstrap makes no fresh system: {made.stderr.strip().splitlines()[-1]}")
        if (resolver := pathlib.Path("/etc/resolv.conf")).exists():
            shutil.copy(resolver, root / "etc")
        run("mount", "-t", "proc", "proc", root / "proc")
        run("mount", "-t", "tmpfs", "tmpfs", root / "dev" / "shm")
        self.show("/sys", "sys")

    def show(self, folder, place):
        """Mounts a folder of this host read-only."""
        inside = self.root / place
        inside.mkdir(exist_ok=True, parents=True)
        run("mount", "--bind", folder, inside)
        run("mount", "-o", "remount,ro,bind", inside)

    def run(self, *command, fails=False):
        return run("chroot", self.root, *command, fails=fails, DEBIAN_FRONTEND="noninteractive",
                   PATH="/usr/sbin:/usr/bin:/sbin:/bin")

    def install(self, package, *options):
        shutil.copy(package, self.root / "tmp")
        return self.run("apt-get", "install", "-y", *options, f"/tmp/{package.name}")


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
    remedy = "unpack LibTorch 2.13 to /opt/libtorch or link it there"
    expect(remedy, system.run(*show, fails=True))
    expect(remedy, system.run("lockstep", "doctor", "-n", "2", fails=True))

    system.show(args.torch.parents[2], "opt/libtorch")
    system.run("lockstep", "doctor", "-n", "2")
    system.run("lockstep", "run", "-n", "2", "/tmp/saves", "/tmp/sum.safetensors")
    expect("float32 [3]", system.run(*show))


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
    purged(system)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--source", type=pathlib.Path, required=True)
    parser.add_argument("--torch", type=pathlib.Path, required=True,
                        help="the folder of TorchConfig.cmake")
    parser.add_argument("--scratch", type=pathlib.Path, required=True)
    parser.add_argument("--in-own-mounts", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.in_own_mounts:
        test(args)
        return
    if os.geteuid() != 0:
        skip("only root can make a fresh system and install into it")
    if missing := [tool for tool in TOOLS if not shutil.which(tool)]:
        skip(f"there is no {', '.join(missing)} (Debian's mmdebstrap, dpkg-dev, util-linux)")
    shutil.rmtree(args.scratch, ignore_errors=True)
    args.scratch.mkdir(parents=True)
    code = subprocess.run(["unshare", "--mount", sys.executable, *sys.argv,
                           "--in-own-mounts"]).returncode
    shutil.rmtree(args.scratch / "system", ignore_errors=True)
    sys.exit(code)


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compiles the components without LibTorch for AArch64, and runs their tests under qemu-user.

The libraries come from the archive of this host's release. A second run compiles only changes.
Tests start programs by their paths. Linux starts qemu for these in a user namespace, so that no
other process of this host is affected.
"""

import argparse
import fnmatch
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

from commands import run, skip  # noqa: E402
from fresh_system import mmdebstrap, need_tools, own_release  # noqa: E402
from processes import kill_all  # noqa: E402

TOOLS = {"aarch64-linux-gnu-g++": "g++-aarch64-linux-gnu", "mmdebstrap": "mmdebstrap",
         "ninja": "ninja-build", "qemu-aarch64-static": "qemu-user-static",
         "unshare": "util-linux"}
PACKAGES = ("libc6-dev", "libstdc++6", "libcli11-dev", "libfmt-dev", "libgtest-dev",
            "libhwloc-dev", "libisal-dev", "libssl-dev", "libxxhash-dev", "nlohmann-json3-dev",
            "zlib1g-dev")
PROGRAMS = ("base_test", "job_test", "store_test", "timeline_test", "comm_test", "tcp_test",
            "engine_test", "launch_test", "launched_group_test", "several_agents_test")
FUZZED = ("agent_frames", "frames", "handshake", "launcher", "manifest", "model_profile",
          "safetensors_header", "store_frames", "wire_headers")
INPUTS = 2000  # For each of these. Emulation is ten to twenty times slower.
PROGRAM_LIMIT = 1500  # Seconds.

# Tests that qemu-user cannot run, by the reason.
LEFT_OUT = {
    "MADV_POPULATE_WRITE, for which qemu-user returns 0 but does nothing": [
        "SharedMapping.PagesCanBeReservedLater",
        "SharedMapping.ReportsAnErrorInsteadOfASignalWhenReservingFails"],
    "a filter of system calls (seccomp), which qemu-user refuses": [
        "Process.NamesTheCallThatTheSystemRefuses"],
}

BINFMT = pathlib.Path("/proc/sys/fs/binfmt_misc")
# Programs and shared libraries of 64 bits, little endian, for machine 183.
MAGIC = r"\x7fELF\x02\x01\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x02\x00\xb7\x00"
MASK = r"\xff\xff\xff\xff\xff\xff\xff\x00\xff\xff\xff\xff\xff\xff\xff\xff\xfe\xff\xff\xff"


def make_sysroot(folder):
    """Extracts libraries for AArch64 and their headers, unless they are there."""
    made_from = json.dumps([own_release(), PACKAGES])
    mark = folder.parent / "sysroot.json"
    if mark.exists() and mark.read_text() == made_from:
        return
    shutil.rmtree(folder, ignore_errors=True)
    mmdebstrap(folder, "--architectures=arm64", "--variant=extract",
               f"--include={','.join(PACKAGES)}")
    # qemu prefers files below the sysroot to those of this host, so no others may be there.
    for other in folder.iterdir():
        if other.name not in ("lib", "usr"):
            shutil.rmtree(other)
    for link in folder.rglob("*"):
        if link.is_symlink() and (target := os.readlink(link)).startswith("/"):
            link.unlink()
            link.symlink_to(os.path.relpath(folder / target[1:], link.parent))
    mark.write_text(made_from)


def build(args):
    # Without a soname, programs find it by this path.
    first = args.scratch / "missing_in_qemu.so"
    run("aarch64-linux-gnu-g++", f"--sysroot={args.sysroot}", "-std=c++20", "-O2", "-Wall",
        "-Wextra", "-Werror", "-fPIC", "-shared", HERE / "missing_in_qemu.cpp", "-o", first)
    run("cmake", "-S", args.source, "--preset", "no-torch", "-B", args.build,
        "--toolchain", HERE / "aarch64.cmake", f"-DLOCKSTEP_SYSROOT={args.sysroot}",
        f"-DLOCKSTEP_FIRST_LIBRARY={first}", f"-DPython3_EXECUTABLE={sys.executable}",
        "-DLOCKSTEP_UNITY=ON", "-DLOCKSTEP_BUILD_BENCHMARKS=OFF", folder=args.source)
    run("cmake", "--build", args.build, "--target", *PROGRAMS, "fault_rank", "lockstep_cli",
        "lockstep-run", *(f"fuzz_{name}" for name in FUZZED))


def check_contraction(build):
    """Products and sums are not fused: results have the bits of processors that cannot do that."""
    commands = json.loads((build / "compile_commands.json").read_text())
    objects = [each for each in commands if re.search(r" -o lockstep/\S+_objects\.dir/",
                                                      each["command"])]
    assert objects
    fused = [each["file"] for each in objects if "-ffp-contract=off" not in each["command"]]
    if fused:
        sys.exit(f"compiled without -ffp-contract=off: {fused}")


def in_own_namespace():
    """Starts this program again, in a user namespace in which it may tell Linux about qemu."""
    command = [sys.executable, *sys.argv, "--in-own-namespace"]
    # The shell waits for the user ids of the namespace, without which it has no rights there.
    child = subprocess.Popen(["unshare", "--user", "--mount", "sh", "-c",
                              'echo; read -r _; exec "$@"', "sh", *command],
                             stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    child.stdout.read(1)
    for kind in ("uid_map", "gid_map"):
        pathlib.Path(f"/proc/{child.pid}/{kind}").write_text("0 0 4294967295\n")
    child.stdin.write(b"\n")
    child.stdin.close()
    for line in child.stdout:
        print(line.decode(errors="replace"), end="", flush=True)
    sys.exit(child.wait())


def register_qemu():
    """Linux starts qemu for programs of AArch64, for processes of this namespace only."""
    made = subprocess.run(["mount", "-t", "binfmt_misc", "binfmt_misc", BINFMT],
                          stderr=subprocess.PIPE, text=True)
    if made.returncode != 0:
        skip(f"qemu cannot be registered, which needs Linux 6.7: {made.stderr.strip()}")
    qemu = shutil.which("qemu-aarch64-static")
    (BINFMT / "register").write_text(f":lockstep-aarch64:M::{MAGIC}:{MASK}:{qemu}:F")


def all_tests(program):
    """Returns the names of a GoogleTest program's tests."""
    suite, names = "", []
    listed = subprocess.run([program, "--gtest_list_tests"], stdout=subprocess.PIPE, text=True,
                            check=True)
    for line in listed.stdout.splitlines():
        name = line.split("#")[0].strip()
        if not line.startswith(" "):
            suite = name
        elif not suite.startswith("DISABLED_") and not name.startswith("DISABLED_"):
            names.append(suite + name)
    return names


def matches(name, patterns):
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)


def run_program(command):
    """Runs tests. Returns the exit code and the output, which is also printed."""
    print("+", *command, flush=True)
    child = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                             stderr=subprocess.STDOUT)
    try:
        output, _ = child.communicate(timeout=PROGRAM_LIMIT)
    except subprocess.TimeoutExpired:
        kill_all(child.pid)
        output, _ = child.communicate()
        output += f"\nexceeded {PROGRAM_LIMIT} s\n".encode()
    text = output.decode(errors="replace")
    print(text, flush=True)
    return child.returncode, text


def counted(text, word):
    found = re.search(rf"^\[ +{word} +\] (\d+) test", text, re.MULTILINE)
    return int(found[1]) if found else 0


def run_tests(args):
    """Runs everything. Returns the names of what failed, and numbers of tests by their result."""
    patterns = [each for those in LEFT_OUT.values() for each in those]
    counts, failed, unused = {"passed": 0, "skipped": 0, "left out": 0}, [], set(patterns)
    for program in PROGRAMS:
        tests = all_tests(args.build / "tests" / program)
        unused -= {each for each in unused if any(matches(test, [each]) for test in tests)}
        counts["left out"] += sum(matches(test, patterns) for test in tests)
        code, text = run_program([args.build / "tests" / program, "--gtest_brief=0",
                                  f"--gtest_filter=-{':'.join(patterns)}"])
        counts["passed"] += counted(text, "PASSED")
        counts["skipped"] += counted(text, "SKIPPED")
        if code != 0:
            failed.append(program)
    failed += [f"LEFT_OUT names no test: {each}" for each in sorted(unused)]
    commands = {f"fuzz_{name}": [args.build / "tests" / f"fuzz_{name}", f"-runs={INPUTS}"]
                for name in FUZZED}
    commands["launch.faults"] = [
        sys.executable, args.source / "tests" / "launch" / "faults_test.py",
        "--lockstep", args.build / "bin" / "lockstep", "--rank", args.build / "tests/fault_rank",
        "--engines", args.build / "lib", "--python", ""]
    failed += [name for name, command in commands.items() if run_program(command)[0] != 0]
    return failed, counts


def test(args):
    register_qemu()
    os.environ |= {"QEMU_LD_PREFIX": str(args.sysroot), "OMP_NUM_THREADS": "1",
                   "LOCKSTEP_ENGINE_PATH": str(args.build / "lib")}
    failed, counts = run_tests(args)
    version = subprocess.run(["qemu-aarch64-static", "--version"], stdout=subprocess.PIPE,
                             text=True).stdout.split("\n")[0]
    results = ", ".join(f"{number} {result}" for result, number in counts.items())
    print(f"ran: {version}: {results}", flush=True)
    if failed:
        sys.exit(f"failed: {', '.join(failed)}")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--source", type=pathlib.Path, required=True)
    parser.add_argument("--scratch", type=pathlib.Path, required=True)
    parser.add_argument("--in-own-namespace", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    args.sysroot, args.build = args.scratch / "sysroot", args.scratch / "build"
    if args.in_own_namespace:
        test(args)
        return
    if os.geteuid() != 0:
        skip("only root can extract libraries of another system, and make a namespace for qemu")
    need_tools(TOOLS)
    args.scratch.mkdir(parents=True, exist_ok=True)
    make_sysroot(args.sysroot)
    build(args)
    check_contraction(args.build)
    in_own_namespace()


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Builds tests with sanitizers, in a folder of their own, and runs the matching ones."""

import argparse
import concurrent.futures
import os
import shutil
import subprocess
import sys


def arguments():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--source", required=True)
    parser.add_argument("--build", required=True)
    parser.add_argument("--sanitizers", required=True, help="as -fsanitize= takes them")
    parser.add_argument("--filter", required=True, help="as --gtest_filter= takes it")
    parser.add_argument("--programs", nargs="+", required=True)
    parser.add_argument("options", nargs="*", help="for CMake")
    return parser.parse_args()


def build(options):
    configure = ["cmake", "-G", "Ninja", "-S", options.source, "-B", options.build,
                 "-DCMAKE_BUILD_TYPE=RelWithDebInfo", "-DCMAKE_CXX_FLAGS_RELWITHDEBINFO=-O1 -g1",
                 "-DLOCKSTEP_BUILD_BENCHMARKS=OFF", "-DLOCKSTEP_UNITY=ON",
                 f"-DLOCKSTEP_SANITIZE={options.sanitizers}", *options.options]
    subprocess.run(configure, check=True)
    subprocess.run(["cmake", "--build", options.build, "--target", *options.programs], check=True)


def run(options, program, shard, shards):
    test = [f"{options.build}/tests/{program}", f"--gtest_filter={options.filter}"]
    if "thread" in options.sanitizers and shutil.which("setarch"):
        test = ["setarch", "-R", *test]  # GCC 12's sanitizer fails with much address randomization.
    # The sanitizer does not see LibTorch's atomics, so reads and writes in LibTorch are ignored.
    environment = os.environ | {"TSAN_OPTIONS": "halt_on_error=1 ignore_noninstrumented_modules=1",
                                "OMP_NUM_THREADS": "1",
                                "ASAN_OPTIONS": "detect_leaks=1",
                                "UBSAN_OPTIONS": "print_stacktrace=1",
                                "GTEST_TOTAL_SHARDS": str(shards),
                                "GTEST_SHARD_INDEX": str(shard)}
    done = subprocess.run(test, env=environment, text=True, errors="replace",
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    print(done.stdout, flush=True)
    return abs(done.returncode)


def main():
    options = arguments()
    build(options)
    shards = os.cpu_count() or 1
    with concurrent.futures.ThreadPoolExecutor(shards) as pool:
        jobs = [pool.submit(run, options, program, shard, shards)
                for program in options.programs for shard in range(shards)]
    return max(job.result() for job in jobs)


if __name__ == "__main__":
    sys.exit(main())

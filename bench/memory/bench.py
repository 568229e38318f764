#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Trains a GPT of GPT-2 medium's size (355 million parameters, AdamW, float32) with four ranks in 9
GB of memory. It fits fully sharded, but not as replicas. The limit is a memory cgroup of its own,
which needs root. A setting makes glibc free memory at once. Prints the most memory that the ranks
took together, and memory_report().
"""

import contextlib
import json
import os
import pathlib
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
import measure  # noqa: E402, from the folder above

EXAMPLES = """examples:
  ./dev bench memory
  ./dev bench memory --layers 12 --width 768 --limit-gb 4 --json memory.json
"""

CGROUPS = pathlib.Path("/sys/fs/cgroup")
GIVE_BACK = {"MALLOC_MMAP_THRESHOLD_": "131072", "MALLOC_TRIM_THRESHOLD_": "131072"}


def parse_options():
    parser = measure.arguments(__doc__, EXAMPLES, drawn=None)
    parser.add_argument("--ranks", type=int, default=4, help="4")
    parser.add_argument("--limit-gb", type=float, default=9, help="of all ranks together: 9")
    parser.add_argument("--layers", type=int, default=24, help="24")
    parser.add_argument("--width", type=int, default=1024, help="1024")
    parser.add_argument("--vocabulary", type=int, default=50257, help="50257")
    parser.add_argument("--length", type=int, default=64, help="tokens of a rank's sequence: 64")
    options = parser.parse_args()
    measure.require_built(parser, options, "bench_model_parallel")
    if os.geteuid() != 0:
        parser.error("a memory cgroup needs root")
    return options


class Cgroup:
    """A memory cgroup of version 1 or 2."""

    def __init__(self, limit):
        self.is_v2 = (CGROUPS / "cgroup.controllers").exists()
        root = CGROUPS if self.is_v2 else CGROUPS / "memory"
        self.path = root / f"lockstep-bench-{os.getpid()}"
        self.limit = limit

    def __enter__(self):
        if self.is_v2:
            with contextlib.suppress(OSError):
                (CGROUPS / "cgroup.subtree_control").write_text("+memory")
        self.path.mkdir()
        self._write("memory.max" if self.is_v2 else "memory.limit_in_bytes", self.limit)
        if self.is_v2:
            with contextlib.suppress(OSError):
                self._write("memory.swap.max", 0)
        return self

    def __exit__(self, *_):
        self.path.rmdir()

    def run(self, command):
        def enter():
            self._write("cgroup.procs", os.getpid())
        done = subprocess.run(list(map(str, command)), preexec_fn=enter, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, text=True, check=False,
                              env={**os.environ, **GIVE_BACK})
        return done.returncode, done.stdout

    def peak(self):
        name = "memory.peak" if self.is_v2 else "memory.max_usage_in_bytes"
        return int((self.path / name).read_text())

    def _write(self, name, value):
        (self.path / name).write_text(str(value))


def trained(parallel, options):
    with Cgroup(int(options.limit_gb * 1e9)) as cgroup:
        code, output = cgroup.run(measure.lockstep_run(
            options.build, options.ranks, "bench_model_parallel", "--parallel", parallel,
            "--layers", options.layers, "--width", options.width, "--heads", options.width // 64,
            "--vocabulary", options.vocabulary, "--length", options.length, "--batch", 1,
            "--steps", 1, "--recompute", "--memory"))
        result = {"parallel": parallel, "exit": code, "peak": cgroup.peak()}
    for line in output.splitlines():
        if '{"' in line:
            result.update(json.loads(line[line.index('{"'):]))
    if code != 0:
        result["said"] = [line for line in output.splitlines() if line.strip()][-3:]
    return result


def main():
    options = parse_options()
    results = []
    for parallel in ("fully-sharded", "replicas"):
        result = trained(parallel, options)
        results.append(result)
        print(f"{parallel}: exit {result['exit']}, at most {result['peak'] / 1e9:.2f} GB of "
              f"{options.limit_gb:g}", flush=True)
        if "predicted" in result:
            print(f"  {result['parameters'] / 1e6:.1f} M parameters: "
                  f"{result['predicted'] / 1e9:.2f} GB predicted, "
                  f"{(result['resident'] - result['without_model']) / 1e9:.2f} GB resident, and "
                  f"{result['without_model'] / 1e9:.2f} GB before there was a model; "
                  f"{result['ms'] / 1e3:.1f} s a step")
        for line in result.get("said", []):
            print(f"  {line}")
    measure.save(options, results)


if __name__ == "__main__":
    main()

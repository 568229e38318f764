#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Ranks communicate whatever /dev/shm is: 1 MB small, read-only, or absent.

shared_memory_test.py LAUNCHED_GROUP_TEST
"""

import os
import subprocess
import sys

SKIPPED = 77  # SKIP_RETURN_CODE in CMakeLists.txt.
PLACES = {
    "1 MB": "mount -t tmpfs -o size=1m tmpfs /dev/shm",
    "read-only": "mount -t tmpfs -o ro tmpfs /dev/shm",
    "absent": "cp -a /dev/null /dev/zero /dev/urandom {scratch} && "
              "mount --bind {scratch} /dev && ! test -e /dev/shm",
}


def in_namespace(script):
    return ["unshare", "--mount", "--propagation", "private", "sh", "-ec", script]


def works():
    return subprocess.run(in_namespace("mount -t tmpfs tmpfs /dev/shm"),
                          stderr=subprocess.DEVNULL).returncode == 0


def run(name, prepare, program):
    """Runs four ranks in their own mount namespace, with the job set by bare variables."""
    scratch = subprocess.run(["mktemp", "-d", "/tmp/lockstep-dev-XXXXXX"], check=True, text=True,
                             stdout=subprocess.PIPE).stdout.strip()
    ranks = " ".join(
        f"RANK={rank} WORLD_SIZE=4 LOCKSTEP_JOB_ID={scratch} OMP_NUM_THREADS=1 "
        f"'{program}' --lockstep-rank works '' '' '' & pids=\"$pids $!\";" for rank in range(4))
    script = f"{prepare.format(scratch=scratch)}; {ranks} for pid in $pids; do wait $pid; done"
    code = subprocess.run(in_namespace(script), timeout=60).returncode
    subprocess.run(["rm", "-rf", scratch], check=True)
    if code:
        sys.exit(f"with /dev/shm {name}: exit code {code}")
    print(f"four ranks worked with /dev/shm {name}", flush=True)


def main():
    if os.geteuid() != 0 or not works():
        print("skipped: mount namespaces need root")
        sys.exit(SKIPPED)
    for name, prepare in PLACES.items():
        run(name, prepare, sys.argv[1])


if __name__ == "__main__":
    main()

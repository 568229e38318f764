#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""compute_bucket_assignment_by_size() gives the same result as PyTorch's, for random lists of
tensors. With indices, the last bucket of each type, which is not full, may come before or after
another's: in PyTorch a hash decides it.

buckets_test.py BUCKET_ASSIGNMENTS
"""

import random
import subprocess
import sys

from torch_or_skip import torch

CASES = 500
TYPES = {"float32": torch.float32, "float64": torch.float64, "float16": torch.float16,
         "bfloat16": torch.bfloat16}


def random_case(chosen):
    """Returns limits, indices or none, and the type and shape of each tensor."""
    count = chosen.randint(1, 30)
    types = chosen.sample(sorted(TYPES), chosen.randint(1, len(TYPES)))
    tensors = [(chosen.choice(types), [chosen.randint(0, 12) for _ in range(chosen.randint(0, 3))])
               for _ in range(count)]
    limits = [chosen.choice((1, 64, chosen.randint(1, 4000), chosen.randint(1, 40000), sys.maxsize))
              for _ in range(chosen.randint(1, 4))]
    indices = chosen.sample(range(count), count) if chosen.random() < 0.5 else []
    return limits, indices, tensors


def line_of(limits, indices, tensors):
    parts = [limits, indices, *((kind, *shape) for kind, shape in tensors)]
    return " | ".join(" ".join(map(str, part)) for part in parts)


def buckets_in_pytorch(limits, indices, tensors):
    """Returns the buckets, and how many of them are not full."""
    tensors = [torch.empty(shape, dtype=TYPES[kind]) for kind, shape in tensors]
    buckets, limit_of = torch.distributed._compute_bucket_assignment_by_size(
        tensors, limits, [False] * len(tensors), indices)
    by_index = dict(zip(indices or range(len(tensors)), tensors))
    sizes = [sum(by_index[i].nbytes for i in bucket) for bucket in buckets]
    return buckets, sum(size < limit for size, limit in zip(sizes, limit_of))


def with_sorted_end(buckets, count):
    begin = len(buckets) - count
    return buckets[:begin] + sorted(buckets[begin:])


def check(case, line):
    ours = [[int(i) for i in bucket.split()] for bucket in line.split(",")]
    theirs, unfinished = buckets_in_pytorch(*case)
    if case[1]:
        ours, theirs = (with_sorted_end(buckets, unfinished) for buckets in (ours, theirs))
    assert ours == theirs, f"{line_of(*case)}\nours:    {ours}\nPyTorch: {theirs}"
    return len(theirs)


def main():
    chosen = random.Random(3)
    cases = [random_case(chosen) for _ in range(CASES)]
    text = "".join(line_of(*case) + "\n" for case in cases)
    lines = subprocess.run([sys.argv[1]], input=text, check=True, text=True,
                           stdout=subprocess.PIPE).stdout.splitlines()
    assert len(lines) == CASES
    several = sum(check(case, line) > 1 for case, line in zip(cases, lines))
    assert several > CASES / 2, "hardly any list needs more than one bucket"
    print(f"equal for {CASES} lists, {several} of them in several buckets")


if __name__ == "__main__":
    main()

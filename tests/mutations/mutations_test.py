#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Leaves out one collective of model parallel training at a time, on all ranks: a test must fail.

mutant.cpp is preloaded into the tests' own programs. It does nothing for calls whose description,
such as "all_reduce(max) of float64: LABEL", matches a mutant's expression.
"""

import argparse
import concurrent.futures
import os
import pathlib
import subprocess
import sys

LINEAR = "nn_test Ranks/Layers.LinearEqualsTheWholeOneInEveryStyle/1"
NORMS = "nn_test Ranks/Layers.NormsOfASequenceSumTheirGradients/1"
TIED = "nn_test Ranks/Layers.EmbeddingAndItsLogitsEqualTheWholeOnes/1"
FEATURES = "nn_test Ranks/Layers.EmbeddingCutByFeatures/1"
LOSS = "nn_test Ranks/Layers.CrossEntropyEqualsTheWholeOne/1"
MODEL = "parallel_test Ranks/Parallelize.AModelComputesWhatTheWholeOneDoes/1"
SEQUENCE = "parallel_test Parallelize.ASequenceParallelModelComputesWhatTheWholeOneDoes"
SIZES = "tensor_test Differentiable.GathersOfAnySizesEqualOneProcess"
INPUTS = "nn_test EqualInputs.OtherActivationsAreAnErrorAndRoundingIsNone"
EXCHANGE = "tensor_test Differentiable.AllToAllEqualsOneProcess"
ULYSSES = "nn_test Ranks/Attention.ByUlyssesEqualsTheWholeOne/1"
RING = "nn_test Ranks/Attention.ByARingEqualsTheWholeOne/2"
HOSTS = "nn_test Context.OnSeveralHostsEqualsTheWholeOne"
EXPERTS = "nn_test Ranks/ExpertsOnRanks.ComputeWhatOneProcessDoesWithAllTokens/1"
REPLICAS = "nn_test Experts.AverageGradientsOverReplicasToo"

# The effect, the calls that are skipped, and the tests that must fail.
MUTANTS = [
    ("the sum of gradients before a colwise Linear",
     r"^all_reduce\(sum\).*: colwise \(copy_to_parallel_region\) backward", [LINEAR]),
    ("the same, in a model", r"^all_reduce\(sum\).*: blocks\.\d\.in \(copy_to.* backward", [MODEL]),
    ("the sum behind a rowwise Linear",
     r"^all_reduce\(sum\).*: rowwise \(reduce_from_parallel_region\) ", [LINEAR]),
    ("the same, in a model", r"^all_reduce\(sum\).*: blocks\.\d\.out \(reduce_from", [MODEL]),
    ("the outputs of the other ranks",
     r"^all_gather .*: colwise, gathered \(gather_from_parallel_region\) ", [LINEAR]),
    ("the gradients of the inputs that other ranks have",
     r"^all_gather .*: rowwise of a whole \(scatter_to_parallel_region\) backward", [LINEAR]),
    ("the sequence of the other ranks",
     r"^all_gather .*float.*: colwise of a sequence \(gather_from_sequence_region\) ", [LINEAR]),
    ("the sum of its gradients",
     r"^reduce_scatter.*: colwise of a sequence \(gather_from_sequence_region\) backward",
     [LINEAR]),
    ("the sum of a sequence",
     r"^reduce_scatter.*: rowwise to a sequence \(reduce_scatter_to_sequence_region\) ", [LINEAR]),
    ("the gradients of a sequence",
     r"^all_gather .*: rowwise to a sequence \(reduce_scatter_to_sequence_region\) backward",
     [LINEAR]),
    ("the sum of the bias's gradients over a sequence",
     r"^all_reduce\(sum\).*: rowwise to a sequence\.bias .* backward", [LINEAR]),
    ("a LayerNorm's sum of the weight's gradients",
     r"^all_reduce\(sum\).*: layer norm\.weight .* backward", [NORMS]),
    ("a LayerNorm's sum of the bias's gradients",
     r"^all_reduce\(sum\).*: layer norm\.bias .* backward", [NORMS]),
    ("an RMSNorm's sum of the weight's gradients",
     r"^all_reduce\(sum\).*: RMS norm\.weight .* backward", [NORMS]),
    ("the same, in a model", r"^all_reduce\(sum\).*: blocks\.\d\.norm\.\w+ .* backward",
     [SEQUENCE]),
    ("the rows of an embedding that other ranks have",
     r"^all_reduce\(sum\).*: wte \(reduce_from_parallel_region\) ", [TIED]),
    ("the sum of gradients before the logits",
     r"^all_reduce\(sum\).*: wte \(copy_to_parallel_region\) backward", [TIED]),
    ("the largest logits, sums and targets of other ranks",
     r"^all_gather of float64: cross_entropy", [LOSS, TIED]),
    ("the sum of a norm of gradients", r"^all_reduce\(sum\).*: clip_grad_norm_", [MODEL]),
    ("the maximum of a norm of gradients", r"^all_reduce\(max\).*: clip_grad_norm_", [MODEL]),
    ("the parts of a whole parameter", r"^all_gather .*float.*: gather_whole", [MODEL, FEATURES]),
    ("the sizes of parts", r"^all_gather of uint8: gather_from_\w+_region ", [SIZES]),
    ("the comparison of inputs", r"^all_gather of float64: in \(input\)", [INPUTS]),
    ("what ranks exchange", r"^all_to_all .*: all_to_all_in_region (?!backward)", [EXCHANGE]),
    ("the gradients of what ranks exchange", r"^all_to_all .*: all_to_all_in_region backward",
     [EXCHANGE]),
    ("the heads of other ranks",
     r"^all_to_all .*: attention \(ulysses.*\(all_to_all_in_region\) (?!backward)", [ULYSSES]),
    ("the gradients of other ranks' heads",
     r"^all_to_all .*: attention \(ulysses.*\(all_to_all_in_region\) backward", [ULYSSES]),
    ("the wait for keys' gradients that other ranks add up",
     r"^barrier: attention \(ring.* backward", [RING]),
    ("the keys and values of other hosts",
     r"^all_to_all .*: attention \(ring.*\)(?! backward)", [HOSTS]),
    ("their gradients", r"^all_to_all .*: attention \(ring.*\) backward", [HOSTS]),
    ("the numbers of rows for each expert", r"^all_gather of int64: experts", [EXPERTS]),
    ("the rows of other ranks' tokens",
     r"^all_to_all .*: experts \(all_to_all_rows_in_region\) (?!backward)", [EXPERTS]),
    ("the gradients of other ranks' tokens",
     r"^all_to_all .*: experts \(all_to_all_rows_in_region\) backward", [EXPERTS]),
    ("the numbers of replicas", r"^all_reduce\(sum\) of int64: experts", [REPLICAS]),
    ("the gradients of experts on replicas",
     r"^all_reduce\(sum\).*: experts\.up \(copy_to_parallel_region\) backward", [REPLICAS]),
]


def failure_of(options, pattern, test):
    """Returns why `test` has the wrong result: it must fail with a mutant and pass without one.
    A test that cannot run here, because an engine between hosts is missing, counts as right."""
    program, tests = test.split()
    environment = os.environ | {"LD_PRELOAD": options.mutant, "OMP_NUM_THREADS": "1"}
    if pattern:
        environment["LOCKSTEP_MUTANT"] = pattern
    try:
        done = subprocess.run([pathlib.Path(options.tests, program), f"--gtest_filter={tests}"],
                              env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                              text=True, timeout=120)
    except subprocess.TimeoutExpired:
        return f"{test} hangs"
    if "[==========] Running 0 tests" in done.stdout or done.returncode not in (0, 1):
        return f"{test} ended with code {done.returncode}:\n{done.stdout}"
    if "[  SKIPPED ]" in done.stdout:
        print(f"skipped: {test}")
        return None
    if pattern and "[  FAILED  ]" not in done.stdout:
        return f"{test} passes"
    return f"{test} fails:\n{done.stdout}" if not pattern and done.returncode != 0 else None


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tests", required=True, help="the folder of the tests' programs")
    parser.add_argument("--mutant", required=True, help="the library made of mutant.cpp")
    options = parser.parse_args()
    cases = [("nothing", None, test) for test in sorted({t for _, _, ts in MUTANTS for t in ts})]
    cases += [(what, pattern, test) for what, pattern, tests in MUTANTS for test in tests]
    with concurrent.futures.ThreadPoolExecutor(min(4, os.cpu_count())) as pool:
        found = list(pool.map(lambda case: failure_of(options, *case[1:]), cases))
    for (what, pattern, _), why in zip(cases, found):
        if why:
            print(f"without {what} ({pattern}): {why}")
    print(len(MUTANTS), "mutants,", sum(why is not None for why in found), "wrong results")
    return any(found)


if __name__ == "__main__":
    sys.exit(main())

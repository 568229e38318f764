#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measures what share_parameters gains in time and memory. The peers are weights in each rank
(plain DistributedDataParallel) and ZeRO, Lockstep's and PyTorch's.

The first part is training steps of a CNN with 8.5 MB of gradients and a GPT with 55 MB, at several
batch sizes. It shows samples/s against PyTorch and against what the machine can give, and the time
to sum gradients and step weights. The second part is the bytes of parameters, gradients, optimizer
state and buckets on 1, 2, 4 and 8 ranks, predicted and measured.

Every side has one thread per rank and fused Adam, on this host. PyTorch runs under torchrun with
Gloo, gradient_as_bucket_view and static_graph. Prints the median and range of the rounds' ratios.
"""

import pathlib
import sys
import time

import memory
import speed

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "ddp"))
from sides import measure  # noqa: E402, from the folder beside this

EXAMPLES = """examples:
  ./dev bench shared-parameters
  ./dev bench shared-parameters --quick
  ./dev bench shared-parameters --only memory --models gpt
  ./dev bench shared-parameters --only speed --sides "shared" Lockstep alone
  ./dev bench shared-parameters --models cnn --batches 4 32 --rounds 7 --json shared-parameters.json
"""


def parse_options():
    parser = measure.arguments(__doc__, EXAMPLES)
    all_sides = list(dict.fromkeys([*speed.SIDES, *memory.SIDES]))
    parser.add_argument("--models", nargs="+", choices=speed.MODELS, default=list(speed.MODELS),
                        metavar="MODEL", help="of cnn and gpt: both")
    parser.add_argument("--batches", type=int, nargs="+", choices=speed.BATCHES,
                        default=list(speed.BATCHES), metavar="N",
                        help="samples a rank and step: all of 4 32 128")
    parser.add_argument("--sides", nargs="+", choices=all_sides, default=all_sides, metavar="SIDE",
                        help=f"measure these alone, of: {', '.join(all_sides)}")
    parser.add_argument("--only", choices=["speed", "memory"], help="one of the two parts")
    parser.add_argument("--rounds", type=int, help="how often each side runs: 5, with --quick 2")
    parser.add_argument("--quick", action="store_true",
                        help="a third of the steps, and no more than 4 ranks: for a first look")
    parser.add_argument(
        "--same-malloc",
        action="store_true",
        help="give PyTorch's ranks the settings of malloc that lockstep run gives ours")
    options = parser.parse_args()
    if options.rounds is None:
        options.rounds = 2 if options.quick else 5
    if options.rounds < 1:
        parser.error("rounds must be positive")
    measure.require_built(parser, options, "bench_ddp")
    return options


def main():
    options = parse_options()
    if options.only != "memory":
        measure.warn_if_busy()
    started, results = time.monotonic(), {}
    for part in (speed, memory):
        if options.only in (None, part.__name__):
            part.run(options, started, results)


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares training steps under Lockstep with those under PyTorch's DistributedDataParallel with
Gloo and torchrun. Copies of the bare model, one per rank, all at once, show the machine's limit.
Every side has one thread per rank and fused Adam, on this host. PyTorch uses
gradient_as_bucket_view and static_graph.

The default model is a CNN with 8.5 MB of gradients, on 3x32x32 images, at several batch sizes.
--models measures any of these at one batch size: on 1, 2 and 4 ranks with buffers synchronised, and
on 2 ranks with find_unused_parameters, too:

  cnn              3x32x32 images, 10 classes
  resnet18         3x64x64 images, 100 classes
  efficientnet_b0  3x64x64 images, 100 classes
  gpt              6 layers of width 384, 6 heads; sequences of 128 tokens of 8192

--amp bf16 computes in bfloat16, by autocast, with images and weights in channels_last. It compares
with PyTorch in float32, as most programs run it, and with PyTorch given the same.

--device cuda gives each rank a GPU, and PyTorch NCCL. Parts of a step are the times to enqueue it.

--small-pages also compares our ranks, and the bare copies, with the same without huge pages, which
`lockstep run` asks glibc for.

--beside measures with so many other processes on the host that are always busy, at each --nice.
--bind compares with other bindings of our ranks.

Prints the median and range of the rounds' ratios.
"""

import time

import sides
import tables
from sides import Case, measure

EXAMPLES = """examples:
  ./dev bench ddp
  ./dev bench ddp --quick --batches 32
  ./dev bench ddp --models cnn resnet18 efficientnet_b0 gpt --json ddp.json
  ./dev bench ddp --models gpt --ranks 2 --rounds 5
  ./dev bench ddp --amp bf16
  ./dev bench ddp --device cuda --models resnet18 gpt --ranks 1 4
  ./dev bench ddp --beside 0 1 2 --nice 0 19 --bind core none --rounds 3
"""

# By the CNN's batch size: warm-up steps, timed steps.
CNN_STEPS = {4: (40, 200), 32: (10, 60), 128: (4, 20)}

# By model: samples per rank and step, so that a step takes 50 to 500 ms of one core; warm-up steps;
# timed steps.
MODELS = {"cnn": (32, 10, 60), "resnet18": (8, 5, 30), "efficientnet_b0": (8, 5, 30),
          "gpt": (2, 4, 15)}


def cases_of(options):
    def case(model, batch, ranks, find_unused, warmup, steps):
        if options.quick:
            warmup, steps = max(1, warmup // 3), max(3, steps // 3)
        return Case(model, batch, ranks, find_unused, warmup, steps, device=options.device)

    if not options.models:
        return [
            case("cnn", batch, ranks, False, *CNN_STEPS.get(batch, (10, 50)))._replace(
                beside=beside, nice=nice)
            for ranks in options.ranks for beside in options.beside
            for nice in (options.nice if beside else [0]) for batch in options.batches
        ]
    kinds = [(ranks, False) for ranks in options.ranks] + [(2, True)] * (2 in options.ranks)
    return [
        case(model, batch, *kind, warmup, steps) for model in options.models
        for batch, warmup, steps in [MODELS[model]] for kind in kinds
    ]


def measured(case, compared, options, say):
    """Returns the figures of a case in all rounds."""
    rounds = sides.run_rounds(tables.all_of(compared), case, options, say)

    def ratio(side, base):
        return measure.spread([entry[base]["samples_per_second"]
                               / entry[side]["samples_per_second"] for entry in rounds])

    return {**case._asdict(), "rounds": rounds,
            "ratios": {peer: ratio(peer, sides.base_of(peer, compared.ours))
                       for peer in compared.peers},
            "efficiency": ratio(compared.alone, compared.ours),
            **{side: tables.medians(rounds, side) for side in tables.all_of(compared)}}


def parse_options():
    parser = measure.arguments(__doc__, EXAMPLES)
    parser.add_argument("--models",
                        nargs="+",
                        choices=MODELS,
                        help="measure these, not the CNN alone")
    parser.add_argument("--batches", type=int, nargs="+",
                        help="of the CNN without --models: 4 32 128 samples a rank and step")
    parser.add_argument("--ranks", type=int, nargs="+",
                        help="2; with --models 1 2 4; with --device cuda 1")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu",
                        help="cuda: each rank on one GPU, and PyTorch with NCCL")
    parser.add_argument("--amp", choices=("bf16",), help="mixed precision, also of PyTorch")
    parser.add_argument("--beside", type=int, nargs="+", default=[0], metavar="N",
                        help="how many other processes are busy: 0; of the CNN without --models")
    parser.add_argument("--nice", type=int, nargs="+", default=[0], help="their nice values: 0")
    parser.add_argument("--bind", nargs="+", default=[], metavar="BINDING",
                        choices=[side.removeprefix("bind ") for side in sides.BOUND],
                        help="also compare with these bindings of our ranks: core, cache, numa, "
                             "none")
    parser.add_argument("--small-pages", action="store_true",
                        help="also compare our ranks, and bare copies, with the same without huge "
                             "pages")
    parser.add_argument("--rounds", type=int,
                        help="how often each side runs: 5, with --models 3, with --quick 2")
    parser.add_argument("--quick", action="store_true",
                        help="a third of the steps: for a first look")
    parser.add_argument(
        "--same-malloc",
        action="store_true",
        help="give PyTorch's ranks the settings of malloc that lockstep run gives ours")
    options = parser.parse_args()
    if options.models and (options.batches or any(options.beside)):
        parser.error("--batches and --beside are for the CNN without --models")
    if options.amp and (options.bind or options.small_pages):
        parser.error("--bind and --small-pages compare float32 alone")
    if options.device == "cuda" and (options.amp or options.bind or options.small_pages
                                     or any(options.beside)):
        parser.error("--device cuda measures float32 alone, without --bind, --small-pages and "
                     "--beside")
    options.batches = options.batches or list(CNN_STEPS)
    options.ranks = options.ranks or ([1] if options.device == "cuda" else
                                      [1, 2, 4] if options.models else [2])
    if options.rounds is None:
        options.rounds = 2 if options.quick else 3 if options.models else 5
    if min(options.rounds, *options.ranks, *options.batches) < 1:
        parser.error("rounds, ranks and batches must be positive")
    measure.require_built(parser, options, "bench_ddp")
    return options


def main():
    options = parse_options()
    measure.warn_if_busy()
    started = time.monotonic()
    compared = (tables.CUDA if options.device == "cuda" else
                tables.AMP if options.amp else tables.float32(options.bind, options.small_pages))
    print(tables.LEGEND.format(rounds=options.rounds,
                               quick=" of few steps" if options.quick else "")
          + tables.CUDA_LEGEND * (options.device == "cuda")
          + tables.AMP_LEGEND * bool(options.amp)
          + tables.SMALL_PAGES_LEGEND * options.small_pages)
    print(tables.header(compared), flush=True)
    cases, results = cases_of(options), []
    for number, case in enumerate(cases, 1):
        what = (f"case {number} of {len(cases)}: {case.model}, batch {case.batch}, "
                f"{case.ranks} ranks")
        results.append(
            measured(case,
                     compared,
                     options,
                     lambda text, what=what: measure.progress(started, f"{what}, {text}")))
        measure.progress(started, "")
        print(tables.row(results[-1], compared), flush=True)
        measure.save(options, results)
    tables.print_parts(results, compared)


if __name__ == "__main__":
    main()

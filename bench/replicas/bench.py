#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Shows what becomes of accuracy when replicas double. Trains examples/large_batch.cpp on
Fashion-MNIST with the batches of 1 to 16 replicas of 256 images, each method with several seeds.
All trainings read the same number of images. Two ranks compute the replicas, and any other number
of ranks would change no bit. Prints the accuracy on the test images: the mean over the seeds, and
the range.
"""

import io
import json
import pathlib
import statistics
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
import measure  # noqa: E402, from the folder above

EXAMPLES = """examples:
  ./dev bench replicas
  ./dev bench replicas --svg accuracy.svg --json accuracy.json
  ./dev bench replicas --methods unchanged lamb --replicas 8 16 --seeds 1
"""

METHODS = {"unchanged": "Adam, rate unchanged", "linear": "Adam, linear rule and warm-up",
           "lars": "LARS", "lamb": "LAMB"}
REPLICAS = (1, 2, 4, 8, 16)


def parse_options():
    parser = measure.arguments(__doc__, EXAMPLES, drawn="accuracy by number of replicas")
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS),
                        metavar="METHOD", help="all of " + " ".join(METHODS))
    parser.add_argument("--replicas", type=int, nargs="+", choices=REPLICAS,
                        default=list(REPLICAS), metavar="N", help="all of 1 2 4 8 16")
    parser.add_argument("--seeds", type=int, default=3, help="trainings of each case: 3")
    parser.add_argument("--epochs", type=int, default=8, help="8")
    options = parser.parse_args()
    if min(options.seeds, options.epochs) < 1:
        parser.error("all numbers are positive")
    measure.require_built(parser, options, "large_batch")
    if options.svg and (why := why_no_picture()):
        parser.error(why)
    return options


def why_no_picture():
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        return f"{sys.executable} has no matplotlib to draw --svg"
    return ""


def accuracy(method, replicas, seed, options):
    """Percent of the test images, after one training."""
    with tempfile.TemporaryDirectory() as folder:
        report = pathlib.Path(folder) / "report.json"
        measure.run(measure.lockstep_run(
            options.build, min(replicas, 2), "large_batch", "--replicas", replicas, "--method",
            method, "--seed", seed, "--epochs", options.epochs, "--json", report))
        return json.loads(report.read_text())["accuracy"] * 100


def measured(method, options, started):
    """The accuracies of all seeds, by number of replicas."""
    cases = {}
    for replicas in options.replicas:
        for seed in range(options.seeds):
            measure.progress(started, f"{METHODS[method]}: replicas {replicas}, seed {seed}")
            cases.setdefault(replicas, []).append(accuracy(method, replicas, seed, options))
    measure.progress(started, "")
    return cases


def row(label, cells):
    return f"{label:<31}" + "".join(f"{cell:>20}" for cell in cells)


def cell(percents):
    return f"{statistics.mean(percents):.2f} ({min(percents):.1f} - {max(percents):.1f})"


def picture(results):
    """Returns a line for each method, with the range of the seeds, as SVG."""
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams.update({"svg.hashsalt": "replicas", "svg.fonttype": "none",
                                "font.family": "sans-serif", "font.size": 11})
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7, 4.2), layout="constrained")
    for method, cases in results.items():
        means = [statistics.mean(percents) for percents in cases.values()]
        low = [mean - min(percents) for mean, percents in zip(means, cases.values())]
        high = [max(percents) - mean for mean, percents in zip(means, cases.values())]
        axes.errorbar(list(cases), means, [low, high], marker="o", capsize=3,
                      label=METHODS[method])
    axes.set_xscale("log", base=2)
    axes.set_xticks(sorted({n for cases in results.values() for n in cases}))
    axes.xaxis.set_major_formatter("{x:.0f}")
    axes.set_xlabel("replicas of 256 images, same number of images in all")
    axes.set_ylabel("accuracy on test images, %")
    axes.grid(alpha=0.3)
    axes.legend()
    file = io.StringIO()
    figure.savefig(file, format="svg", metadata={"Date": None})
    pyplot.close(figure)
    return file.getvalue()


def main():
    options = parse_options()
    started, results = time.monotonic(), {}
    print(f"accuracy in percent: mean of {options.seeds} seeds, and the range")
    print(row("replicas", options.replicas), flush=True)
    for method in options.methods:
        results[method] = measured(method, options, started)
        print(row(METHODS[method], map(cell, results[method].values())), flush=True)
        measure.save(options, results, picture)


if __name__ == "__main__":
    main()

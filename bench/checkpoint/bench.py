#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Benchmark of saving and loading a checkpoint of 1 GB: weights and Adam's moments in 180 tensors,
equal on both of two ranks.

The sides are Checkpointer and load_checkpoint() under lockstep run, and PyTorch's
torch.distributed.checkpoint (DCP) with its defaults under torchrun, with Gloo. dd conv=fsync of one
file of as many zeros shows the limit of the place. The places are a disk and memory (tmpfs).

Each side removes its files. Prints the median and range of the rounds' ratios. Lockstep compares
checksums of all loaded data.
"""

import collections
import json
import pathlib
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

import files

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))
import measure  # noqa: E402, from the folder above

EXAMPLES = """examples:
  ./dev bench checkpoint
  ./dev bench checkpoint --quick --places tmpfs
  ./dev bench checkpoint --gb 4 --rounds 3 --dir /mnt/nvme --json checkpoint.json
"""

RANKS = 2
SAVES = 2  # Per side and round. The last one counts: the first must take memory and make files.
SIDES = ("Lockstep", "DCP", "dd")
FIGURES = {"save": "save", "load": "load", "load_cold": "load, cold"}
TMPFS = pathlib.Path("/dev/shm")

LEGEND = """A state of {gb:g} GB in {ranks} ranks, {rounds} rounds. Seconds and GB/s are medians.
save        until it would outlast a power failure, of the slowest rank; the second of two
load        with the files in the page cache, the second of two; Lockstep's compares checksums,
            DCP's and dd's do not
load, cold  the first, right after posix_fadvise(DONTNEED) on all files, which needs no root
stall       what an asynchronous save() takes of the caller's time, as a share of a synchronous
            save; prepared: the first one after prepare()
memory      by how much the ranks together grow at the peak, as a multiple of what a checkpoint
            holds
"""

Place = collections.namedtuple("Place", "name folder cold")


def parse_options():
    parser = measure.arguments(__doc__, EXAMPLES)
    parser.add_argument("--rounds", type=int, help="how often each side runs: 5, with --quick 2")
    parser.add_argument("--gb",
                        type=float,
                        help="of the state, in 1e9 bytes: 1, with --quick 0.256")
    parser.add_argument("--quick",
                        action="store_true",
                        help="256 MB and two rounds: for a first look")
    parser.add_argument("--places", nargs="+", choices=["disk", "tmpfs"], default=["disk", "tmpfs"],
                        metavar="PLACE", help="of disk and tmpfs (/dev/shm): both")
    parser.add_argument(
        "--dir",
        type=pathlib.Path,
        help="a folder on the disk: that for temporary files, or if that is in memory,"
        " the build folder")
    parser.add_argument("--sides", nargs="+", choices=SIDES, default=list(SIDES), metavar="SIDE",
                        help=f"measure these alone, of: {', '.join(SIDES)}")
    options = parser.parse_args()
    options.rounds = options.rounds or (2 if options.quick else 5)
    options.gb = options.gb or (0.256 if options.quick else 1)
    if options.rounds < 1 or options.gb <= 0:
        parser.error("rounds and gb must be positive")
    if options.dir and not options.dir.is_dir():
        parser.error(f"{options.dir} is no folder")
    measure.require_built(parser, options, "bench_checkpoint")
    return options


def file_system_of(folder):
    return subprocess.run(["stat", "-f", "-c", "%T", folder], text=True, check=True,
                          stdout=subprocess.PIPE).stdout.strip()


def places(options):
    temporary = pathlib.Path(tempfile.gettempdir())
    disk = options.dir or (options.build if file_system_of(temporary) == "tmpfs" else temporary)
    all_places = {"disk": Place("disk", disk, True), "tmpfs": Place("tmpfs", TMPFS, False)}
    for name in options.places:
        place = all_places[name]
        free = shutil.disk_usage(place.folder).free
        if free < 2.5e9 * options.gb:
            print(f"{name}: left out, as {place.folder} has room for {free / 1e9:.1f} GB only\n")
        else:
            yield place


# --- One run of a side --------------------------------------------------------------------------

def run(side, place, size, options):
    """Returns the side's figures by name, or its failure as "error"; removes its files."""
    with tempfile.TemporaryDirectory(prefix="lockstep-bench-", dir=place.folder) as folder:
        work = ["--dir", folder, "--gb", options.gb, "--saves", SAVES, *(["--cold"] * place.cold)]
        try:
            if side == "dd":
                return run_dd(pathlib.Path(folder), size, place.cold)
            if side == "Lockstep":
                command = measure.lockstep_run(options.build, RANKS, "bench_checkpoint", *work)
            else:
                command = measure.torchrun(options.python, RANKS, HERE / "dcp.py", *work)
            return figures_of(measure.run(command))
        except SystemExit as failure:
            return {"error": str(failure)}


def figures_of(output):
    found = re.search(r"\bfigures (\{.*\})", output)
    if not found:
        sys.exit(f"no figures in: {output}")
    figures = json.loads(found[1])
    return figures | {"all_saves": figures["save"], "save": figures["save"][-1]}


def run_dd(folder, size, cold):
    """Writes one file of whole MiB, of at most `size` bytes."""
    whole = folder / "file"
    for _ in range(SAVES):
        whole.unlink(missing_ok=True)
        save = seconds_of(["dd", "if=/dev/zero", f"of={whole}", "bs=1M", f"count={size >> 20}",
                           "conv=fsync"])
    figures = {"save": save, "bytes": whole.stat().st_size}
    read = ["dd", f"if={whole}", "of=/dev/null", "bs=1M"]
    if cold:
        files.drop_cached(folder)
    first = seconds_of(read)
    figures |= {"load_cold": first} if cold else {}
    figures["load"] = seconds_of(read)
    return figures


def seconds_of(command):
    started = time.perf_counter()
    measure.run(command)
    return time.perf_counter() - started


# --- All rounds, and their results --------------------------------------------------------------

def measured(place, options, say):
    rounds = []
    for number in range(options.rounds):
        rounds.append({})
        for side in measure.in_turn(number, options.sides):
            say(f"{place.name}, round {number + 1} of {options.rounds}: {side}")
            rounds[-1][side] = run(side, place, int(options.gb * 1e9), options)
    return rounds


def values(rounds, side, name):
    """Returns the figures of the rounds in which the side did not fail."""
    return [entry[side][name] for entry in rounds if name in entry.get(side, {})]


def ratios(rounds, side, base, name):
    """Returns the speed of `side` as a multiple of `base`."""
    found = [entry[base][name] / entry[side][name] for entry in rounds
             if name in entry.get(side, {}) and name in entry.get(base, {})]
    return measure.spread(found) if found else None


def stalls(rounds, number):
    """Returns the time of asynchronous save `number` as a share of the round's synchronous one."""
    found = [entry["Lockstep"]["async_save"][number] / entry["Lockstep"]["all_saves"][number]
             for entry in rounds if "async_save" in entry.get("Lockstep", {})]
    return measure.spread(found) if found else None


def prepared_stalls(rounds):
    found = [entry["Lockstep"]["async_prepared"] / entry["Lockstep"]["save"] for entry in rounds
             if "async_prepared" in entry.get("Lockstep", {})]
    return measure.spread(found) if found else None


def growths(rounds, side, name):
    found = [entry[side][name] / entry[side]["bytes"] for entry in rounds
             if name in entry.get(side, {})]
    return measure.spread(found) if found else None


def compared(rounds):
    return {"ratios": {base: {name: ratios(rounds, "Lockstep", base, name) for name in FIGURES}
                       for base in ("DCP", "dd")},
            "stall": {"first": stalls(rounds, 0), "prepared": prepared_stalls(rounds),
                      "later": stalls(rounds, -1)},
            "memory": {"sync": growths(rounds, "Lockstep", "memory"),
                       "async": growths(rounds, "Lockstep", "async_memory"),
                       "DCP": growths(rounds, "DCP", "memory")}}


# --- Output -------------------------------------------------------------------------------------

def print_place(place, rounds, result, options):
    print(f"{place.name}: {place.folder}, {file_system_of(place.folder)}")
    print(" " * 16 + "".join(f"{text:>12}{'GB/s':>8}" for text in FIGURES.values()))
    for side in options.sides:
        print(f"  {side:<14}" + "".join(cell(rounds, side, name) for name in FIGURES))
    for base, of_base in result["ratios"].items():
        for name, text in FIGURES.items():
            if of_base[name]:
                print(f"  {f'{text}: times as fast as {base}':<36}{spread_text(of_base[name])}")
    for which, stall in result["stall"].items():
        if stall:
            print(f"  {f'stall, {which} save':<36}{spread_text(stall, 100, ' %')}")
    for which, growth in result["memory"].items():
        if growth:
            print(f"  {f'memory, {which}':<36}{spread_text(growth)}")
    print_failures(rounds)
    print(flush=True)


def cell(rounds, side, name):
    seconds = values(rounds, side, name)
    if not seconds:
        return f"{'-':>12}{'':>8}"
    rates = [entry[side]["bytes"] / 1e9 / entry[side][name] for entry in rounds
             if name in entry.get(side, {})]
    return f"{statistics.median(seconds):>10.3f} s{statistics.median(rates):>8.2f}"


def spread_text(spread, factor=1, unit=""):
    middle, low, high = (factor * spread[key] for key in ("ratio", "ratio_low", "ratio_high"))
    return f"{middle:6.2f}{unit}  ({low:.2f} - {high:.2f})"


def print_failures(rounds):
    for number, entry in enumerate(rounds, 1):
        for side, figures in entry.items():
            if "error" in figures:
                print(f"  {side} failed in round {number}: {figures['error']}")


def main():
    options = parse_options()
    measure.warn_if_busy()
    started, results = time.monotonic(), []
    print(LEGEND.format(gb=options.gb, ranks=RANKS, rounds=options.rounds), flush=True)
    for place in places(options):
        rounds = measured(place, options, lambda text: measure.progress(started, text))
        measure.progress(started, "")
        result = compared(rounds)
        print_place(place, rounds, result, options)
        results.append({"place": place.name, "folder": str(place.folder), "gb": options.gb,
                        "rounds": rounds, **result})
        measure.save(options, results)
    return any("error" in side for result in results for entry in result["rounds"]
               for side in entry.values())


if __name__ == "__main__":
    sys.exit(main())

# SPDX-License-Identifier: Apache-2.0
"""Common parts of the benchmarks: options, one run of a program, the order of a round, ratios, and
a progress line."""

import argparse
import json
import os
import pathlib
import platform
import re
import shutil
import statistics
import subprocess
import sys
import time

import ratio_plot

RELEASE = pathlib.Path(__file__).resolve().parent.parent / "build" / "release"


def arguments(description, examples=None, drawn="all ratios and their ranges"):
    """Returns a parser with the options that `./dev bench` passes and those that all benchmarks
    have. `drawn` describes the picture that --svg writes; without it there is no --svg."""
    parser = argparse.ArgumentParser(prog=command(), description=description,
                                     epilog=examples,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=pathlib.Path, default=RELEASE,
                        help="build folder; given by ./dev bench")
    parser.add_argument("--python", default=sys.executable,
                        help="a Python that has torch; given by ./dev bench")
    parser.add_argument("--json", type=writable, help="also write every figure there")
    if drawn:
        parser.add_argument("--svg", type=writable, help=f"also draw {drawn} there")
    return parser


def command():
    return f"./dev bench {pathlib.Path(sys.argv[0]).resolve().parent.name.replace('_', '-')}"


def writable(name):
    """Checks before any measurement that the file at this path can be written; returns the path."""
    path = pathlib.Path(name)
    if path.is_dir():
        raise argparse.ArgumentTypeError(f"{path} is a folder")
    if not os.access(path.parent, os.W_OK):
        raise argparse.ArgumentTypeError(
            f"{path.parent} is no folder in which a file may be written")
    return path


def require_built(parser, options, program):
    if not (options.build / "bin" / program).exists():
        parser.error(f"no {program} in {options.build}/bin; ./dev bench builds it")


def warn_if_busy():
    """Prints the load average if it distorts the figures."""
    load = os.getloadavg()[0]
    if load > 0.5:
        print(f"this host is busy (load {load:.1f}): the figures will be, too", file=sys.stderr)
    return load


def host():
    """Returns the processor, the number of its CPUs and the kernel of this host."""
    found = re.search(r"model name\s*: (.*)", pathlib.Path("/proc/cpuinfo").read_text())
    return {"processor": found[1] if found else platform.machine(),
            "cpus": len(os.sched_getaffinity(0)), "kernel": platform.release()}


def drawing(figures):
    """Returns a picture of all ratios in the figures, as SVG; empty if there is none."""
    ratios = ratio_plot.ratios_in(figures)
    return ratio_plot.picture(command(), ratios) if ratios else ""


def save(options, figures, draw=drawing):
    """Writes the figures to --json and their picture to --svg, as far as these are given."""
    if options.json:
        replace(options.json, json.dumps(figures, indent=2) + "\n")
    if getattr(options, "svg", None) and (picture := draw(figures)):
        replace(options.svg, picture)


def replace(path, text):
    """Replaces the whole file. On failure, the file is unchanged and the reason is printed."""
    new = path.with_name(path.name + ".new")
    try:
        new.write_text(text)
        new.replace(path)
    except OSError as error:
        new.unlink(missing_ok=True)
        print(f"{path} is not written: {error.strerror}", file=sys.stderr)


def run(command, **variables):
    """Returns the standard output of a program whose ranks have one thread each; exits on its
    failure."""
    environment = os.environ | {"OMP_NUM_THREADS": "1"} | variables
    command = [str(word) for word in command]
    done = subprocess.run(command, env=environment, text=True, stdin=subprocess.DEVNULL,
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)}\n{done.stdout}{done.stderr}exit code {done.returncode}")
    return done.stdout


def lockstep_run(build, ranks, program, *options, launcher=()):
    """Returns the command that runs our side: `options` are the program's, `launcher` are those of
    `lockstep run`."""
    programs = build / "bin"
    return [programs / "lockstep", "run", *launcher, "-n", ranks, programs / program, *options]


def times_in(text):
    """Returns the nanoseconds that bench_launcher's ranks print, by what happened then."""
    times = {}
    for what, nanoseconds in re.findall(r"\b(begin|end|killed|error) (\d+)", text):
        times.setdefault(what, []).append(int(nanoseconds))
    return times


def torchrun(python, ranks, script, *options, launcher=()):
    """Returns the command that runs PyTorch's side: `options` are the script's, `launcher` are
    torchrun's; without these the job is on this host only."""
    return [python, "-m", "torch.distributed.run", *(launcher or ["--standalone"]),
            "--nproc-per-node", ranks, script, *options]


def why_no_open_mpi(build):
    """Returns why Open MPI's side cannot run; empty if it can."""
    if not shutil.which("mpirun"):
        return "no mpirun in PATH: it is in openmpi-bin"
    if not (build / "bin" / "bench_collectives_open_mpi").exists():
        return (f"no bench_collectives_open_mpi in {build}/bin: CMake found no MPI; it is in "
                "libopenmpi-dev")
    return ""


def why_no_torch(python):
    look = "import importlib.util, sys; sys.exit(importlib.util.find_spec('torch') is None)"
    found = bool(shutil.which(python)) and subprocess.run([python, "-c", look],
                                                          check=False).returncode == 0
    return "" if found else f"{python} has no torch; --python names one that has"


def in_turn(number, sides):
    """Returns the sides of round `number`, in reverse order every other time."""
    return list(sides) if number % 2 == 0 else list(reversed(sides))


def spread(ratios):
    """Returns median and range of the ratios of all rounds."""
    return {"ratio": statistics.median(ratios), "ratio_low": min(ratios), "ratio_high": max(ratios)}


def short(value):
    """Formats a number with at least three digits."""
    return f"{value:.{2 if value < 9.995 else 1 if value < 99.95 else 0}f}"


def progress(started, text):
    """Shows on standard error what is running; an empty text removes the line."""
    end = "" if sys.stderr.isatty() else "\n"
    begin = "\r\033[K" if sys.stderr.isatty() else ""
    line = f"{begin}{time.monotonic() - started:4.0f} s  {text}" if text else begin
    print(line, end=end if text else "", file=sys.stderr, flush=True)

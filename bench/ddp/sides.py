# SPDX-License-Identifier: Apache-2.0
"""Runs each side of a bench.py: Lockstep, PyTorch, and copies of the bare model. Each rank has a
copy, without a group, and all copies run concurrently. The copies measure the machine's limit:
efficiency is relative to it."""

import collections
import contextlib
import os
import pathlib
import re
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))
import measure  # noqa: E402, from the folder above

# By side: options of bench_ddp under `lockstep run`.
OURS = {"Lockstep": [], "shared": ["--optimizer", "shared"],
        "ZeRO-1": ["--optimizer", "zero1"], "ZeRO-2": ["--optimizer", "zero2"],
        "bf16": ["--bf16"], "PowerSGD": ["--power-sgd", 4],
        "PowerSGD 25 MB": ["--power-sgd", 4, "--bucket-cap-mb", 25],
        "Lockstep amp": ["--amp"]}

# By side: options of train_pytorch.py under torchrun.
THEIRS = {"PyTorch": [], "PyTorch ZeRO": ["--zero"], "PyTorch fp16": ["--fp16"],
          "PyTorch PowerSGD": ["--power-sgd", 4], "PyTorch amp": ["--amp"],
          "PyTorch compile": ["--compile"], "PyTorch amp compile": ["--amp", "--compile"]}

# By side: options of bench_ddp for copies of the bare model.
BARE = {"alone": [], "alone amp": ["--amp"]}

# One process with all threads of the ranks and the batch of all of them.
ALL_THREADS = {"all threads": [], "all threads amp": ["--amp"]}

# Settings that `lockstep run` makes unless any malloc setting exists: the process keeps memory that
# a step frees for the next step, in huge pages.
KEEPING = {"MALLOC_MMAP_THRESHOLD_": str(1 << 30), "MALLOC_TRIM_THRESHOLD_": str(1 << 40)}
MALLOC = KEEPING | {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}
if any(name.startswith("MALLOC_") or name == "GLIBC_TUNABLES" for name in os.environ):
    MALLOC = {}

# By side that differs from another one only in malloc settings: the other side, and the settings.
OTHER_MALLOC = {"small pages": ("Lockstep", KEEPING), "alone small pages": ("alone", KEEPING)}

# Options of `lockstep run` for sides that differ from "Lockstep" only in the binding.
BOUND = {f"bind {binding}": ["--bind", binding] for binding in ("core", "cache", "numa", "none")}
OURS |= dict.fromkeys(BOUND, [])

# `beside`: other processes that keep a core busy each, with this `nice` value.
Case = collections.namedtuple("Case",
                              "model batch ranks find_unused warmup steps beside nice device",
                              defaults=(0, 0, "cpu"))


def run_rounds(sides, case, options, say):
    """Returns the results of run() for each round, by side. Passes the name of the running side to
    `say`."""
    rounds = []
    for number in range(options.rounds):
        rounds.append({})
        for side in measure.in_turn(number, sides):
            say(f"round {number + 1} of {options.rounds}: {side}")
            rounds[-1][side] = run(side, case, options)
    return rounds


def run(side, case, options):
    """Returns the figures of one run by name: samples_per_second, the parts of a step in ms, and
    its page faults."""
    side, malloc = OTHER_MALLOC.get(side, (side, None))
    with neighbours(case.beside, case.nice):
        if side in ALL_THREADS:
            whole = case._replace(batch=case.batch * case.ranks)
            return copies([options.build / "bin" / "bench_ddp", *work_of(whole), "--alone",
                           "--on-cue", "--threads", case.ranks, *ALL_THREADS[side]],
                          1, MALLOC, case.ranks)
        if side in BARE:
            return copies([options.build / "bin" / "bench_ddp", *work_of(case), "--alone",
                           "--on-cue", *BARE[side]], case.ranks, malloc or MALLOC)
        command = command_of(side, case, options)
        return figures_of(measure.run(command,
                                      **(malloc or (MALLOC if options.same_malloc else {}))))


def base_of(peer, ours):
    """Returns the side whose speed is divided by that of `peer`: `ours`, or the side that differs
    from it only in malloc settings."""
    return OTHER_MALLOC.get(peer, (ours, None))[0]


@contextlib.contextmanager
def neighbours(count, nice):
    """Keeps `count` processes busy meanwhile, on any cores, in separate sessions, like the jobs of
    others: the kernel may distribute cores by session."""
    command = ["setpriv", "--pdeathsig", "KILL", "nice", "-n", str(nice),
               sys.executable, "-c", "while True: pass"]
    busy = [subprocess.Popen(command, start_new_session=True)
            for _ in range(count)]
    try:
        yield
    finally:
        for process in busy:
            process.kill()
            process.wait()


def work_of(case):
    device = ["--device", case.device] if case.device != "cpu" else []  # Unknown to older builds.
    return ["--model", case.model, "--batch", case.batch, "--warmup", case.warmup,
            "--steps", case.steps, *device]


def command_of(side, case, options, launcher=()):
    """Returns the command that starts a side's ranks on this host; `launcher` are further options
    of its launcher."""
    work = work_of(case) + ["--find-unused"] * case.find_unused
    if side in OURS:
        return measure.lockstep_run(options.build, case.ranks, "bench_ddp", *work, *OURS[side],
                                    launcher=[*launcher, *BOUND.get(side, ())])
    return measure.torchrun(options.python, case.ranks, HERE / "train_pytorch.py", *work,
                            *THEIRS[side], launcher=launcher)


def figures_of(output):
    names = "samples_per_second|forward|backward|optimizer|copy|wait|reduce|step|cpu|faults"
    found = {name: float(value) for name, value in re.findall(rf"\b({names}) ([\d.e+-]+)", output)}
    return found if "samples_per_second" in found else sys.exit(
        f"no samples_per_second in: {output}")


# --- The bare model -----------------------------------------------------------------------------

def copies(command, count, malloc, threads=1):
    """Returns the samples/s of all copies together, and the mean parts of a step.

    Each copy has the cores, the threads, the malloc and the GPU of a rank. Their clocks start
    together. If one fails, the others get no cue and end.
    """
    started = [start(command, cpus, malloc | {"CUDA_VISIBLE_DEVICES": str(number)}, threads)
               for number, cpus in enumerate(divide_cpus(os.sched_getaffinity(0), count))]
    for process, errors in started:
        if process.stdout.readline() != "ready\n":
            fail(command, process, errors)
    for process, _ in started:
        process.stdin.write("go\n")
        process.stdin.flush()
    figures = [finish(command, process, errors) for process, errors in started]
    return {
        name: sum(entry[name] for entry in figures) / (1 if name == "samples_per_second" else count)
        for name in figures[0]
    }


def start(command, cpus, malloc, threads):
    errors = tempfile.TemporaryFile("w+")
    bind = (lambda: os.sched_setaffinity(0, cpus)) if cpus else None
    environment = os.environ | {"OMP_NUM_THREADS": str(threads)} | malloc
    return subprocess.Popen([str(word) for word in command], env=environment, text=True,
                            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors,
                            preexec_fn=bind), errors


def finish(command, process, errors):
    output = process.communicate()[0]
    return figures_of(output) if process.returncode == 0 else fail(command, process, errors)


def fail(command, process, errors):
    process.kill()
    process.wait()
    errors.seek(0)
    sys.exit(f"{' '.join(map(str, command))}\n{errors.read()}exit code {process.returncode}")


def divide_cpus(cpus, ranks, system=pathlib.Path("/sys/devices/system/cpu")):
    """Returns the CPUs of each rank: all those of its cores, as `lockstep run --bind core` gives
    them. With more ranks than cores, none."""
    cores = cores_of(cpus, system)
    if ranks > len(cores):
        return [[]] * ranks
    return [sum(cores[len(cores) * i // ranks:len(cores) * (i + 1) // ranks], [])
            for i in range(ranks)]


def cores_of(cpus, system):
    """Returns the CPUs of each core, by package and lowest CPU. A CPU that the kernel does not
    describe counts as a core."""
    cores = {}
    for cpu in sorted(cpus):
        topology = system / f"cpu{cpu}" / "topology"
        package = int(text_of(topology / "physical_package_id", 0))
        siblings = text_of(topology / "thread_siblings_list", cpu)
        cores.setdefault((package, siblings), []).append(cpu)
    return [cores[key] for key in sorted(cores, key=lambda key: (key[0], cores[key]))]


def text_of(file, otherwise):
    return file.read_text().strip() if file.exists() else otherwise

# SPDX-License-Identifier: Apache-2.0
"""all_reduce of all sides of bench.py, on existing hosts."""

import collections

from jobs import HERE, measure
from cases import KB, MB, Case, case_text, figures_of

# By link: number of counted calls per size.
Size = collections.namedtuple("Size", "name calls")
SIZES = {
    64 * KB: Size("64 KB", {"as it is": 200, "1 Gbit/s": 60}),
    1 * MB: Size("1 MB", {"as it is": 60, "1 Gbit/s": 20}),
    8 * MB: Size("8 MB", {"as it is": 20, "1 Gbit/s": 6}),
    64 * MB: Size("64 MB", {"as it is": 5, "1 Gbit/s": 2}),
}

# "Lockstep" uses two levels, which do not help with one rank per host. "flat" is Lockstep with the
# engine only. "own" is the engine without Lockstep; "PyTorch" is another Gloo.
Side = collections.namedtuple("Side", "engine kind")


class Engines:
    """The engines that exist here, and why others are missing."""

    def __init__(self, options):
        self.build = options.build
        self.absent = {}
        for engine in options.engines:
            if why := self._why_not(engine):
                self.absent[engine] = why
        if why := measure.why_no_torch(options.python):
            self.absent["PyTorch"] = why
        self.here = [engine for engine in options.engines if engine not in self.absent]

    def _why_not(self, engine):
        plugin = self.build / "lib" / f"liblockstep-engine-{engine}.so"
        if not plugin.exists():
            return f"no {plugin.name} in {plugin.parent}"
        return measure.why_no_open_mpi(self.build) if engine == "mpi" else ""

    def sides(self, ranks):
        found = []
        for engine in self.here:
            found += [Side(engine, kind) for kind in ("Lockstep", "flat", "own")
                      if kind != "flat" or ranks > 1]
        with_torch = "gloo" in self.here and "PyTorch" not in self.absent
        return found + [Side("gloo", "PyTorch")] * with_torch


def measure_all_reduce(engines, options, job, link, number, say):
    """Returns the microseconds of each case, by side."""
    figures = {}
    for side in measure.in_turn(number, engines.sides(job.ranks)):
        say(f"all_reduce, {side.engine}, {side.kind}")
        figures[side] = figures_of(run(side, job, work_of(side, job, link, options.quick)),
                                   job.ranks)
    return figures


def work_of(side, job, link, quick):
    memories = ("registered", "any") if side.kind in ("Lockstep", "flat") else ("any",)
    return [case_text(Case("all_reduce", job.ranks, size, memory),
                      max(2, calls[link] // (3 if quick else 1)), 1)
            for size, (_, calls) in SIZES.items() for memory in memories]


def run(side, job, work):
    if side.kind == "PyTorch":
        return job.by_torchrun(HERE.parent / "collectives" / "gloo.py", *work)
    if side.kind == "own" and side.engine == "mpi":
        return job.by_mpirun("bench_collectives_open_mpi", *work)
    if side.kind == "own":
        return job.by_lockstep("bench_hosts_engine", side.engine, *work,
                               LOCKSTEP_ENGINE_PATH=str(job.options.build / "lib"))
    backend = f"shm+{side.engine}" if side.kind == "Lockstep" else side.engine
    start = job.by_mpirun if side.engine == "mpi" else job.by_lockstep
    return start("bench_collectives", *work, LOCKSTEP_BACKEND=backend)

# SPDX-License-Identifier: Apache-2.0
"""Jobs on simulated hosts of this machine: starts each side of bench.py on them."""

import contextlib
import os
import pathlib
import secrets
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
sys.path += [
    str(HERE.parent / "collectives"),
    str(HERE.parent / "ddp"),
    str(ROOT / "tests" / "hosts")
]
import network_hosts  # noqa: E402
import sides  # noqa: E402
from sides import measure  # noqa: E402

HOSTS = 2
PORT = 29400
TIME_LIMIT = 900  # Seconds for a job, many times the slowest.
TIME_TO_FOLLOW = 10  # Seconds in which launchers detect another's failure.

# By name: the rate of tbf in each direction, at both ends.
LINKS = {"as it is": None, "1 Gbit/s": "1gbit"}


@contextlib.contextmanager
def hosts_of(link):
    with network_hosts.Hosts(HOSTS) as hosts:
        if LINKS[link]:
            for host in hosts:
                host.shape(LINKS[link])
        yield hosts


def cpus_of_hosts():
    """Returns the CPUs of each host: its share of this machine's cores."""
    return sides.divide_cpus(os.sched_getaffinity(0), HOSTS)


class Job:
    """Ranks of one program, equally many on each host."""

    def __init__(self, hosts, ranks, options):
        self.hosts = hosts
        self.ranks = ranks  # Per host.
        self.options = options

    def by_lockstep(self, program, *words, **variables):
        return self._on_each(lambda host: measure.lockstep_run(
            self.options.build, self.ranks, program, *words, launcher=self._at_first(host)),
            **of_lockstep(), **variables)

    def by_torchrun(self, script, *words):
        return self._on_each(lambda host: measure.torchrun(
            self.options.python, self.ranks, script, *words, launcher=self._at_master(host)),
            **OF_TORCHRUN)

    def by_mpirun(self, program, *words, **variables):
        settings = [f"{name}={value}" for name, value in
                    {"OMP_NUM_THREADS": "1", **variables}.items()]
        command = ["mpirun", *self.hosts.mpirun_options(), "--bind-to", "none",
                   "--mca", "btl_tcp_if_include", "eth0", "--mca", "oob_tcp_if_include", "eth0",
                   "--mca", "mpi_yield_when_idle", int(self._is_crowded())]
        for host in self.hosts:
            command += [*([":"] if host.number > 1 else []), "--host", f"{host.name}:{self.ranks}",
                        "-n", self.ranks, "env", *settings,
                        *self._bound(host, [self.options.build / "bin" / program, *words])]
        return run_all([(self.hosts[0], command)], {})

    def train(self, side, case):
        """Returns the figures of a side of bench/ddp."""
        ours = side in sides.OURS
        launcher = self._at_first if ours else self._at_master
        return sides.figures_of(self._on_each(
            lambda host: sides.command_of(side, case, self.options, launcher=launcher(host)),
            **(of_lockstep() if ours else OF_TORCHRUN)))

    def _at_first(self, host):
        return ["--nnodes", HOSTS, "--node-rank", host.number - 1, "--rdzv-id", "bench",
                "--rdzv-endpoint", f"{self.hosts[0].address}:{PORT}"]

    def _at_master(self, host):
        return ["--nnodes", HOSTS, "--node-rank", host.number - 1,
                "--master-addr", self.hosts[0].address, "--master-port", PORT]

    def _on_each(self, command_on, **variables):
        return run_all([(host, self._bound(host, command_on(host))) for host in self.hosts],
                       variables)

    def _bound(self, host, words):
        cpus = cpus_of_hosts()[host.number - 1]
        return ["taskset", "--cpu-list", ",".join(map(str, cpus)), *words] if cpus else words

    def _is_crowded(self):
        return self.ranks > len(cpus_of_hosts()[0])


def of_lockstep():
    return {"LOCKSTEP_JOB_TOKEN": secrets.token_urlsafe(32)}


OF_TORCHRUN = {"GLOO_SOCKET_IFNAME": "eth0"}


def run_all(commands, variables):
    """Runs commands on their hosts concurrently; returns their joined outputs. Exits on failure."""
    environment = os.environ | {"OMP_NUM_THREADS": "1"} | variables
    with contextlib.ExitStack() as stack:
        files = [(stack.enter_context(tempfile.TemporaryFile("w+")),
                  stack.enter_context(tempfile.TemporaryFile("w+"))) for _ in commands]
        processes = [host.popen(words, env=environment, stdin=subprocess.DEVNULL, stdout=out,
                                stderr=err)
                     for (host, words), (out, err) in zip(commands, files)]
        problem = await_all(processes)
        outputs = [text_of(out) for out, _ in files]
        if problem:
            errors = [text_of(err) for _, err in files]
            shown = " ".join(map(str, commands[0][1]))
            sys.exit(f"\n{shown}\n{''.join(outputs)}{''.join(errors)}{problem}")
        return "".join(outputs)


def text_of(file):
    file.seek(0)
    return file.read()


def await_all(processes):
    """Waits for all processes to end. Returns the problem; empty if all succeeded."""
    deadline = time.monotonic() + TIME_LIMIT
    while any(process.poll() is None for process in processes) and time.monotonic() < deadline:
        if any(process.poll() for process in processes):
            deadline = min(deadline, time.monotonic() + TIME_TO_FOLLOW)
        time.sleep(0.01)
    late = [process for process in processes if process.poll() is None]
    failed = [process.returncode for process in processes if process.returncode]
    for process in late:
        process.kill()
        process.wait()
    if failed:
        return f"exit codes {failed}"
    return f"it did not end within {TIME_LIMIT} s" if late else ""

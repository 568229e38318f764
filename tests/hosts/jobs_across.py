# SPDX-License-Identifier: Apache-2.0
"""A job of hosts_rank on the hosts of network_hosts.py, started in one of several ways.

    job = Job(hosts, options, "--steps", 100, LOCKSTEP_BACKEND="shm+gloo")
    job.by_lockstep_run((2, 2))
    job.until("stepping", 4)

Ranks (rank_of_hosts.h), launchers and logs write directly into one file, so that their output is
there even without a connection to the launcher.
"""

import base64
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))

from processes import kill_all  # noqa: E402

# Seconds for the slowest job on a busy machine. Checks no guarantee.
PATIENCE = 60

EVENTS = re.compile(
    r"^(joined|checked|stepping|stepped|error|preempted|bye|wrong|exception) (rank=.*)$", re.M)
INTO_FILE = 'log=$1; shift; exec "$@" >>"$log" 2>&1'


class Job:
    _next_port = 29500  # No other process uses the hosts' ports.

    def __init__(self, hosts, options, *words, **variables):
        """`variables` are set for the ranks; the value None removes a variable."""
        self.processes = []
        self.port = Job._next_port
        Job._next_port += 1
        self._hosts = hosts
        self._options = options
        self._words = list(map(str, words))
        self._folder = pathlib.Path(tempfile.mkdtemp(prefix="lockstep-test-job-"))
        self._log = self._folder / "log"
        self._log.touch()
        self._variables = {"OMP_NUM_THREADS": "1", "LOCKSTEP_ENGINE_PATH": options.engines,
                           "LOCKSTEP_JOB_TOKEN_FILE": self.token("token")} | variables
        self._variables = {name: text for name, text in self._variables.items() if text is not None}

    def token(self, name):
        """Returns a file with a new token."""
        file = self._folder / name
        file.touch(mode=0o600)
        file.write_text(base64.b64encode(os.urandom(32)).decode() + "\n")
        return str(file)

    def by_lockstep_run(self, counts, *options, nnodes=None, until_told=False):
        for host, count in zip(self._hosts, counts):
            self._start(host, [self._options.lockstep, "run", "-n", count,
                               "--nnodes", nnodes or len(counts), *options,
                               "--rdzv-endpoint", f"node1:{self.port}", "--rdzv-id", "job",
                               *self._rank(self._options.rank, until_told)])

    def by_torchrun(self, counts, *options, meeting="c10d", until_told=False):
        """`meeting` is "c10d", at an endpoint, or "static", at a master address."""
        for number, (host, count) in enumerate(zip(self._hosts, counts)):
            places = {"c10d": ["--rdzv-backend", "c10d", "--rdzv-id", "job",
                               "--rdzv-endpoint", f"node1:{self.port}"],
                      "static": ["--node-rank", number, "--master-addr", "node1",
                                 "--master-port", self.port]}
            self._start(host, [self._options.python, "-m", "torch.distributed.run", "--no-python",
                               "--nnodes", len(counts), "--nproc-per-node", count, *options,
                               *places[meeting], *self._rank(self._options.torch_rank, until_told)])

    def by_variables(self, counts, ranks=None, master=None, port=None, until_told=False):
        """Starts ranks without a launcher; `ranks` are those to start, by default all."""
        port = port or self.port
        places = [(host, local, count) for host, count in zip(self._hosts, counts)
                  for local in range(count)]
        for rank, (host, local, count) in enumerate(places):
            if ranks is None or rank in ranks:
                mine = {"RANK": rank, "WORLD_SIZE": sum(counts), "LOCAL_RANK": local,
                        "LOCAL_WORLD_SIZE": count, "MASTER_PORT": port,
                        "MASTER_ADDR": master or self._hosts[0].address}
                self._start(host, self._rank(self._options.rank, until_told), **mine)

    def by_mpirun(self, counts, *options, program=None, until_told=False, mpirun="mpirun",
                  kind="openmpi"):
        """`kind` is as in Hosts.mpirun_options()."""
        places = ",".join(f"{host.name}:{count}" for host, count in zip(self._hosts, counts))
        passed_on = [] if kind == "mpich" else [word for name in self._variables
                                                for word in ("-x", name)]
        self._start(self._hosts[0], [mpirun, *self._hosts.mpirun_options(kind),
                                     "-hosts" if kind == "mpich" else "--host", places,
                                     "-n", sum(counts), *options, *passed_on,
                                     *self._rank(program or self._options.rank, until_told)])

    def by_srun(self, cluster, counts, *options):
        words = ["srun", "-N", len(counts), f"--ntasks-per-node={counts[0]}", *options,
                 *self._rank(self._options.rank, False)]
        self._start(self._hosts[0], words, SLURM_CONF=cluster.folder / "slurm.conf")

    def tell_to_end(self):
        (self._folder / "end").touch()

    def said(self):
        return self._log.read_text(errors="replace")

    def events(self, kind):
        """Returns the ranks' events of this kind, as dictionaries."""
        found = [rest for event, rest in EVENTS.findall(self.said()) if event == kind]
        return [dict(field.split("=", 1) for field in re.split(r" (?=\w+=)", rest, maxsplit=6))
                for rest in found]

    def until(self, kind, count, patience=PATIENCE):
        deadline = time.monotonic() + patience
        while len(self.events(kind)) < count:
            ended = all(process.poll() is not None for process in self.processes)
            if time.monotonic() > deadline or (ended and len(self.events(kind)) < count):
                raise AssertionError(f"not {count} times '{kind}':\n{self.said()}")
            time.sleep(0.01)
        return self.events(kind)

    def pid_of(self, rank):
        return next(
            int(event["pid"]) for event in self.events("joined") if event["rank"] == str(rank))

    def wait(self, patience=PATIENCE):
        """Returns the exit codes, in the order in which processes were started."""
        deadline = time.monotonic() + patience
        try:
            return [process.wait(max(0, deadline - time.monotonic())) for process in self.processes]
        except subprocess.TimeoutExpired:
            self._kill()
            raise AssertionError(f"it does not end:\n{self.said()}")

    def end(self):
        """Ends the job; may be called several times."""
        if self._log.exists():
            self._kill()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _rank(self, program, until_told):
        ends = ["--until", str(self._folder / "end")] if until_told else []
        return ["sh", "-c", INTO_FILE, "sh", str(self._log), program, *self._words, *ends]

    def _start(self, host, words, **variables):
        environment = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
        environment |= self._variables | {name: str(text) for name, text in variables.items()}
        with open(self._log, "ab") as log:
            self.processes.append(host.popen(words, env=environment, stdout=log, stderr=log))

    def _kill(self):
        # Includes processes whose parents are elsewhere, as on the far hosts of mpirun.
        for event in self.events("joined"):
            if self._is_mine(int(event["pid"])):
                kill_all(int(event["pid"]))
        for process in self.processes:
            kill_all(process.pid)
            process.wait()

    def _is_mine(self, pid):
        try:
            return self._log.samefile(f"/proc/{pid}/fd/1")
        except OSError:
            return False

# SPDX-License-Identifier: Apache-2.0
"""A SLURM cluster on this machine: its real daemons, as processes of the test.

    with Slurm(nodes=2) as slurm:
        slurm.run(["srun", "-n", "2", "hostname"])

Nodes are called node1, node2, ..., each with a slurmd of its own. They are those of
network_hosts.py with Slurm(hosts=hosts), and commands then run on the first; else all are this
machine. Daemons, keys and states are in a folder that is removed with them; nothing of /etc/slurm
or of an installed service is used.
"""

import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))

from ports import free_port  # noqa: E402
from processes import kill_all  # noqa: E402

PROGRAMS = ("munged", "slurmctld", "slurmd", "srun", "sbatch", "scancel", "sinfo", "squeue")
PATIENCE = 60

CONFIGURATION = """
ClusterName=test
SlurmctldHost={controller}
SlurmctldPort={controller_port}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CredType=cred/munge
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.%n.pid
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool.%n
TmpFS={folder}/tmp.%n
# Without cgroups, databases, or anything else that asks for a machine of its own.
ProctrackType=proctrack/pgid
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SchedulerType=sched/builtin
MpiDefault=none
ReturnToService=2
KillWait=5
# As many processors as wanted, whatever this machine has.
SlurmdParameters=config_overrides
{nodes}
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


def why_not():
    """Returns why no cluster can be started here; empty if it can."""
    if os.geteuid() != 0:
        return "SLURM's daemons need root"
    absent = [program for program in PROGRAMS if not shutil.which(program)]
    if absent:
        return (f"there is no {' and no '.join(absent)} "
                "(Debian's packages slurmctld, slurmd, slurm-client, munge)")
    return ""


class Slurm:
    def __init__(self, nodes=2, tasks_per_node=4, hosts=None):
        self._hosts = hosts
        self._names = [f"node{number + 1}" for number in range(len(hosts) if hosts else nodes)]
        self._tasks_per_node = tasks_per_node
        self._daemons = []
        self._handler = None

    def __enter__(self):
        self._folder = tempfile.TemporaryDirectory(prefix="lockstep-test-slurm-")
        self.folder = pathlib.Path(self._folder.name)
        self._handler = signal.signal(signal.SIGTERM, lambda which, _: sys.exit(128 + which))
        try:
            self._start_all()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        for daemon in reversed(self._daemons):
            # A slurmd then ends its steps, whose daemons are not its children.
            daemon.terminate()
        for daemon in reversed(self._daemons):
            try:
                daemon.wait(timeout=10)
            except subprocess.TimeoutExpired:
                kill_all(daemon.pid)
                daemon.wait()
        self._kill_steps()
        signal.signal(signal.SIGTERM, self._handler)
        self._folder.cleanup()

    def environment(self, **more):
        return dict(os.environ, SLURM_CONF=str(self.folder / "slurm.conf"), **more)

    def popen(self, words, node=0, **options):
        if self._hosts:
            return self._hosts[node].popen(words, env=self.environment(), **options)
        return subprocess.Popen(list(map(str, words)), env=self.environment(), **options)

    def run(self, words, timeout=PATIENCE, check=True):
        """Returns the CompletedProcess, with its output as text."""
        process = self.popen(words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                             stderr=subprocess.PIPE, text=True)
        try:
            out, err = process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
            raise
        if check and process.returncode:
            raise RuntimeError(
                f"{words} ended with {process.returncode}:\n{out}{err}\n{self.logs()}")
        return subprocess.CompletedProcess(words, process.returncode, out, err)

    def logs(self):
        return "\n".join(f"--- {path.name}\n{path.read_text(errors='replace')[-2000:]}"
                         for path in sorted(self.folder.glob("*.log")))

    def _start_all(self):
        # munged requires that no other user may write to its socket's folder.
        self.folder.chmod(0o755)
        self._write_configuration()
        self._start("munged", "--foreground", "--force", f"--socket={self.folder}/munge.socket",
                    f"--key-file={self.folder}/munge.key", f"--pid-file={self.folder}/munged.pid",
                    f"--log-file={self.folder}/munged.log", f"--seed-file={self.folder}/munge.seed")
        self._until(lambda: (self.folder / "munge.socket").exists(), "munged")
        self._start("slurmctld", "-D", "-i")
        for number, name in enumerate(self._names):
            self._start("slurmd", "-D", "-N", name, node=number)
        self._until(self._all_idle, "the nodes")

    def _write_configuration(self):
        # No cgroups are used. The automatic detection of their version fails without a mounted
        # /sys/fs/cgroup.
        (self.folder / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\n")
        key = self.folder / "munge.key"
        key.touch(mode=0o600)
        key.write_bytes(os.urandom(128))
        (self.folder / "state").mkdir()
        for name in self._names:
            (self.folder / f"spool.{name}").mkdir()
            (self.folder / f"tmp.{name}").mkdir()  # Separates the PMIx servers of two nodes.
        nodes = "\n".join(f"NodeName={name} {self._place(number)} Port={free_port()} "
                          f"CPUs={self._tasks_per_node} State=UNKNOWN"
                          for number, name in enumerate(self._names))
        controller = f"node1({self._hosts[0].address})" if self._hosts else "localhost(127.0.0.1)"
        (self.folder / "slurm.conf").write_text(CONFIGURATION.format(
            folder=self.folder, controller=controller, controller_port=free_port(), nodes=nodes))

    def _place(self, number):
        if self._hosts:
            host = self._hosts[number]
            return f"NodeHostname={host.name} NodeAddr={host.address}"
        return f"NodeHostname={os.uname().nodename} NodeAddr=127.0.0.1"

    def _start(self, *words, node=0):
        log = self.folder / f"{len(self._daemons)}-{words[0]}.log"
        with open(log, "ab") as file:
            self._daemons.append(self.popen(words, node, stdin=subprocess.DEVNULL, stdout=file,
                                            stderr=file))

    def _until(self, condition, what):
        deadline = time.monotonic() + PATIENCE
        while not condition():
            ended = [daemon.args[0] for daemon in self._daemons if daemon.poll() is not None]
            if ended or time.monotonic() > deadline:
                raise RuntimeError(f"{what} did not come up; ended: {ended}\n{self.logs()}")
            time.sleep(0.1)

    def _all_idle(self):
        said = self.run(["sinfo", "-h", "-N", "-o", "%T"], check=False).stdout
        return said.split() == ["idle"] * len(self._names)

    def _kill_steps(self):
        """Kills steps: a slurmstepd outlives its slurmd. Its environment identifies it as ours."""
        mark = f"SLURM_CONF={self.folder / 'slurm.conf'}".encode()
        for entry in pathlib.Path("/proc").iterdir():
            try:
                if entry.name.isdigit() and mark in (entry / "environ").read_bytes().split(b"\0"):
                    kill_all(int(entry.name))
            except OSError:
                pass

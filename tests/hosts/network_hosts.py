# SPDX-License-Identifier: Apache-2.0
"""Hosts that a test makes on this machine: network namespaces, joined by a switch.

    with Hosts(2) as hosts:
        server = hosts[0].popen(["server", hosts[0].address])
        hosts[1].run(["client", "node1"])

Host number i is called node1, node2, ...: by its own hostname, and in every host's /etc/hosts. It
has the interfaces lo and eth0, with 10.77.0.i and fd77::i. Hosts(2, networks=2) also has eth1, with
10.78.0.i and fd78::i, on a switch of its own. Hosts(2, families=(6,)) has no IPv4 address but that
of lo. This machine's own network is not changed. All hosts are removed at the end, with the
processes in them. The next test removes the remains of a killed test.
"""

import os
import pathlib
import shutil
import signal
import subprocess
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))

from processes import is_running  # noqa: E402

AGENT = pathlib.Path(__file__).resolve().parent / "launch_agent.sh"
PREFIX = "lockstep-test"
BURST_BYTES = 256 << 10  # Default of a rate-limited link.
# Folder of files that `ip netns exec` mounts over /etc/*.
OF_NAMESPACES = pathlib.Path("/etc/netns")


def why_not():
    """Returns why no hosts can be created here; empty if they can."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    absent = [tool for tool in ("ip", "ss", "tc", "unshare") if not shutil.which(tool)]
    if absent:
        return f"there is no {' and no '.join(absent)} (Debian's packages iproute2, util-linux)"
    trial = ["unshare", "--net", "--uts", "--mount", "sh", "-c",
             "ip link add trial0 type veth peer name trial1"]
    if subprocess.run(trial, capture_output=True).returncode:
        return "this machine does not let root make network namespaces"
    return ""


def _run(*words):
    done = subprocess.run(list(map(str, words)), stdin=subprocess.DEVNULL, capture_output=True,
                          text=True, timeout=30)
    if done.returncode:
        raise RuntimeError(f"{' '.join(map(str, words))}: {done.stderr.strip()}")
    return done.stdout


def _start_of(pid):
    """Returns a process's start time, which distinguishes it from a later process with its pid;
    otherwise empty."""
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except OSError:
        return ""


def _namespaces():
    folder = pathlib.Path("/run/netns")
    return sorted(entry.name for entry in folder.iterdir()) if folder.is_dir() else []


def _kill_within(namespace):
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        inside = [int(word) for word in _run("ip", "netns", "pids", namespace).split()]
        inside = [pid for pid in inside if is_running(pid)]
        if not inside:
            return
        for pid in inside:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        time.sleep(0.01)
    raise RuntimeError(f"processes of {namespace} do not end: {inside}")


def _remove(namespace):
    try:
        _kill_within(namespace)
    finally:
        _run("ip", "netns", "del", namespace)
        shutil.rmtree(OF_NAMESPACES / namespace, ignore_errors=True)


def remove_stale():
    """Removes the leftovers of killed tests."""
    for namespace in _namespaces():
        words = namespace.split(".")
        if words[0] == PREFIX and len(words) == 4 and _start_of(words[1]) != words[2]:
            try:
                _remove(namespace)
            except RuntimeError:  # Another test removes it, too.
                if namespace in _namespaces():
                    raise


class Host:
    """A host. Its processes see this machine's files, except /etc/hosts and the resolver's."""

    def __init__(self, hosts, number):
        self.number = number
        self.name = f"node{number}"
        self.address = f"10.77.0.{number}"
        self.address6 = f"fd77::{number}"
        self.namespace = hosts.namespace(self.name)
        self._hosts = hosts

    def command(self, words):
        """Returns a command that executes `words` here in the started process itself."""
        return ["ip", "netns", "exec", self.namespace, "unshare", "--uts", "sh", "-c",
                'hostname "$0" && exec "$@"', self.name, *map(str, words)]

    def popen(self, words, env=None, stdin=subprocess.DEVNULL, **options):
        # A terminal stops background processes that read from it, and `timeout` runs tests in the
        # background.
        env = dict(os.environ if env is None else env, LOCKSTEP_TEST_HOSTS=self._hosts.prefix)
        return self._hosts.keep(
            subprocess.Popen(self.command(words), env=env, stdin=stdin, **options))

    def run(self, words, timeout=60, check=True, **options):
        """Returns the CompletedProcess, with its output as text."""
        process = self.popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                             **options)
        try:
            out, err = process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            process.kill()
            out, err = process.communicate()
            raise RuntimeError(f"{words} on {self.name} took more than {timeout} s:\n{out}{err}")
        if check and process.returncode:
            raise RuntimeError(
                f"{words} on {self.name} ended with {process.returncode}:\n{out}{err}")
        return subprocess.CompletedProcess(words, process.returncode, out, err)

    def listening(self):
        """Returns HOST:PORT of every listening TCP socket of this host."""
        lines = _run("ip", "netns", "exec", self.namespace, "ss", "-Htln").splitlines()
        return sorted(line.split()[3] for line in lines)

    def unplug(self):
        """Disconnects eth0: the host sees a link that is down, its peers do not."""
        self._at_switch("ip", "link", "set", self.name, "down")

    def plug_in(self):
        """Reconnects eth0. The switch forwards again at once."""
        self._at_switch("ip", "link", "set", self.name, "up")

    def shape(self, rate="1gbit", burst=BURST_BYTES, latency="50ms"):
        """Limits the rate in both directions; `rate` is None for no limit. After a pause, `burst`
        bytes pass at once."""
        ends = [(self.namespace, "eth0"), (self._hosts.switch, self.name)]
        for namespace, device in ends:
            if rate is None:
                _run("tc", "-n", namespace, "qdisc", "del", "dev", device, "root")
            else:
                _run("tc", "-n", namespace, "qdisc", "replace", "dev", device, "root", "tbf",
                     "rate", rate, "burst", burst, "latency", latency)

    def _at_switch(self, *words):
        _run("ip", "netns", "exec", self._hosts.switch, *words)


class Hosts:
    """A sequence of Host. Only one per process at a time. The process must not fork while it
    exists."""

    def __init__(self, count, networks=1, families=(4, 6)):
        self._networks = networks
        self._families = families
        self.prefix = f"{PREFIX}.{os.getpid()}.{_start_of(os.getpid())}."
        self.switch = self.namespace("switch")
        self._hosts = [Host(self, number + 1) for number in range(count)]
        self._handlers = {}
        self._started = []

    def keep(self, process):
        """Returns a process that ends with these hosts. It may not have entered its namespace."""
        self._started = [one for one in self._started if one.poll() is None] + [process]
        return process

    def namespace(self, name):
        return self.prefix + name

    def __getitem__(self, index):
        return self._hosts[index]

    def __len__(self):
        return len(self._hosts)

    def __enter__(self):
        remove_stale()
        # A test that ctest kills after a timeout still removes its hosts.
        for number in (signal.SIGTERM, signal.SIGHUP):
            self._handlers[number] = signal.signal(number, lambda which, _: sys.exit(128 + which))
        try:
            self._build()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        for process in self._started:
            if process.poll() is None:
                process.kill()
        for namespace in _namespaces():
            if namespace.startswith(self.prefix):
                _remove(namespace)
        for number, handler in self._handlers.items():
            signal.signal(number, handler)

    def mpirun_options(self, launcher="openmpi"):
        """Returns how an mpirun on one of these hosts reaches the others.

        `kind` is "openmpi" for Open MPI 4, "prte" for Open MPI 5, "mpich" for MPICH.
        """
        if launcher == "openmpi":
            return ["--allow-run-as-root", "--oversubscribe", "-mca", "plm", "rsh",
                    "-mca", "plm_rsh_agent", str(AGENT)]
        if launcher == "prte":
            return ["--allow-run-as-root", "--bind-to", "none", "--prtemca", "plm", "ssh",
                    "--prtemca", "plm_ssh_agent", str(AGENT)]
        return ["-launcher", "ssh", "-launcher-exec", str(AGENT)]

    def _build(self):
        _run("ip", "netns", "add", self.switch)
        for network in range(self._networks):
            _run("ip", "-n", self.switch, "link", "add", f"switch{network}", "type", "bridge",
                 "stp_state", "0", "forward_delay", "0", "mcast_snooping", "0")
            _run("ip", "-n", self.switch, "link", "set", f"switch{network}", "up")
        for host in self._hosts:
            _run("ip", "netns", "add", host.namespace)
            _run("ip", "-n", host.namespace, "link", "set", "lo", "up")
            for network in range(self._networks):
                self._connect(host, network)
            self._write_names(host)

    def _connect(self, host, network):
        device = f"eth{network}"
        port = host.name if network == 0 else f"{host.name}.{network}"
        _run("ip", "link", "add", device, "netns", host.namespace, "type", "veth",
             "peer", "name", port, "netns", self.switch)
        _run("ip", "-n", self.switch, "link", "set", port, "master", f"switch{network}", "up")
        address, address6 = (f"10.{77 + network}.0.{host.number}",
                             f"fd{77 + network}::{host.number}")
        commands = [("link", "set", device, "up")]
        if 4 in self._families:
            commands.append(("addr", "add", f"{address}/24", "dev", device))
        if 6 in self._families:
            commands.append(("addr", "add", f"{address6}/64", "dev", device, "nodad"))
        for words in commands:
            _run("ip", "-n", host.namespace, *words)

    def _write_names(self, host):
        folder = OF_NAMESPACES / host.namespace
        folder.mkdir(parents=True)
        lines = ["127.0.0.1 localhost", "::1 localhost"]
        lines += [f"{address} {other.name}" for other in self._hosts
                  for family, address in ((4, other.address), (6, other.address6))
                  if family in self._families]
        (folder / "hosts").write_text("\n".join(lines) + "\n")
        (folder / "resolv.conf").write_text("")
        (folder / "nsswitch.conf").write_text("passwd: files\ngroup: files\nhosts: files\n")

#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The hosts that tests make on this machine, and the relay and wire between them, work as
described."""

import asyncio
import collections
import contextlib
import io
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
import unittest
import unittest.mock

import network_hosts
import wire
from network_hosts import Hosts
from relay import Relay
from run_tests import run_tests
from wire import Way, Wire


# Answers each connection with its host's name and the peer's address.
SERVER = """
import socket, sys
family = socket.AF_INET6 if ":" in sys.argv[1] else socket.AF_INET
with socket.create_server((sys.argv[1], 4711), family=family) as server:
    print("ready", flush=True)
    while True:
        peer, address = server.accept()
        peer.sendall((socket.gethostname() + " " + address[0]).encode())
        peer.close()
"""
CLIENT = """
import socket, sys
with socket.create_connection((sys.argv[1], 4711), timeout=float(sys.argv[2])) as peer:
    print(peer.recv(100).decode())
"""


class ServerOn:
    def __init__(self, host, address):
        self._process = host.popen([sys.executable, "-c", SERVER, address],
                                   stdout=subprocess.PIPE, text=True)
        assert self._process.stdout.readline() == "ready\n"

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._process.kill()
        self._process.wait()
        self._process.stdout.close()


def ask(host, name, patience=10, check=True):
    return host.run([sys.executable, "-c", CLIENT, name, patience], check=check)


@unittest.skipIf(network_hosts.why_not(), network_hosts.why_not())
class HostsTest(unittest.TestCase):
    def test_two_hosts_reach_each_other_by_address_and_by_name(self):
        with Hosts(2) as hosts:
            for address in (hosts[0].address, hosts[0].address6):
                with ServerOn(hosts[0], address):
                    self.assertIn("node1", ask(hosts[1], address).stdout)
            with ServerOn(hosts[0], hosts[0].address):
                self.assertEqual(ask(hosts[1], "node1").stdout, f"node1 {hosts[1].address}\n")

    def test_of_three_hosts_each_reaches_each(self):
        with Hosts(3) as hosts:
            for server in hosts:
                with ServerOn(server, server.address):
                    for client in hosts:
                        self.assertIn(server.name, ask(client, server.name).stdout)

    def test_a_host_has_a_name_of_its_own_and_sees_no_other_network(self):
        mine = socket.gethostname()
        with Hosts(2) as hosts:
            self.assertEqual(hosts[1].run(["hostname"]).stdout, "node2\n")
            devices = pathlib.Path("/proc/net/dev").read_text()
            seen = hosts[1].run(["cat", "/proc/thread-self/net/dev"]).stdout
            self.assertNotEqual(seen, devices)
            self.assertEqual({line.split(":")[0].strip() for line in seen.splitlines()[2:]},
                             {"lo", "eth0"} | fallback_tunnels(seen))
        self.assertEqual(socket.gethostname(), mine)

    def test_an_unplugged_host_is_not_reached_until_it_is_plugged_in(self):
        with Hosts(2) as hosts, ServerOn(hosts[0], hosts[0].address):
            ask(hosts[1], "node1")
            hosts[0].unplug()
            self.assertNotEqual(ask(hosts[1], "node1", 1, check=False).returncode, 0)
            state = hosts[0].run(["cat", "/sys/class/net/eth0/carrier"]).stdout
            self.assertEqual(state, "0\n", "the host sees that its cable is out")
            hosts[0].plug_in()
            ask(hosts[1], "node1")

    def test_a_shaped_link_passes_no_more_than_it_should(self):
        send = "import socket, sys, time\nfor _ in range(int(sys.argv[1])):\n" \
               "    with socket.create_connection(('node1', 4712)) as peer:\n" \
               "        start = time.monotonic()\n        peer.sendall(bytes(4 << 20))\n" \
               "        peer.shutdown(1)\n        peer.recv(1)\n" \
               "        print(time.monotonic() - start)\n"
        receive = "import socket, sys\nwith socket.create_server(('', 4712)) as server:\n" \
                  "    print('ready', flush=True)\n    for _ in range(int(sys.argv[1])):\n" \
                  "        peer, _ = server.accept()\n" \
                  "        while peer.recv(1 << 20): pass\n        peer.close()\n"
        with Hosts(2) as hosts:
            seconds = []
            # The fastest of several transfers, as a process may stand still in one.
            for rate, times in (("40mbit", 1), (None, 5)):
                hosts[1].shape(rate)
                server = hosts[0].popen([sys.executable, "-c", receive, times],
                                        stdout=subprocess.PIPE)
                server.stdout.readline()
                said = hosts[1].run([sys.executable, "-c", send, times]).stdout
                seconds.append(min(map(float, said.split())))
                self.assertEqual(server.wait(timeout=20), 0)
                server.stdout.close()
        # 4 MiB minus the bucket's 256 KiB take 0.78 s at 40 Mbit/s.
        self.assertGreater(seconds[0], 0.7)
        self.assertLess(seconds[1], seconds[0])

    def test_hosts_without_ipv4_reach_each_other_by_name(self):
        with Hosts(2, families=(6,)) as hosts, ServerOn(hosts[0], hosts[0].address6):
            self.assertEqual(ask(hosts[1], "node1").stdout, f"node1 {hosts[1].address6}\n")
            addresses = hosts[0].run(["ip", "-4", "-brief", "address", "show", "eth0"]).stdout
            self.assertEqual(addresses, "")

    def test_nothing_is_left_after_the_end_also_of_a_failed_test(self):
        with self.assertRaises(ZeroDivisionError), Hosts(2) as hosts:
            prefix = hosts.prefix
            sleeper = hosts[0].popen(["sleep", "1000"])
            raise ZeroDivisionError
        self.assertEqual(sleeper.wait(timeout=10), -signal.SIGKILL)
        self.assertEqual(left_of(prefix), [])

    def test_a_test_that_is_told_to_end_removes_its_hosts(self):
        process, prefix = start_another()
        process.terminate()
        self.assertEqual(process.wait(timeout=30), 128 + signal.SIGTERM)
        process.stdout.close()
        self.assertEqual(left_of(prefix), [])

    def test_what_a_killed_test_left_goes_when_the_next_one_starts(self):
        process, prefix = start_another()
        process.kill()
        process.wait()
        process.stdout.close()
        self.assertNotEqual(left_of(prefix), [])
        with Hosts(1):
            self.assertEqual(left_of(prefix), [])

    def test_mpirun_starts_ranks_on_both_hosts(self):
        if not shutil.which("mpirun"):
            self.skipTest("there is no mpirun (Debian's package openmpi-bin)")
        with Hosts(2) as hosts:
            mpirun = ["mpirun", *hosts.mpirun_options(), "--host", "node1:2,node2:2"]
            names = hosts[0].run([*mpirun, "hostname"]).stdout.split()
            self.assertEqual(collections.Counter(names), {"node1": 2, "node2": 2})
            with tempfile.TemporaryDirectory() as scratch:
                said = hosts[0].run([*mpirun, self.mpi_program(scratch)]).stdout
            self.assertEqual(said, "6 over node1 node1 node2 node2\n")

    def mpi_program(self, scratch):
        """Returns a program built by the mpicxx beside mpirun, so that both use one MPI."""
        program = pathlib.Path(scratch) / "mpi_program"
        compiler = shutil.which("mpicxx") or "mpicxx"
        source = pathlib.Path(__file__).resolve().parent / "mpi_program.cpp"
        try:
            subprocess.run([compiler, "-DOMPI_SKIP_MPICXX=1", "-DMPICH_SKIP_MPICXX=1", source, "-o",
                            program], check=True, capture_output=True, timeout=120)
        except (OSError, subprocess.CalledProcessError):
            self.skipTest("no MPI program can be built (Debian's package libopenmpi-dev)")
        return program


class RelayTest(unittest.TestCase):
    def setUp(self):
        server = socket.create_server(("127.0.0.1", 0))
        self.addCleanup(server.close)
        threading.Thread(target=echo, args=(server,), daemon=True).start()
        self.relay = Relay(*server.getsockname())
        self.addCleanup(self.relay.__exit__)
        self.peer = self.connect()

    def connect(self):
        peer = socket.create_connection(self.relay.address, timeout=10)
        self.addCleanup(peer.close)
        return peer

    def echoed(self, what):
        self.peer.sendall(what)
        return receive(self.peer, len(what))

    def test_it_passes_on_what_comes(self):
        data = os.urandom(1 << 20)
        sending = threading.Thread(target=self.peer.sendall, args=(data,))
        sending.start()
        self.assertEqual(receive(self.peer, len(data)), data)
        sending.join()

    def test_a_delay_counts_both_ways(self):
        self.relay.do("delay", 0.2)
        start = time.monotonic()
        self.assertEqual(self.echoed(b"late"), b"late")
        self.assertGreaterEqual(time.monotonic() - start, 0.39)

    def test_nothing_comes_through_while_it_stalls_and_all_of_it_afterwards(self):
        self.relay.do("stall")
        self.peer.settimeout(0.3)
        with self.assertRaises(TimeoutError):
            self.echoed(b"held")
        self.relay.do("resume")
        self.peer.settimeout(10)
        self.assertEqual(receive(self.peer, 4), b"held")

    def test_one_bit_is_corrupted_where_it_is_told(self):
        self.relay.do("corrupt", 3)
        self.assertEqual(self.echoed(b"aaaaaaaa"), b"aaaqaaaa")
        self.assertEqual(self.echoed(b"aaaaaaaa"), b"aaaaaaaa")

    def test_a_cut_is_a_reset_and_the_next_connection_works(self):
        self.assertEqual(self.echoed(b"first"), b"first")
        self.relay.do("cut")
        with self.assertRaises(ConnectionResetError):
            receive(self.peer, 1)
        self.peer = self.connect()
        self.assertEqual(self.echoed(b"second"), b"second")

    @unittest.skipIf(network_hosts.why_not(), network_hosts.why_not())
    def test_it_works_on_a_host_too(self):
        with Hosts(2) as hosts, ServerOn(hosts[0], hosts[0].address), \
                Relay("node1", 4711, hosts[1].address, on=hosts[1]) as relay:
            connect = textwrap.dedent(f"""
                import socket
                print(socket.create_connection({relay.address}, timeout=10).recv(100).decode())
                """)
            said = hosts[1].run([sys.executable, "-c", connect]).stdout
            self.assertEqual(said, f"node1 {hosts[1].address}\n")


# Echoes each connection's data; on request "LOCKSTEP" first, as the listening end of a connection.
ECHO = """
import socket, sys, threading
def answer(peer):
    with peer:
        if sys.argv[2] == "line": peer.sendall(b"LOCKSTEP")
        while part := peer.recv(1 << 16): peer.sendall(part)
with socket.create_server((sys.argv[1], 4711)) as server:
    print("ready", flush=True)
    while True:
        threading.Thread(target=answer, args=(server.accept()[0],), daemon=True).start()
"""
# Sends the given lines and prints the answers. A `?` means no answer to a line after the first
# within the given seconds.
ASK = """
import socket, sys
with socket.create_connection((sys.argv[1], 4711), timeout=20) as peer:
    if sys.argv[2] == "line": peer.recv(8, socket.MSG_WAITALL)
    print("ready", flush=True)
    for line in sys.stdin:
        peer.sendall(line.encode())
        back = b""
        try:
            while len(back) < len(line): back += peer.recv(1 << 16)
            print(back.decode().strip(), flush=True)
        except TimeoutError:
            print("?", flush=True)
        peer.settimeout(float(sys.argv[3]))
"""


class WayTest(unittest.TestCase):
    """Effects of a Wire in each direction."""

    def run_on_way(self, kind, act):
        ours, theirs = socket.socketpair(socket.AF_UNIX, kind)
        with ours, theirs:
            ours.setblocking(False)
            asyncio.run(asyncio.wait_for(act(Way(ours.fileno()), theirs), 20))

    def test_packets_arrive_in_the_order_in_which_they_were_sent_also_when_the_delay_changes(self):
        delays = [0.1] * 50 + [0.02] * 50 + [0.0] * 50

        async def act(way, theirs):
            theirs.setblocking(False)
            frozen = asyncio.get_running_loop().time()
            with unittest.mock.patch.object(asyncio.get_running_loop(), "time", lambda: frozen):
                for number, delay in enumerate(delays):
                    way.send(str(number).encode(), delay)
            with self.assertRaises(BlockingIOError):
                theirs.recv(100)
            for number in range(len(delays)):
                said = await asyncio.get_running_loop().sock_recv(theirs, 100)
                self.assertEqual(said, str(number).encode())
            self.assertEqual(way.failed, 0)

        self.run_on_way(socket.SOCK_SEQPACKET, act)

    def test_what_cannot_be_written_is_counted(self):
        async def act(way, theirs):
            sent = 0
            with contextlib.redirect_stderr(io.StringIO()):
                while way.failed == 0:  # No process reads.
                    way.send(bytes(1000), 0)
                    sent += 1
                way.send(bytes(1000), 0.01)
                await asyncio.sleep(0.05)
            self.assertEqual(way.failed, 2)
            theirs.setblocking(False)
            for _ in range(sent - 1):
                theirs.recv(1000)
            with self.assertRaises(BlockingIOError):
                theirs.recv(1000)

        self.run_on_way(socket.SOCK_SEQPACKET, act)


@unittest.skipIf(network_hosts.why_not() or wire.why_not(),
                 network_hosts.why_not() or wire.why_not())
class WireTest(unittest.TestCase):
    def setUp(self):
        self.hosts = Hosts(2).__enter__()
        self.addCleanup(self.hosts.__exit__)
        self.wire = Wire(*self.hosts)
        self.addCleanup(self.wire.__exit__)
        self.addCleanup(lambda: self.assertEqual(self.wire.lost_by_itself(), 0))

    def start(self, host, *words):
        process = host.popen([sys.executable, "-c", *words], stdin=subprocess.PIPE,
                             stdout=subprocess.PIPE, text=True)
        self.addCleanup(lambda: (process.kill(), process.communicate()))
        self.assertEqual(process.stdout.readline(), "ready\n")
        return process

    def connect(self, kind="other", patience="20"):
        self.start(self.hosts[0], ECHO, wire.ADDRESSES[0], kind)
        return self.start(self.hosts[1], ASK, wire.ADDRESSES[0], kind, patience)

    def echoed(self, peer, what):
        peer.stdin.write(what + "\n")
        peer.stdin.flush()
        return peer.stdout.readline().strip()

    def test_it_carries_what_is_sent_also_when_packets_are_lost(self):
        peer = self.connect()
        self.wire.do("lose", 5)
        for size in (1, 1000, 300_000):
            self.assertEqual(self.echoed(peer, "a" * size), "a" * size)

    def test_a_delay_counts_both_ways(self):
        peer = self.connect()
        self.wire.do("delay", 0.1)
        start = time.monotonic()
        self.assertEqual(self.echoed(peer, "late"), "late")
        self.assertGreaterEqual(time.monotonic() - start, 0.19)

    def test_a_flipped_bit_arrives_and_no_checksum_shows_it(self):
        peer = self.connect()
        for position, harmed in ((0, "qaaaa"), (1, "aqaaa"), (4, "aaaaq")):
            self.wire.do("flip", "other", position)
            self.assertEqual(self.echoed(peer, "aaaaa"), harmed)
            self.assertEqual(self.echoed(peer, "aaaaa"), "aaaaa")

    def test_the_bytes_of_lines_are_told_from_others(self):
        peer = self.connect("line")
        self.wire.do("flip", "other", 1)
        self.assertEqual(self.echoed(peer, "aaaaa"), "aaaaa")
        self.wire.do("flip", "line", 1)
        self.assertEqual(self.echoed(peer, "aaaaa"), "aqaaa")

    def assert_nothing_comes_back_after(self, *cut):
        peer = self.connect(patience="0.5")
        self.assertEqual(self.echoed(peer, "here"), "here")
        self.wire.do(*cut)
        self.assertEqual(self.echoed(peer, "gone"), "?")

    def test_nothing_crosses_a_wire_that_is_cut(self):
        self.assert_nothing_comes_back_after("cut")

    def test_a_question_is_lost_in_a_wire_that_is_cut_one_way(self):
        self.assert_nothing_comes_back_after("cut", 2)

    def test_an_answer_is_lost_in_a_wire_that_is_cut_the_other_way(self):
        self.assert_nothing_comes_back_after("cut", 1)


def fallback_tunnels(devices):
    """Returns the tunnels that some kernels put into every namespace, such as sit0 and ip6tnl0."""
    names = {line.split(":")[0].strip() for line in devices.splitlines()[2:]}
    return {name for name in names if name in ("sit0", "tunl0", "gre0", "gretap0", "erspan0",
                                               "ip6tnl0", "ip6gre0", "ip_vti0", "ip6_vti0")}


def start_another():
    """Starts a process that creates hosts and waits. Returns it and the hosts' prefix."""
    script = "import time\nfrom network_hosts import Hosts\nwith Hosts(1) as hosts:\n" \
             "    print(hosts.prefix, flush=True)\n    time.sleep(1000)\n"
    process = subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.DEVNULL,
                               stdout=subprocess.PIPE, text=True,
                               cwd=pathlib.Path(__file__).resolve().parent)
    return process, process.stdout.readline().strip()


def left_of(prefix):
    return [path for folder in ("/run/netns", "/etc/netns") if os.path.isdir(folder)
            for path in os.listdir(folder) if path.startswith(prefix)]


def receive(peer, count):
    parts = b""
    while len(parts) < count:
        part = peer.recv(count - len(parts))
        if not part:
            raise EOFError
        parts += part
    return parts


def echo(server):
    def answer(peer):
        try:
            with peer:
                while part := peer.recv(1 << 16):
                    peer.sendall(part)
        except OSError:
            pass

    while True:
        try:
            peer, _ = server.accept()
        except OSError:
            return
        threading.Thread(target=answer, args=(peer,), daemon=True).start()


if __name__ == "__main__":
    run_tests(sys.argv[1:])

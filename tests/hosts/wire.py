# SPDX-License-Identifier: Apache-2.0
"""A wire between two hosts of network_hosts.py, whose packets are harmed on command.

wire.py NAMESPACE NAMESPACE

Makes an interface wire0 in each, with 10.79.0.1 and 10.79.0.2, and carries packets from one to the
other. Prints "ready", then reads commands, one a line, and answers "ok" to each:

    delay SECONDS           from now on every packet arrives that much later
    lose COUNT              of so many packets one is lost; 0 for none
    cut [NUMBER]            nothing arrives any more, or nothing that end NUMBER (1 or 2) sends;
                            no end is notified
    flip WHOSE POSITION     one bit of the byte POSITION, from 0, of the next payload that is long
                            enough and not resent, with a checksum that fits: of our connections
                            (WHOSE is "line"), or of any other TCP connection ("other")
    failed                  prints after "ok" how many packets it could not write, which are lost

The kernel's own qdisc netem would do some of that, but is not in every kernel, and flips bits
that TCP's checksum then finds. Ends with its input, so it never outlives the test that started it.
"""

import asyncio
import collections
import ctypes
import fcntl
import os
import socket
import struct
import subprocess
import sys

from relay import Commanded, obey_all

NAME = "wire0"
ADDRESSES = ("10.79.0.1", "10.79.0.2")
MTU = 60000  # Few packets: each costs this process some 20 us.
TUNSETIFF, IFF_TUN, IFF_NO_PI = 0x400454CA, 0x0001, 0x1000  # linux/if_tun.h
CLONE_NEWNET = 0x40000000
GREETING = b"LOCKSTEP"  # First data from the listening end of a connection.


def enter(namespace):
    with open(f"/run/netns/{namespace}", encoding="ascii") as there:
        if ctypes.CDLL(None, use_errno=True).setns(there.fileno(), CLONE_NEWNET) != 0:
            raise OSError(ctypes.get_errno(), f"setns to {namespace}")


def open_end(namespace, number):
    """Opens one end. Data written to it arrives at the host, and the host's packets are read
    from it."""
    enter(namespace)
    end = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(end, TUNSETIFF, struct.pack("16sH22x", NAME.encode(), IFF_TUN | IFF_NO_PI))
    for words in (["addr", "add", f"{ADDRESSES[number]}/24", "dev", NAME],
                  ["link", "set", NAME, "mtu", str(MTU), "up"]):
        subprocess.run(["ip", *words], check=True)
    return end


class Segment:
    """A TCP segment over IPv4, in its packet."""

    def __init__(self, packet):
        self.packet = packet
        self.begin = 4 * (packet[0] & 15)
        self.payload = self.begin + 4 * (packet[self.begin + 12] >> 4)
        ports = struct.unpack_from("!HH", packet, self.begin)
        self.connection = frozenset(zip((packet[12:16], packet[16:20]), ports))
        self.way = (packet[12:20], ports)  # The connection in one direction.
        self.sequence = struct.unpack_from("!I", packet, self.begin + 4)[0]
        self.end = self.sequence + len(packet) - self.payload
        self.is_first = bool(packet[self.begin + 13] & 2)  # SYN.

    @staticmethod
    def is_in(packet):
        return packet[0] >> 4 == 4 and packet[9] == socket.IPPROTO_TCP

    def says(self):
        return self.packet[self.payload:]

    def flip(self, position):
        """Returns the packet with one bit of its payload flipped and a matching checksum."""
        harmed = bytearray(self.packet)
        harmed[self.payload + position] ^= 0x10
        # RFC 1624's method by bytes instead of words: the position of a byte in the segment
        # determines its weight.
        weight = 8 * (1 - (self.payload - self.begin + position) % 2)
        change = (harmed[self.payload + position] - self.packet[self.payload + position]) << weight
        place = self.begin + 16
        total = (0xFFFF & ~struct.unpack_from("!H", harmed, place)[0]) + change
        struct.pack_into("!H", harmed, place, 0xFFFF & ~(total % 0xFFFF))
        return bytes(harmed)


class Harm:
    """State that the commands have set."""

    def __init__(self):
        self.delay = 0.0
        self._lose = 0
        self._passed = 0
        self._cut = set()
        self._flip = None  # WHOSE and POSITION.
        self._lines = set()  # Lockstep's connections.
        self._ends = {}  # By way: the sequence number after all data that has passed.

    def obey(self, words):
        if words[0] == "delay":
            self.delay = float(words[1])
        elif words[0] == "lose":
            self._lose = int(words[1])
        elif words[0] == "cut":
            self._cut = {int(word) - 1 for word in words[1:]} or {0, 1}
        elif words[0] == "flip":
            self._flip = (words[1], int(words[2]))
        else:
            raise ValueError(f"no command {words[0]}")

    def touch(self, packet, sender):
        """Returns the packet to deliver, or nothing."""
        self._passed += 1
        if sender in self._cut or (self._lose and self._passed % self._lose == 0):
            return None
        if not Segment.is_in(packet):
            return packet
        segment = Segment(packet)
        if segment.is_first:
            self._lines.discard(segment.connection)
            self._ends.pop(segment.way, None)
        elif segment.says().startswith(GREETING):
            self._lines.add(segment.connection)
        is_new = self._passes_first(segment)
        return segment.flip(self._take_flip()) if self._is_to_flip(segment, is_new) else packet

    def _passes_first(self, segment):
        """Returns whether none of its data has passed before. Sequence numbers wrap."""
        end = self._ends.get(segment.way, segment.sequence)
        if (segment.end - end) % (1 << 32) < 1 << 31:
            self._ends[segment.way] = segment.end
        return (segment.sequence - end) % (1 << 32) < 1 << 31

    def _is_to_flip(self, segment, is_new):
        # The receiver may have what TCP resends, and would then not see the flipped bit.
        if self._flip is None or not is_new or len(segment.says()) <= self._flip[1]:
            return False
        return (self._flip[0] == "line") == (segment.connection in self._lines)

    def _take_flip(self):
        (_, position), self._flip = self._flip, None
        return position


class Way:
    """One direction: packets arrive in the order of sending, each when it is due."""

    def __init__(self, end):
        self.failed = 0  # Failed writes; their packets are lost.
        self._end = end
        self._held = collections.deque()  # Packets and their due times.

    def send(self, packet, delay):
        self._held.append((asyncio.get_running_loop().time() + delay, packet))
        if len(self._held) == 1:  # Otherwise there is a timer for the first of them.
            self._pass_on()

    def _pass_on(self):
        loop = asyncio.get_running_loop()
        while self._held and self._held[0][0] <= loop.time():
            self._write(self._held.popleft()[1])
        if self._held:
            loop.call_at(self._held[0][0], self._pass_on)

    def _write(self, packet):
        try:
            os.write(self._end, packet)
        except OSError as error:  # Such as BlockingIOError.
            self.failed += 1
            print(f"wire: {len(packet)} bytes are lost: {error}", file=sys.stderr, flush=True)


def carry(end, sender, way, harm):
    try:
        packet = harm.touch(os.read(end, 1 << 16), sender)
    except BlockingIOError:
        return
    if packet is not None:
        way.send(packet, harm.delay)


async def main(namespaces):
    harm = Harm()
    ends = [open_end(namespace, number) for number, namespace in enumerate(namespaces)]
    ways = [Way(end) for end in reversed(ends)]
    for sender, end in enumerate(ends):
        asyncio.get_running_loop().add_reader(end, carry, end, sender, ways[sender], harm)

    def obey(words):
        if words == ["failed"]:
            return sum(way.failed for way in ways)
        return harm.obey(words)

    print("ready", flush=True)
    await obey_all(obey)


class Wire(Commanded):
    """One that this process started between two Host of network_hosts.py.

        with Wire(hosts[0], hosts[1]) as wire:
            wire.do("delay", 0.02)
    """

    def __init__(self, one, other):
        super().__init__([__file__, one.namespace, other.namespace])
        if self.greeting != "ready":
            self.__exit__()
            raise RuntimeError("there is no wire")

    def lost_by_itself(self):
        """Returns the number of packets that it could not carry, except those that a command
        made it lose."""
        return int(self.do("failed"))


def why_not():
    """Returns why no wire can be created here; empty if it can."""
    return "" if os.path.exists("/dev/net/tun") else "there is no /dev/net/tun"


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1:]))

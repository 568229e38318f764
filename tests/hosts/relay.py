#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Passes TCP connections on, and harms them on command.

relay.py LISTEN_HOST TARGET_HOST TARGET_PORT

Prints the port that it listens on, then reads commands, one a line, and answers "ok" to each:

    delay SECONDS   from now on every byte arrives that much later
    stall           nothing is passed on any more; connections stay, and are accepted
    resume          all that was held back arrives
    corrupt COUNT   one bit of the byte after the next COUNT ones is flipped, whichever way it goes
    cut             ends all connections with a reset; new ones are accepted

Ends with its input, so it never outlives the test that started it.
"""

import asyncio
import socket
import struct
import subprocess
import sys

CHUNK = 1 << 16
# Chunks of each direction that a delay or stall may buffer before it blocks the sender.
IN_FLIGHT = 64


class Harm:
    """State that the commands have set."""

    def __init__(self):
        self.delay = 0.0
        self.flows = asyncio.Event()
        self.flows.set()
        self.corrupt_after = None  # Bytes that still pass unchanged.

    def touch(self, chunk):
        if self.corrupt_after is None:
            return chunk
        if self.corrupt_after >= len(chunk):
            self.corrupt_after -= len(chunk)
            return chunk
        harmed = bytearray(chunk)
        harmed[self.corrupt_after] ^= 0x10
        self.corrupt_after = None
        return bytes(harmed)


class Connections:
    def __init__(self, harm, target):
        self.harm = harm
        self.target = target
        self.writers = set()

    async def accept(self, reader, writer):
        self.writers.add(writer)
        try:
            far_reader, far_writer = await asyncio.open_connection(*self.target)
        except OSError:
            self._reset(writer)
            return
        self.writers.add(far_writer)
        try:
            await asyncio.gather(self._pass_on(reader, far_writer),
                                 self._pass_on(far_reader, writer))
        except asyncio.CancelledError:  # The relay exits.
            return
        for each in (writer, far_writer):
            self.writers.discard(each)
            each.close()

    def cut(self):
        for writer in list(self.writers):
            self._reset(writer)

    def _reset(self, writer):
        self.writers.discard(writer)
        linger = struct.pack("ii", 1, 0)
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        writer.transport.abort()

    async def _pass_on(self, reader, writer):
        held = asyncio.Queue(IN_FLIGHT)
        feeding = asyncio.create_task(self._feed(reader, held))
        try:
            while chunk := await self._next(held):
                writer.write(self.harm.touch(chunk))
                await writer.drain()
            writer.write_eof()
        except (OSError, RuntimeError):  # The connection was cut.
            pass
        finally:
            feeding.cancel()

    async def _next(self, held):
        due, chunk = await held.get()
        await asyncio.sleep(due - asyncio.get_running_loop().time())
        await self.harm.flows.wait()
        return chunk

    async def _feed(self, reader, held):
        chunk = b"something"
        while chunk:
            try:
                chunk = await reader.read(CHUNK)
            except OSError:
                chunk = b""
            await held.put((asyncio.get_running_loop().time() + self.harm.delay, chunk))


def obey(words, harm, connections):
    if words[0] == "delay":
        harm.delay = float(words[1])
    elif words[0] == "stall":
        harm.flows.clear()
    elif words[0] == "resume":
        harm.flows.set()
    elif words[0] == "corrupt":
        harm.corrupt_after = int(words[1])
    elif words[0] == "cut":
        connections.cut()
    else:
        raise ValueError(f"no command {words[0]}")


async def main(listen_host, target_host, target_port):
    harm = Harm()
    connections = Connections(harm, (target_host, int(target_port)))
    server = await asyncio.start_server(connections.accept, listen_host, 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await obey_all(lambda words: obey(words, harm, connections))


class Commanded:
    """A process of this test that executes commands, one per line, until its input ends."""

    def __init__(self, words, start=subprocess.Popen):
        self._process = start([sys.executable, *map(str, words)], stdin=subprocess.PIPE,
                              stdout=subprocess.PIPE, text=True)
        self.greeting = self._process.stdout.readline().strip()

    def do(self, *words):
        """Returns when the command is complete, with the text after "ok"."""
        self._process.stdin.write(" ".join(map(str, words)) + "\n")
        self._process.stdin.flush()
        ok, _, answer = self._process.stdout.readline().strip().partition(" ")
        if ok != "ok":
            raise RuntimeError(f"{type(self).__name__} could not {words}")
        return answer

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._process.stdin.close()
        self._process.stdout.close()
        try:
            self._process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


class Relay(Commanded):
    """One that this process started, on a Host of network_hosts.py if it is given one.

        with Relay("127.0.0.1", port) as relay:
            connect(relay.address)
            relay.do("stall")
    """

    def __init__(self, target_host, target_port, listen_host="127.0.0.1", on=None):
        super().__init__([__file__, listen_host, target_host, target_port],
                         on.popen if on else subprocess.Popen)
        self.address = (listen_host, int(self.greeting))


async def obey_all(obey):
    """Calls `obey` with the words of each line of input until the input ends.

    Prints the result after "ok", unless it is None.
    """
    commands = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(commands), sys.stdin)
    while line := await commands.readline():
        answer = obey(line.decode().split())
        print("ok" if answer is None else f"ok {answer}", flush=True)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))

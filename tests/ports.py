# SPDX-License-Identifier: Apache-2.0
"""TCP ports of this host, for tests that run concurrently with others."""

import pathlib
import socket

_reserved = []


def free_port():
    """Returns a port of 127.0.0.1 that no other process gets during this process's lifetime.

    It is bound and never listens, so a server that sets SO_REUSEADDR may have it."""
    holder = socket.socket()
    holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    holder.bind(("127.0.0.1", 0))
    _reserved.append(holder)
    return holder.getsockname()[1]


def listening_ports():
    """Returns local addresses of this namespace's listening TCP sockets, as the kernel writes them.
    """
    return {line.split()[1] for table in ("/proc/net/tcp", "/proc/net/tcp6")
            for line in pathlib.Path(table).read_text().splitlines()[1:] if line.split()[3] == "0A"}

# SPDX-License-Identifier: Apache-2.0
"""Environment variables as options, by the rules of lockstep/base/variables.h."""

from __future__ import annotations

import os
import re
import sys

# Kubernetes's NAME_PORT for a service of that name.
SERVICE_LINK = re.compile(r"(tcp|udp|sctp)://.+:[0-9]{1,5}")

_warned: set[str] = set()


def read(name: str, default: str = "") -> str:
    """Returns the default if the variable is unset, empty or a service link. Warns once about
    each service link."""
    value = os.environ.get(name, "")
    if SERVICE_LINK.fullmatch(value):
        warn(name, value)
        value = ""
    return value or default


def warn(name: str, value: str) -> None:
    if name in _warned:
        return
    _warned.add(name)
    sys.stderr.write(
        f"lockstep warning: ignoring {name}={value}: Kubernetes has set it for a service of that "
        "name. Give the service another name, or set enableServiceLinks: false in the pod\n")

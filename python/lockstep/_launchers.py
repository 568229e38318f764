# SPDX-License-Identifier: Apache-2.0
"""Jobs of mpirun and srun, which name ranks by other variables than torch.distributed reads."""

from __future__ import annotations

import functools
import importlib
import os
from collections.abc import Callable
from urllib.parse import urlparse


def wrap() -> None:
    """Lets init_process_group() find out its rank also under mpirun and srun."""
    # Not the function of the same name.
    handlers = importlib.import_module("torch.distributed.rendezvous")._rendezvous_handlers
    handlers["env"] = functools.partial(rendezvous, handlers["env"])


def rendezvous(original: Callable, url: str, *args, **options):
    is_told = urlparse(url).query or "RANK" in os.environ or "WORLD_SIZE" in os.environ
    if not is_told and is_launched():
        for name, value in variables().items():
            os.environ.setdefault(name, value)
    return original(url, *args, **options)


def is_launched() -> bool:
    return any(name in os.environ for name in ("OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_STEP_ID"))


def variables() -> dict[str, str]:
    """Returns what torchrun would set, by the launcher's own variables."""
    from lockstep import _C

    place = _C.launch_environment()
    if not place.master:
        lacks = ("does not say which of this host's jobs this is: set MASTER_PORT on all ranks, to "
                 "a free port" if place.local_world_size == place.world_size else
                 "does not say on which host rank 0 is: set MASTER_ADDR and MASTER_PORT on all "
                 "ranks, to that host and a free port of it")
        raise ValueError(f"{place.launcher} {lacks}")
    address, _, port = place.master.rpartition(":")
    return {"RANK": str(place.rank), "WORLD_SIZE": str(place.world_size),
            "LOCAL_RANK": str(place.local_rank), "LOCAL_WORLD_SIZE": str(place.local_world_size),
            "MASTER_ADDR": address.strip("[]"), "MASTER_PORT": port}

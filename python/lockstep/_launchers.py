# SPDX-License-Identifier: Apache-2.0
"""Jobs of mpirun, srun and other launchers whose variables torch.distributed does not read."""

from __future__ import annotations

import functools
import importlib
import os
from collections.abc import Callable
from urllib.parse import urlparse

from lockstep import _variables


def wrap() -> None:
    """Lets init_process_group() find its rank under these launchers, too."""
    # The module, not the function of the same name.
    handlers = importlib.import_module("torch.distributed.rendezvous")._rendezvous_handlers
    handlers["env"] = functools.partial(rendezvous, handlers["env"])


def rendezvous(original: Callable, url: str, *args, **options):
    if "MASTER_PORT" in os.environ and not _variables.read("MASTER_PORT"):
        del os.environ["MASTER_PORT"]  # PyTorch accepts any text as a number.
    if not urlparse(url).query:
        if _variables.read("LOCKSTEP_LAUNCHER", "env") != "env":
            os.environ.update(variables())
        elif is_launched():
            os.environ.update(variables() | os.environ)
    return original(url, *args, **options)


def is_launched() -> bool:
    """Whether Lockstep finds the rank by variables that PyTorch does not read, or can explain
    why there is none, as in a script of sbatch."""
    if _variables.read("LOCKSTEP_LAUNCHER") or "RANK" in os.environ:
        return False
    if "WORLD_SIZE" in os.environ:  # The user passes it on if the launcher sets none.
        return "PMIX_RANK" in os.environ or "PALS_RANKID" in os.environ
    from lockstep import _C

    return _C.is_launched() or "SLURM_JOB_ID" in os.environ


def variables() -> dict[str, str]:
    """Returns the variables that torchrun would set, from those of the launcher."""
    from lockstep import _C

    place = _C.launch_environment()
    if not place.master and place.world_size > 1:
        lacks = ("does not say which of this host's jobs this is: set MASTER_PORT on all ranks, to "
                 "a free port" if place.local_world_size == place.world_size else
                 "does not say on which host rank 0 is: set MASTER_ADDR and MASTER_PORT on all "
                 "ranks, to that host and a free port of it")
        raise ValueError(f"{place.launcher} {lacks}")
    address, _, port = (place.master or "127.0.0.1:0").rpartition(":")
    return {"RANK": str(place.rank), "WORLD_SIZE": str(place.world_size),
            "LOCAL_RANK": str(place.local_rank), "LOCAL_WORLD_SIZE": str(place.local_world_size),
            "MASTER_ADDR": address.strip("[]"), "MASTER_PORT": port}

# SPDX-License-Identifier: Apache-2.0
"""Checkpoints of a training of which each rank has a part of the state, by
torch.distributed.checkpoint (DCP)."""

from __future__ import annotations

import os
import pathlib
import pickle
import shutil
from collections.abc import Mapping
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import (
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)

KEPT = 2  # Newest checkpoints.


class Checkpoints:
    """A folder of checkpoints, which all ranks see. One is complete as soon as it has its name."""

    def __init__(self, directory: str | os.PathLike[str]) -> None:
        self._directory = pathlib.Path(directory)

    def save(self, step: int, parts: Mapping[str, Any]) -> None:
        """Collective: saves the state after `step` steps."""
        done = self._directory / f"step-{step:010d}"
        unfinished = self._directory / f".unfinished-{done.name}"
        if dist.get_rank() == 0:
            shutil.rmtree(unfinished, ignore_errors=True)
            unfinished.mkdir(parents=True)
        dist.barrier()
        dcp.save(tree_of(parts), checkpoint_id=unfinished)
        if dist.get_rank() == 0:
            unfinished.rename(done)
            for old in self._complete()[:-KEPT]:
                shutil.rmtree(old, ignore_errors=True)
        dist.barrier()

    def load(self, parts: Mapping[str, Any]) -> int | None:
        """Collective: loads the newest checkpoint. Returns its step; None without a checkpoint."""
        newest = [str(path) for path in self._complete()[-1:]] if dist.get_rank() == 0 else []
        found: list[Any] = [newest]
        dist.broadcast_object_list(found)
        if not found[0]:
            return None
        tree = tree_of(parts)
        dcp.load(tree, checkpoint_id=found[0][0])
        for name, part in parts.items():
            load_part(part, tree[name], parts)
        return int(found[0][0].rsplit("-", 1)[1])

    @staticmethod
    def forget_layouts() -> None:
        """Clears DTensor's cache, which finds layouts by mesh. An equal mesh of an earlier group
        may have this process as another rank."""
        from torch.distributed.tensor import debug

        names = ("_clear_sharding_prop_cache", "_clear_python_sharding_prop_cache")
        clear = next((getattr(debug, name) for name in names if hasattr(debug, name)), None)
        if clear is not None:
            clear()

    def _complete(self) -> list[pathlib.Path]:
        return sorted(self._directory.glob("step-*"))


def tree_of(parts: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the state as DCP wants it. Parts other than modules and optimizers are equal on all
    ranks, and become bytes."""
    tree: dict[str, Any] = {}
    for name, part in parts.items():
        if isinstance(part, torch.nn.Module):
            tree[name] = get_model_state_dict(part)
        elif isinstance(part, torch.optim.Optimizer):
            tree[name] = get_optimizer_state_dict(module_of(part, parts), part)
        else:
            tree[name] = {"bytes": pickle.dumps(part.state_dict())}
    return tree


def load_part(part: Any, tree: Any, parts: Mapping[str, Any]) -> None:
    if isinstance(part, torch.nn.Module):
        set_model_state_dict(part, tree)
    elif isinstance(part, torch.optim.Optimizer):
        set_optimizer_state_dict(module_of(part, parts), part, tree)
    else:
        part.load_state_dict(pickle.loads(tree["bytes"]))


def module_of(optimizer: torch.optim.Optimizer, parts: Mapping[str, Any]) -> torch.nn.Module:
    """Returns the module of `parts` that has the optimizer's parameters."""
    stepped = {id(one) for group in optimizer.param_groups for one in group["params"]}
    for part in parts.values():
        if isinstance(part, torch.nn.Module) and stepped <= {id(one) for one in part.parameters()}:
            return part
    raise ValueError("the state has an optimizer, but not the module whose parameters it steps")

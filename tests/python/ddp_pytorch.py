# SPDX-License-Identifier: Apache-2.0
"""PyTorch's side of ddp_test.py: does the same as ddp_train.cpp, under DistributedDataParallel.
ddp_pytorch.py FOLDER RESULTS, under torchrun."""

import pathlib
import sys

import torch
import torch.distributed as dist
from ddp_rig import Rig
from ddp_scenarios import SCENARIOS
from plain_safetensors import read, write
from pytorch_side import end_rank


def main():
    folder, results = map(pathlib.Path, sys.argv[1:])
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    inputs = read(folder / "inputs", {})
    for scenario in SCENARIOS:
        rig = Rig(folder, inputs)
        scenario(rig)
        write(results / f"{scenario.__name__}.{rig.rank}", rig.result, {})
    (results / f"config.{dist.get_rank()}").write_text(torch.__config__.show())
    end_rank()


if __name__ == "__main__":
    main()

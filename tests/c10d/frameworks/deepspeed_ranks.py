# SPDX-License-Identifier: Apache-2.0
"""DeepSpeed's ZeRO of all stages."""

import importlib
import logging
import os

os.environ["DS_ACCELERATOR"] = "cpu"

import deepspeed  # noqa: E402
import framework  # noqa: E402
import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from deepspeed import comm  # noqa: E402
from deepspeed.utils import groups, logger  # noqa: E402
from torch.nn.functional import cross_entropy  # noqa: E402

logger.setLevel(logging.ERROR)
# Otherwise it compiles code for a minute that only inference uses.
importlib.import_module("deepspeed.comm.torch").build_shm_op = lambda: None


def train_stage(stage):
    model = framework.own_model()
    engine, *_ = deepspeed.initialize(
        model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1), config={
            "train_micro_batch_size_per_gpu": framework.BATCH, "gradient_clipping": 1.0,
            "zero_force_ds_cpu_optimizer": False, "zero_allow_untested_optimizer": True,
            "zero_optimization": {"stage": stage, "stage3_param_persistence_threshold": 0}})
    losses = []
    for inputs, classes in framework.batches(dist.get_rank()):
        loss = cross_entropy(engine(inputs), classes)
        engine.backward(loss)
        engine.step()
        losses.append(loss.detach())
    with deepspeed.zero.GatheredParameters(list(model.parameters())):
        found = framework.result(losses, model)
    engine.destroy()
    return {f"{stage} {name}": value for name, value in found.items()}


def train(backend):
    comm.comm.cdb = groups._WORLD_GROUP = None  # Those of the last group.
    deepspeed.init_distributed(dist_backend=backend or "lockstep")
    found = {}
    for stage in range(4):
        found |= train_stage(stage)
    return found


framework.run(train, "name", "group")

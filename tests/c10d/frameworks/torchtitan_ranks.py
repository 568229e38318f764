# SPDX-License-Identifier: Apache-2.0
"""torchtitan's meshes, its norm of gradients and its means, around fully_shard()."""

import framework
import torch
import torch.distributed as dist
import torchtitan.tools.utils as tools

tools.device_type, tools.device_module = "cpu", torch.cpu  # Otherwise CUDA, even without a GPU.

from torch.distributed.fsdp import fully_shard  # noqa: E402
from torch.nn.functional import cross_entropy  # noqa: E402
from torchtitan.config import CommConfig  # noqa: E402
from torchtitan.distributed import ParallelDims, utils  # noqa: E402


def train(_):
    assert utils.init_distributed(CommConfig(trace_buf_size=0)) == 2  # Gloo, unless a group exists.
    dims = ParallelDims(dp_replicate=1, dp_shard=2, cp=1, tp=1, pp=1, ep=1, world_size=2,
                        spmd_backend="partial_dtensor")
    mesh = dims.build_mesh()
    model = framework.own_model()
    for layer in (model[0], model[2]):
        fully_shard(layer, mesh=dims.get_mesh("fsdp"))
    fully_shard(model, mesh=dims.get_mesh("fsdp"))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for inputs, classes in framework.batches(dist.get_rank()):
        loss = cross_entropy(model(inputs), classes)
        loss.backward()
        norm = utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        losses += [utils.dist_mean(loss.detach(), dims.get_mesh("loss")),
                   utils.dist_max(loss.detach(), dims.get_mesh("loss")), norm]
    assert mesh.size() == 2
    return framework.result(losses, model)


framework.run(train, "group")

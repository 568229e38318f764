# SPDX-License-Identifier: Apache-2.0
"""torchrec places embedding tables on ranks: whole tables, columns, and copies."""

import framework
import torch
import torch.distributed as dist
import torchrec
from torchrec.distributed import DistributedModelParallel
from torchrec.distributed.planner import EmbeddingShardingPlanner, Topology
from torchrec.distributed.planner.types import ParameterConstraints
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor


def train(backend):
    if backend:
        dist.init_process_group(backend)
    torch.manual_seed(5)
    tables = [torchrec.EmbeddingBagConfig(name=f"table_{kind}", embedding_dim=8,
                                          num_embeddings=16, feature_names=[kind])
              for kind in ("table_wise", "column_wise", "data_parallel")]
    model = torchrec.EmbeddingBagCollection(tables=tables, device=torch.device("cpu"))
    constraints = {table.name: ParameterConstraints(
        sharding_types=[table.feature_names[0]], min_partition=4)
                   for table in tables}
    planner = EmbeddingShardingPlanner(topology=Topology(world_size=2, compute_device="cpu"),
                                       constraints=constraints)
    plan = planner.collective_plan(model, torchrec.distributed.model_parallel
                                   .get_default_sharders(), dist.group.WORLD)
    cut = DistributedModelParallel(model, device=torch.device("cpu"), plan=plan)
    random = torch.Generator().manual_seed(100 + dist.get_rank())
    losses = []
    for _ in range(framework.STEPS):
        lengths = torch.randint(4, (3 * framework.BATCH,), generator=random)
        values = torch.randint(16, (int(lengths.sum()),), generator=random)
        bags = KeyedJaggedTensor(keys=[table.feature_names[0] for table in tables],
                                 values=values, lengths=lengths)
        loss = cut(bags).values().square().mean()
        loss.backward()
        losses.append(loss.detach())
    return {"losses": torch.stack(losses)}


framework.run(train, "group")

# SPDX-License-Identifier: Apache-2.0
"""torchtune shards a model with fully_shard(), trains it and gathers its weights."""

import framework
import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy
from torchtune import training
from torchtune.models.llama3 import llama3


def train(backend):
    if backend:
        assert training.get_distributed_backend("cpu") == "gloo"
        dist.init_process_group(backend)
    torch.manual_seed(5)
    model = llama3(vocab_size=50, num_layers=2, num_heads=2, num_kv_heads=1, embed_dim=16,
                   max_seq_len=16, intermediate_dim=32)
    training.shard_model(model, [lambda name, module: name.startswith("layers.")
                                 and name.count(".") == 1], cpu_offload=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    random = torch.Generator().manual_seed(100 + dist.get_rank())
    for _ in range(framework.STEPS):
        tokens = torch.randint(50, (2, 12), generator=random)
        loss = cross_entropy(model(tokens)[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.detach())
    state = training.gather_cpu_state_dict(model, is_rank_zero=dist.get_rank() == 0,
                                           device=torch.device("cpu"))
    return framework.result(losses, state)


framework.run(train, "group")

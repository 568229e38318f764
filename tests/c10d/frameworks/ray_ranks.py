# SPDX-License-Identifier: Apache-2.0
"""Ray Train starts the ranks itself, as workers of a Ray that this program starts."""

import os
import secrets
import tempfile

import framework
import ray
import ray.train.torch
import torch
import torch.distributed as dist
from ray.train import RunConfig, ScalingConfig
from ray.train.torch import TorchConfig, TorchTrainer
from torch.nn.functional import cross_entropy


def work(config):
    assert framework.is_lockstep() == (config["way"] != "gloo")
    model = ray.train.torch.prepare_model(framework.own_model())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for inputs, classes in framework.batches(dist.get_rank()):
        loss = cross_entropy(model(inputs), classes)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    ray.train.report({"loss": losses[-1].item()})
    framework.write({config["way"]: framework.result(losses, model.module)}, dist.get_rank())


def main():
    os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))  # Otherwise in the user's home.
    ray.init(num_cpus=3, include_dashboard=False, log_to_driver=False,
             runtime_env={"env_vars": {name: os.environ[name] for name in
                                       ("PYTHONPATH", "LOCKSTEP_AS_GLOO", "FRAMEWORK_RESULTS")
                                       if name in os.environ}})
    for way in framework.ways("name"):
        with tempfile.TemporaryDirectory() as folder:
            TorchTrainer(work, train_loop_config={"way": way},
                         torch_config=TorchConfig("lockstep" if way == "name" else "gloo"),
                         scaling_config=ScalingConfig(num_workers=2),
                         run_config=RunConfig(storage_path=folder)).fit()
    ray.shutdown()


main()

# SPDX-License-Identifier: Apache-2.0
"""Lightning: its DDP strategy, means of logged values, and of int64 among them."""

import logging
import os
import warnings

import framework
import lightning
import torch
import torch.distributed as dist
from lightning.fabric.utilities.distributed import _sync_ddp
from lightning.pytorch.strategies import DDPStrategy
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
warnings.simplefilter("ignore")


class Module(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.model = framework.own_model()
        self.losses, self.counts = [], []

    def training_step(self, batch, index):
        inputs, classes = batch
        loss = cross_entropy(self.model(inputs), classes)
        self.log("loss", loss, sync_dist=True)
        self.log("classes", classes.sum(), sync_dist=True)
        self.losses.append(self.trainer.strategy.reduce(loss.detach(), reduce_op="mean"))
        self.counts.append(self.trainer.strategy.reduce(classes.sum(), reduce_op="mean"))
        return loss

    def on_train_epoch_end(self):
        self.everyone = self.all_gather(self.losses[-1].clone())

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


def train(backend):
    rank = dist.get_rank() if dist.is_initialized() else int(os.environ["RANK"])
    module = Module()
    trainer = lightning.Trainer(
        accelerator="cpu", devices=2, max_epochs=1, logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False, use_distributed_sampler=False,
        strategy=DDPStrategy(process_group_backend=backend))
    trainer.fit(module, DataLoader(TensorDataset(*framework.samples(rank)), batch_size=8))
    number = _sync_ddp(torch.tensor([3 + rank, -3 - rank]), reduce_op="mean")
    return framework.result(module.losses, module) | {
        "counts": torch.stack(module.counts), "number": number, "everyone": module.everyone,
        "logged": trainer.callback_metrics["loss"], "classes": trainer.callback_metrics["classes"]}


framework.run(train, "name", "group")

# SPDX-License-Identifier: Apache-2.0
"""Metrics of all ranks: sums, and lists of unequal lengths, which are gathered."""

import framework
import torch
import torch.distributed as dist
from torchmetrics import CatMetric, MeanMetric, SumMetric
from torchmetrics.classification import MulticlassAccuracy, MulticlassAUROC


def train(backend):
    if backend:
        dist.init_process_group(backend)
    rank = dist.get_rank()
    inputs, classes = framework.samples(rank)
    scores = framework.own_model()(inputs).softmax(1).detach()[:20 + 5 * rank]
    classes = classes[:20 + 5 * rank]
    accuracy, area = MulticlassAccuracy(num_classes=4), MulticlassAUROC(num_classes=4)
    accuracy.update(scores, classes)
    area.update(scores, classes)
    mean, all_values, total = MeanMetric(), CatMetric(), SumMetric()
    mean.update(scores[:, 0])
    all_values.update(scores[:, 1])
    total.update(torch.tensor(3 + rank))
    return {"accuracy": accuracy.compute(), "area": area.compute(), "mean": mean.compute(),
            "total": total.compute(), "values": all_values.compute()}


framework.run(train, "group")

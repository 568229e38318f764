// Compared models, with random data that is generated in advance. models.py has the same models.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <lockstep/comm/process_group.h>
#include <lockstep/parallel/replicate/distributed_data_parallel.h>
#include <torch/types.h>

#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "bench/ddp/options.h"

struct Workload {
  torch::Tensor inputs;
  torch::Tensor targets;
  std::vector<torch::Tensor> parameters;
  std::function<torch::Tensor(const torch::Tensor& inputs)> forward;
  std::shared_ptr<lockstep::DataParallelBase> ddp;  // Null without a group.
};

// The mean loss for images, [N, classes] and [N], or for tokens, [N, T, vocabulary] and [N, T].
torch::Tensor loss_of(const torch::Tensor& outputs, const torch::Tensor& targets);

// Without `world` the bare model, otherwise in a DistributedDataParallel or, with
// Options::deterministic, a DeterministicDataParallel.
Workload make_workload(const Options& options, const std::optional<lockstep::ProcessGroup>& world);

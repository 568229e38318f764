// Compared models, with random data that is made beforehand. models.py has their twins.

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

// Returns the mean loss of images' [N, classes] and [N], or of tokens' [N, T, vocabulary] and [N,
// T].
torch::Tensor loss_of(const torch::Tensor& outputs, const torch::Tensor& targets);

// Makes the model named in `options`: bare without `world`, otherwise in a DistributedDataParallel.
Workload make_workload(const Options& options, const std::optional<lockstep::ProcessGroup>& world);

// The models that are compared, with random data that is there already. models.py has their twins.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <lockstep/comm/process_group.h>
#include <lockstep/parallel/replicate/data_parallel_base.h>
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
  std::shared_ptr<lockstep::DataParallelBase> ddp;  // Null when alone.
};

// The mean of images' [N, classes] and [N], or of tokens' [N, T, vocabulary] and [N, T].
torch::Tensor loss_of(const torch::Tensor& outputs, const torch::Tensor& targets);

// Of the model that `options` name. Without `world` it is bare, else a DistributedDataParallel.
Workload make_workload(const Options& options, const std::optional<lockstep::ProcessGroup>& world);

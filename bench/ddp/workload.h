// The models that are compared, with random data that is there already. models.py has their twins.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <lockstep/comm/process_group.h>
#include <lockstep/parallel/backward_report.h>
#include <lockstep/parallel/piece.h>
#include <torch/types.h>

#include <functional>
#include <optional>
#include <vector>

#include "bench/ddp/options.h"

struct Workload {
  torch::Tensor inputs;
  torch::Tensor targets;
  std::vector<torch::Tensor> parameters;
  std::function<torch::Tensor(const torch::Tensor& inputs)> forward;
  std::function<double(std::int64_t step, const lockstep::PieceLoss& loss_of)> train_pieces;
  std::function<std::optional<lockstep::BackwardTimes>()>
      backward_times;  // So far; nothing when alone.
};

// Of the model that `options` name. Without `world` it is bare, else a DistributedDataParallel.
Workload make_workload(const Options& options, const std::optional<lockstep::ProcessGroup>& world);

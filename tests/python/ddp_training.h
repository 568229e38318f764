// Common parts of several scenarios.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "tests/python/ddp_models.h"
#include "tests/python/ddp_rig.h"

template <class Net>
void train(Rig& rig, lockstep::DistributedDataParallel<Net>& ddp,
           torch::optim::Optimizer& optimizer, std::size_t begin = 0, std::size_t end = steps) {
  for (std::size_t step = begin; step < end; ++step) {
    optimizer.zero_grad();
    rig.loss(ddp(rig.x(step)), step).backward();
    optimizer.step();
  }
}

template <class Net>
void train_with_sgd(Rig& rig, const std::shared_ptr<Net>& net,
                    const lockstep::DistributedDataParallelOptions& options) {
  lockstep::DistributedDataParallel ddp(net, rig.world(), options);
  auto optimizer = sgd(*net);
  train(rig, ddp, optimizer);
  rig.record_all(ddp);
}

inline std::shared_ptr<Mlp> mlp(const Rig& rig) { return rig.load("Mlp", std::make_shared<Mlp>()); }

inline std::shared_ptr<Branches> branches(const Rig& rig) {
  return rig.load("Branches", std::make_shared<Branches>());
}

inline lockstep::DistributedDataParallelOptions find_unused(const Rig& rig) {
  auto options = rig.options();
  options.find_unused_parameters = true;
  return options;
}

// Ranks take a, then b, then twice neither; in some steps no rank takes a, or b.
inline std::size_t changing_branch(const Rig& rig, std::size_t step) {
  return (step + rig.rank()) % 4;
}

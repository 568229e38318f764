// Parameters that a pass does not use.

// SPDX-License-Identifier: Apache-2.0
#include "tests/python/ddp_scenarios.h"
#include "tests/python/ddp_training.h"

namespace {

using lockstep::DistributedDataParallel;

template <class ZeroGrad>
void train_branches(Rig& rig, ZeroGrad zero_grad) {
  const auto net = branches(rig);
  DistributedDataParallel ddp(net, rig.world(), find_unused(rig));
  auto optimizer = sgd(*net, 0.01);
  for (std::size_t step = 0; step < steps; ++step) {
    zero_grad(optimizer, step);
    rig.loss(ddp(rig.x(step), changing_branch(rig, step)), step).backward();
    optimizer.step();
  }
  rig.record_all(ddp);
}

void unused(Rig& rig) {
  train_branches(rig, [](auto& optimizer, std::size_t) { optimizer.zero_grad(); });
}

void unused_zeros(Rig& rig) {
  train_branches(rig, [](auto& optimizer, std::size_t) { optimizer.zero_grad(false); });
}

void unused_stale(Rig& rig) {
  train_branches(rig, [](auto& optimizer, std::size_t step) {
    if (step % 5 == 0) optimizer.zero_grad();
  });
}

void unused_accumulation(Rig& rig) {
  const auto net = branches(rig);
  DistributedDataParallel ddp(net, rig.world(), find_unused(rig));
  auto optimizer = sgd(*net, 0.01);
  for (std::size_t step = 0; step < steps; ++step) {
    optimizer.zero_grad();
    {
      const auto alone = ddp.no_sync();
      rig.loss(ddp(rig.x(step), changing_branch(rig, step)), step).backward();
    }
    rig.loss(ddp(rig.x(step), changing_branch(rig, step / 2)), step).backward();
    optimizer.step();
  }
  rig.record_all(ddp);
}

void unused_adam(Rig& rig) {
  const auto net = branches(rig);
  DistributedDataParallel ddp(net, rig.world(), find_unused(rig));
  lockstep::Adam optimizer(net->parameters(), torch::optim::AdamOptions(0.01).weight_decay(0.1));
  for (std::size_t step = 0; step < steps; ++step) {
    optimizer.zero_grad();
    rig.loss(ddp(rig.x(step), changing_branch(rig, step)), step).backward();
    optimizer.step();
  }
  rig.record_all(ddp);
}

void frozen_for_a_while(Rig& rig) {
  const auto net = mlp(rig);
  DistributedDataParallel ddp(net, rig.world(), find_unused(rig));
  auto optimizer = sgd(*net);
  for (std::size_t step = 0; step < steps; ++step) {
    for (auto& parameter : net->linear1->parameters())
      parameter.set_requires_grad(step < 5 || step >= 12);
    optimizer.zero_grad();
    rig.loss(ddp(rig.x(step)), step).backward();
    optimizer.step();
  }
  rig.record_all(ddp);
}

void train_static(Rig& rig, std::size_t branch, bool set_to_none) {
  auto options = rig.options();
  options.static_graph = true;
  const auto net = branches(rig);
  DistributedDataParallel ddp(net, rig.world(), options);
  auto optimizer = sgd(*net, 0.01);
  for (std::size_t step = 0; step < steps; ++step) {
    optimizer.zero_grad(set_to_none);
    rig.loss(ddp(rig.x(step), branch), step).backward();
    optimizer.step();
  }
  rig.record_all(ddp);
}

void static_graph(Rig& rig) { train_static(rig, 0, /*set_to_none=*/true); }
void static_graph_zeros(Rig& rig) { train_static(rig, 1, /*set_to_none=*/false); }
void static_graph_of_each(Rig& rig) { train_static(rig, rig.rank() % 3, /*set_to_none=*/true); }

}  // namespace

Scenarios unused_scenarios() {
  return {{"unused", unused},
          {"unused_zeros", unused_zeros},
          {"unused_stale", unused_stale},
          {"unused_accumulation", unused_accumulation},
          {"unused_adam", unused_adam},
          {"frozen_for_a_while", frozen_for_a_while},
          {"static_graph", static_graph},
          {"static_graph_zeros", static_graph_zeros},
          {"static_graph_of_each", static_graph_of_each}};
}

// Buffers, and ranks whose inputs end at different times.

// SPDX-License-Identifier: Apache-2.0
#include "tests/python/ddp_scenarios.h"
#include "tests/python/ddp_training.h"

namespace {

using lockstep::DistributedDataParallel;
using Options = lockstep::DistributedDataParallelOptions;

// Makes a Norm whose buffers differ on each rank.
std::shared_ptr<Norm> norm(const Rig& rig) {
  auto net = rig.load("Norm", std::make_shared<Norm>());
  net->norm->running_mean.fill_(rig.world().rank());
  return net;
}

void train_norm(Rig& rig, bool broadcast_buffers) {
  auto options = rig.options();
  options.broadcast_buffers = broadcast_buffers;
  const auto net = norm(rig);
  DistributedDataParallel ddp(net, rig.world(), options);
  auto optimizer = sgd(*net);
  for (std::size_t half : {0, 1}) {
    train(rig, ddp, optimizer, half * steps / 2, (half + 1) * steps / 2);
    const torch::NoGradGuard no_grad;
    net->eval();
    for (std::size_t i = 0; i < 2 + rig.rank(); ++i)  // Some ranks have more batches.
      rig.record("evaluated" + std::to_string(half) + std::to_string(i), ddp(rig.x(i)));
    net->train();
  }
  rig.record_all(ddp);
}

void buffers(Rig& rig) { train_norm(rig, true); }
void buffers_apart(Rig& rig) { train_norm(rig, false); }

void buffers_accumulation(Rig& rig) {
  const auto net = norm(rig);
  DistributedDataParallel ddp(net, rig.world(), rig.options());
  auto optimizer = sgd(*net);
  for (std::size_t step = 0; step < steps; ++step) {
    optimizer.zero_grad();
    {
      const auto alone = ddp.no_sync();
      for (std::size_t i : {0, 1}) rig.loss(ddp(rig.x((step + i) % steps)), step).backward();
    }
    rig.loss(ddp(rig.x(step)), step).backward();
    optimizer.step();
  }
  rig.record_all(ddp);
}

enum class Longest { first, last, all, all_but_first };

std::size_t uneven_steps(const Rig& rig, Longest longest) {
  if (longest == Longest::all) return steps;
  if (longest == Longest::all_but_first) return rig.rank() == 0 ? 0 : steps;
  return steps - 4 * (longest == Longest::first ? rig.rank() : rig.ranks() - 1 - rig.rank());
}

template <class Net>
void train_uneven(Rig& rig, const std::shared_ptr<Net>& net, const Options& options,
                  Longest longest, bool divide_by_initial_world_size) {
  DistributedDataParallel ddp(net, rig.world(), options);
  auto optimizer = sgd(*net);
  ddp.join([&] { train(rig, ddp, optimizer, 0, uneven_steps(rig, longest)); },
           {.divide_by_initial_world_size = divide_by_initial_world_size});
  // Buffers do not change from here on. Otherwise PyTorch would use those of the last rank, because
  // its join() does not synchronise at the end, and Lockstep those of rank 0.
  net->eval();
  torch::optim::SGD afterwards(net->parameters(), torch::optim::SGDOptions(0.1));
  train(rig, ddp, afterwards, steps - 3, steps);
  rig.record_all(ddp);
}

void join_last(Rig& rig) { train_uneven(rig, mlp(rig), rig.options(), Longest::last, true); }
void join_first(Rig& rig) { train_uneven(rig, mlp(rig), rig.options(), Longest::first, true); }
void join_even(Rig& rig) { train_uneven(rig, mlp(rig), rig.options(), Longest::all, true); }
void join_empty(Rig& rig) {
  train_uneven(rig, mlp(rig), rig.options(), Longest::all_but_first, true);
}
void join_active(Rig& rig) { train_uneven(rig, mlp(rig), rig.options(), Longest::last, false); }

void join_buffers(Rig& rig) { train_uneven(rig, norm(rig), rig.options(), Longest::first, true); }

void join_buffers_active(Rig& rig) {
  train_uneven(rig, norm(rig), rig.options(), Longest::last, false);
}

void join_buffers_apart(Rig& rig) {
  auto options = rig.options();
  options.broadcast_buffers = false;
  train_uneven(rig, norm(rig), options, Longest::last, true);
}

void join_accumulation(Rig& rig) {
  const auto net = norm(rig);
  DistributedDataParallel ddp(net, rig.world(), rig.options());
  auto optimizer = sgd(*net);
  ddp.join([&] {
    for (std::size_t step = 0; step < uneven_steps(rig, Longest::last); ++step) {
      optimizer.zero_grad();
      {
        const auto alone = ddp.no_sync();
        rig.loss(ddp(rig.x((step + 1) % steps)), step).backward();
      }
      rig.loss(ddp(rig.x(step)), step).backward();
      optimizer.step();
    }
  });
  net->eval();
  optimizer.zero_grad();
  rig.loss(ddp(rig.x(0)), 0).backward();
  rig.record_all(ddp);
}

void join_unused(Rig& rig) {
  const auto net = branches(rig);
  DistributedDataParallel ddp(net, rig.world(), find_unused(rig));
  auto optimizer = sgd(*net, 0.01);
  ddp.join([&] {
    for (std::size_t step = 0; step < uneven_steps(rig, Longest::last); ++step) {
      optimizer.zero_grad();
      rig.loss(ddp(rig.x(step), changing_branch(rig, step)), step).backward();
      optimizer.step();
    }
  });
  optimizer.zero_grad();  // A joined rank gets the others' gradients; PyTorch keeps its own.
  rig.record_all(ddp);
}

}  // namespace

Scenarios buffer_scenarios() {
  return {{"buffers", buffers},
          {"buffers_apart", buffers_apart},
          {"buffers_accumulation", buffers_accumulation},
          {"join_last", join_last},
          {"join_first", join_first},
          {"join_even", join_even},
          {"join_empty", join_empty},
          {"join_active", join_active},
          {"join_buffers", join_buffers},
          {"join_buffers_active", join_buffers_active},
          {"join_buffers_apart", join_buffers_apart},
          {"join_accumulation", join_accumulation},
          {"join_unused", join_unused}};
}

// Finds ranks whose weights, buffers or hyperparameters are no longer those of the others.
//
//   lockstep::DriftCheck drift(*model, adam, world, {.every = 100});
//   for (auto& batch : *loader) {
//     ...
//     adam.step();
//     drift.step();
//   }
//
// Replicas that receive the same gradients stay equal bit for bit; a learning rate that one rank
// alone changes, a weight that one rank alone writes or a fault in memory ends that without a sign.
// Compared are names, types, shapes and bits of the tensors (-0.0 is not 0.0, one NaN equals the
// same NaN) and, of the optimizer, its class, its param groups and all that their options
// serialise: learning rate, betas, momentum, weight decay. Its state is not: what differs there
// shows in the weights a step later. Strides are not compared.
//
// The Error tells everything at once:
//   drift check after step 300: the replicas have drifted apart:
//     rank 1 differs from ranks 0, 2 in 7 tensors: conv.weight, conv.bias, out.weight and 4 more
//     param group 0: lr 0.001 on ranks 0, 2; 0.01 on rank 1
//
// Thread safety: none; one training loop uses it.
// Blocking: until all ranks have come to a comparison.
// Errors: mismatch, on all ranks and with the same text, when something differs; the group stays
// usable, so that a program may save what it has. Ranks that do not come equally often get a
// mismatch from ProcessGroup, which breaks the group. misuse for a tensor that is not dense;
// unsupported for an optimizer whose options override neither serialize() nor get_lr(); of those
// that override the latter alone, the learning rate is all that is compared.
// Lifetime: module and optimizer must outlive a DriftCheck.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "lockstep/base/api.h"
#include "lockstep/comm/process_group.h"
#include "lockstep/tensor/named_tensors.h"

namespace torch::nn {
class Module;
}
namespace torch::optim {
class Optimizer;
}

namespace lockstep {

struct DriftCheckOptions {
  // Calls of step() from one comparison to the next; the same on all ranks. What drifts is found so
  // many steps later at most. A comparison reads all weights once and sends eight bytes: 0.3 ms for
  // 8.7 MB, and 0.1 ms for the options of an optimizer (measured, 27 GB/s). Calls in between cost 3
  // ns.
  int every = 100;

  // Whether buffers are compared too. The running statistics of a plain BatchNorm are each rank's
  // own after every training forward, with DistributedDataParallel's broadcast_buffers until the
  // next one: with them, `true` finds a drift that is meant. Set it where the module's buffers
  // change alike on all ranks or not at all: tables, masks, step counters.
  bool buffers = false;
};

class LOCKSTEP_API DriftCheck {
 public:
  // Communicate nothing.
  DriftCheck(const torch::nn::Module& module, const ProcessGroup& group,
             DriftCheckOptions options = {});
  DriftCheck(const torch::nn::Module& module, const torch::optim::Optimizer& optimizer,
             const ProcessGroup& group, DriftCheckOptions options = {});

  // Once after each step of training. Every `every`-th call is collective.
  void step();

 private:
  const torch::nn::Module& module_;
  const torch::optim::Optimizer* const optimizer_;
  const ProcessGroup group_;
  const DriftCheckOptions options_;
  std::int64_t steps_ = 0;
};

// Collective: one such comparison, say of named_tensors(model) after a checkpoint was read.
LOCKSTEP_API void require_equal_replicas(const NamedTensors& tensors, const ProcessGroup& group);
LOCKSTEP_API void require_equal_replicas(const NamedTensors& tensors,
                                         const torch::optim::Optimizer& optimizer,
                                         const ProcessGroup& group);

}  // namespace lockstep

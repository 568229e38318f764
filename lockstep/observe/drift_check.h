// Detects ranks with different weights, buffers or hyperparameters. Replicas with equal gradients
// stay equal bit for bit, unless a rank changes its learning rate or a weight, or its memory fails.
//
//   lockstep::DriftCheck drift(*model, adam, world, {.every = 100});
//   ...
//   adam.step();
//   drift.step();
//
// Thread safety: none. Blocking: comparisons.
// Errors: mismatch, on all ranks, with the differences. The group stays usable, for saving the
// state. If ranks call step() unequally often, ProcessGroup throws a mismatch, which breaks the
// group. Misuse for a tensor that is not dense. Unsupported for an optimizer whose options override
// neither serialize() nor get_lr().
// Lifetime: module and optimizer must outlive it.

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
  // Calls of step() per comparison; equal on all ranks. A comparison reads all weights and sends 24
  // bytes. It takes 0.3 ms for 8.5 MB (27 GB/s), and 0.1 ms for an optimizer's options.
  int every = 100;

  // Whether to compare buffers. The running statistics of a plain BatchNorm differ after a training
  // forward; broadcast_buffers equalises them at the next one.
  bool buffers = false;
};

class LOCKSTEP_API DriftCheck {
 public:
  // Compares names, types, shapes and bits of the tensors: -0.0 is not 0.0, and a NaN equals the
  // same NaN. Also compares the optimizer's class, param groups and serialised options; without
  // serialize(), only the learning rate. Ignores strides and the optimizer's state, whose
  // differences affect the weights one step later.
  // Compares cut parameters (sharded_module.h) if all ranks of the group have the same parts, as in
  // mesh["dp"], not in mesh["tp"]. The constructors do not communicate.
  DriftCheck(const torch::nn::Module& module, const ProcessGroup& group,
             DriftCheckOptions options = {});
  DriftCheck(const torch::nn::Module& module, const torch::optim::Optimizer& optimizer,
             const ProcessGroup& group, DriftCheckOptions options = {});

  // Call once after each training step. Every `every`-th call is collective.
  void step();

 private:
  const torch::nn::Module& module_;
  const torch::optim::Optimizer* const optimizer_;
  const ProcessGroup group_;
  const DriftCheckOptions options_;
  std::int64_t steps_ = 0;
};

// Collective: compares once, as after loading a checkpoint.
LOCKSTEP_API void require_equal_replicas(const NamedTensors& tensors, const ProcessGroup& group);
LOCKSTEP_API void require_equal_replicas(const NamedTensors& tensors,
                                         const torch::optim::Optimizer& optimizer,
                                         const ProcessGroup& group);

}  // namespace lockstep

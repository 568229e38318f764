// Finds ranks whose weights, buffers or hyperparameters differ from the others'.
//
//   lockstep::DriftCheck drift(*model, adam, world, {.every = 100});
//   for (auto& batch : *loader) {
//     ...
//     adam.step();
//     drift.step();
//   }
//
// Replicas that receive the same gradients stay equal bit for bit. A learning rate changed on one
// rank, a weight written on one rank, or a memory fault silently ends that.
// The check compares names, types, shapes and bits of the tensors: -0.0 is not 0.0, and a NaN
// equals the same NaN. It also compares the optimizer's class, param groups and all serialised
// options: learning rate, betas, momentum, weight decay. It ignores strides and the optimizer's
// state; different state shows in the weights one step later.
//
// Parameters that are cut over ranks (sharded_module.h) are compared if all ranks of the group hold
// the same parts, as those of mesh["dp"] do; over mesh["tp"], only the whole ones are.
//
// The Error reports all differences at once:
//   drift check after step 300: the replicas have drifted apart:
//     rank 1 differs from ranks 0, 2 in 7 tensors: conv.weight, conv.bias, out.weight and 4 more
//     param group 0: lr 0.001 on ranks 0, 2; 0.01 on rank 1
//
// Thread safety: none; one training loop uses it.
// Blocking: a comparison waits for all ranks.
// Errors: mismatch, on all ranks and with the same text, if replicas differ; the group stays
// usable, so a program may save its state. Ranks that call step() unequally often get a mismatch
// from ProcessGroup, which breaks the group. misuse for a tensor that is not dense; unsupported for
// an optimizer whose options override neither serialize() nor get_lr(). If they override only
// get_lr(), only the learning rate is compared.
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
  // Calls of step() per comparison; equal on all ranks. A drift is found at most this many steps
  // later. A comparison reads all weights once and sends 24 bytes: 0.3 ms for 8.5 MB, and 0.1 ms
  // for the options of an optimizer (measured, 27 GB/s). Calls in between cost 3 ns.
  int every = 100;

  // Whether buffers are compared too. Set it if the module's buffers change alike on all ranks or
  // not at all: tables, masks, step counters. The running statistics of a plain BatchNorm differ
  // between ranks after every training forward; with DistributedDataParallel's broadcast_buffers,
  // until the next forward. For such buffers `true` reports an intended drift.
  bool buffers = false;
};

class LOCKSTEP_API DriftCheck {
 public:
  // The constructors do not communicate.
  DriftCheck(const torch::nn::Module& module, const ProcessGroup& group,
             DriftCheckOptions options = {});
  DriftCheck(const torch::nn::Module& module, const torch::optim::Optimizer& optimizer,
             const ProcessGroup& group, DriftCheckOptions options = {});

  // Call once after each step of training. Every `every`-th call is collective.
  void step();

 private:
  const torch::nn::Module& module_;
  const torch::optim::Optimizer* const optimizer_;
  const ProcessGroup group_;
  const DriftCheckOptions options_;
  std::int64_t steps_ = 0;
};

// Collective: one such comparison, for example of named_tensors(model) after loading a checkpoint.
LOCKSTEP_API void require_equal_replicas(const NamedTensors& tensors, const ProcessGroup& group);
LOCKSTEP_API void require_equal_replicas(const NamedTensors& tensors,
                                         const torch::optim::Optimizer& optimizer,
                                         const ProcessGroup& group);

}  // namespace lockstep

// Implements DeterministicDataParallel::train_microbatches(). Thread safety: none.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "lockstep/comm/process_group.h"
#include "lockstep/parallel/deterministic/deterministic_data_parallel.h"
#include "lockstep/parallel/deterministic/microbatch_sums.h"
#include "lockstep/parallel/gradients/pass_report.h"
#include "lockstep/tensor/named_tensors.h"

namespace torch::nn {
class Module;
}

namespace lockstep::parallel {

class MicrobatchRandom;
class Reducer;

class DeterministicPass {
 public:
  // Collective, before the module is changed. Returns `options`. Errors: mismatch for different
  // options; misuse, as DeterministicDataParallel's, and for options out of range.
  static DeterministicOptions checked(const DeterministicOptions& options,
                                      const ProcessGroup& group);

  // Collective. `module` and `reducer` outlive this object. `options` are checked().
  DeterministicPass(const torch::nn::Module& module, Reducer& reducer, const ProcessGroup& group,
                    const DeterministicOptions& options);

  double run(std::int64_t step, const MicrobatchLoss& loss_of, const std::string& change);

  int microbatches() const { return options_.microbatches; }

  std::vector<at::Tensor> memory() const { return sums_.memory(); }

 private:
  struct Outcome {
    double loss = 0;
    double samples = 0;
  };

  // Each rank's, for require_agreement().
  struct State {
    std::int64_t step;
    std::int64_t threads;
    std::int64_t changed;  // The first changed tensor, or -1.
  };

  double compute(std::int64_t step, const MicrobatchLoss& loss_of, const std::string& change);
  std::vector<Outcome> compute_microbatches(std::int64_t step, const MicrobatchLoss& loss_of,
                                            const std::string& change);
  Outcome compute_microbatch(const MicrobatchTree::Step& step, const MicrobatchLoss& loss_of);
  void take_gradients(const MicrobatchTree::Step& step);
  Outcome sum_over_microbatches(const std::vector<Outcome>& own) const;
  void require_agreement(const State& state, const NamedTensors& watched) const;
  void drop_gradients() const;
  void finish(const PassReports& reports, double count);  // For means over `count`.

  const torch::nn::Module& module_;
  Reducer& reducer_;
  const ProcessGroup group_;
  const DeterministicOptions options_;
  const MicrobatchTree tree_;
  const std::vector<MicrobatchTree::Step> steps_;
  const MicrobatchSums sums_;

  // For the current step.
  std::vector<ParameterUse> uses_;  // By parameter, of this rank's microbatches.
  PassReport report_;
  std::chrono::nanoseconds longest_{};  // Time of this rank's microbatches in a step.
};

}  // namespace lockstep::parallel

// Implements DistributedDataParallel::train_microbatches(). Thread safety: none.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "lockstep/comm/process_group.h"
#include "lockstep/parallel/deterministic/global_microbatch.h"
#include "lockstep/parallel/deterministic/microbatch_sums.h"
#include "lockstep/parallel/gradients/distributed_data_parallel_options.h"
#include "lockstep/parallel/gradients/pass_report.h"
#include "lockstep/tensor/named_tensors.h"

namespace torch::nn {
class Module;
}

namespace lockstep::parallel {

class MicrobatchRandom;
class Reducer;

// Collective. Errors: misuse if the number of ranks does not divide that of microbatches, or a
// rank's intra-op threads are not deterministic_threads.
void require_deterministic(const DistributedDataParallelOptions& options,
                           const ProcessGroup& group);

class DeterministicPass {
 public:
  // Collective. `module` and `reducer` outlive this object.
  DeterministicPass(const torch::nn::Module& module, Reducer& reducer, const ProcessGroup& group,
                    const DistributedDataParallelOptions& options);

  double run(std::int64_t step, const MicrobatchLoss& loss_of, const std::string& change);

  int microbatches() const { return options_.deterministic; }

  std::vector<at::Tensor> memory() const { return sums_.memory(); }

  // For the current microbatch.
  void count_samples(double samples) { samples_ += samples; }

 private:
  struct Outcome {
    double loss = 0;
    double samples = 0;
  };

  // Must be equal on all ranks.
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
  const DistributedDataParallelOptions options_;
  const MicrobatchTree tree_;
  const std::vector<MicrobatchTree::Step> steps_;
  const MicrobatchSums sums_;

  // For the current step.
  std::vector<ParameterUse> uses_;  // By parameter, of this rank's microbatches.
  PassReport report_;
  double samples_ = 0;
  std::chrono::nanoseconds longest_{};  // Time of a pass's microbatches.
};

}  // namespace lockstep::parallel

// Follows the backward passes of a module: which gradients came, and what all ranks make of them.
//
// A hook on each parameter's gradient accumulator hands the gradient over to a GradientSink, which
// averages it. At the end of the pass Reducer agrees with the other ranks on whether it counts.
//
// Parameters that a pass has left out are known at its end, without a search of the graph: neither
// forward()'s result nor the number of forward() calls matters.
//
// Gradients that several reducers have are averaged by one of them, which GradientHook tells. The
// others leave them out.
//
// Thread safety: as backward() itself: one call at a time.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <chrono>
#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/comm/process_group.h"
#include "lockstep/parallel/gradients/backward_clock.h"
#include "lockstep/parallel/gradients/backward_pass.h"
#include "lockstep/parallel/gradients/distributed_data_parallel_options.h"
#include "lockstep/parallel/gradients/features.h"
#include "lockstep/parallel/gradients/gradient_hook.h"
#include "lockstep/parallel/gradients/gradient_intake.h"
#include "lockstep/parallel/gradients/gradient_sink.h"
#include "lockstep/parallel/gradients/join.h"
#include "lockstep/parallel/gradients/pass_report.h"
#include "lockstep/tensor/named_tensors.h"

namespace lockstep::parallel {

class Reducer final : public GradientOwner {
 public:
  // Ranks agree in `own`. At the end of a pass they meet in `given`, where another call of a rank
  // is a mismatch. `given` is given up with `own` when a rank is waited for in vain.
  struct Groups {
    ProcessGroup own;
    ProcessGroup given;
  };

  // Collective. `parameters` require gradients and are on one device; `sink` is made for them.
  // `features`, which may change, outlive this.
  // Errors: unsupported, with their names, if another reducer has some of the parameters and a
  // feature of either excludes that.
  Reducer(NamedTensors parameters, std::unique_ptr<GradientSink> sink, Groups groups,
          const DistributedDataParallelOptions& options, const Features& features);
  Reducer(const Reducer&) = delete;
  Reducer& operator=(const Reducer&) = delete;

  // Collective, before the first pass: gradients go to `sink` from now on, and ranks agree in
  // `group`.
  void set_sink(std::unique_ptr<GradientSink> sink, const ProcessGroup& group);

  // Before a forward() whose gradients matter. `synchronize`: the backward() passes from now on are
  // averaged; otherwise gradients accumulate on this rank alone. `change` describes a change of
  // this rank's module after which it cannot be averaged; empty without one. The next averaged pass
  // is then an Error(misuse) on all ranks. Collective once, after the first pass: buckets are
  // rebuilt in the order in which rank 0's gradients came. backward() throws what a collective
  // throws, and what DistributedDataParallel says. Any other exception in the midst of it reaches
  // all ranks, which drop the pass and may go on.
  void prepare(bool synchronize, std::string change = {});

  // A backward pass begins when it comes to this tensor: one that nests others is then one pass.
  void watch(const at::Tensor& output);

  // Adds to what gradients are divided by, with GradientMean::over_samples.
  void count_samples(double samples);

  // While set, every pass is announced to ranks that have no input left; null ends it.
  void set_join(Join* join);

  // Takes part in the others' pass with no gradient at all: `.grad` is undefined afterwards.
  void shadow_pass();

  // Forgets passes that were not synchronised, and samples, since the last pass that was.
  void forget_window();

  // Whether a pass was averaged.
  bool has_passed() const { return intake_.has_passed(); }
  bool has_others() const { return hooks_.has_others(); }
  bool allows_others() const override { return features_.allow_common_parameters(); }

  PassAgreement& agreement() { return agreement_; }
  const GradientSink& sink() const { return intake_.sink(); }
  const BucketAssignment& assignment() const { return intake_.assignment(); }
  const NamedTensors& parameters() const { return parameters_; }
  BackwardTimes times() const;

 private:
  void on_gradient(std::size_t index, const at::Tensor& incoming) override;

  // `device`: where the pass has begun.
  void begin_pass(c10::Device device, bool watched);
  void finish_pass(BackwardPass& pass);
  void end_pass(const BackwardPass& pass);

  void forget_pass_cut_short();
  void announce();
  ParameterUse use_of(std::size_t index) const;
  bool is_anothers_pass() const;
  PassReports exchange_reports(std::string_view exception = {});
  bool may_finish(const PassReports& reports);
  double factor_of(const PassReports& reports) const;

  const DistributedDataParallelOptions options_;
  const Features& features_;
  const NamedTensors parameters_;
  Groups groups_;
  PassAgreement agreement_;
  GradientIntake intake_;
  Join* join_ = nullptr;

  // Since the last synchronised pass.
  struct Window {
    bool synchronize = true;
    double samples = 0;
    std::vector<bool> touched;  // Gradients that have come.
    std::string change;         // Of the module, as prepare() got it.
  } window_;

  PassUnderWay pass_;
  std::optional<GraphTaskResult> unreported_;  // On a device, until all ranks know of the pass.
  std::chrono::nanoseconds longest_pass_{};    // So far, also those that an exception cut short.
  std::chrono::nanoseconds report_time_{};
  BackwardClock clock_;
  const std::shared_ptr<const bool> alive_ = std::make_shared<const bool>(true);
  ParameterHooks hooks_;  // Last: while the other members go, no gradient comes.
};

}  // namespace lockstep::parallel

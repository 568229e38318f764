// Follows the backward passes of a module, and averages each together with the other ranks.
// docs/internals/gradients.md describes the steps.
//
// A hook on each parameter's gradient accumulator passes the gradient to a GradientSink. At the end
// of the pass Reducer agrees with the other ranks on whether the pass counts. It then knows the
// parameters without a gradient: neither forward()'s result nor the number of forward() calls
// matters. If several reducers have a parameter, the active one averages its gradient
// (GradientHook), and the others ignore it.
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
  // Ranks agree in `own`. At the end of a pass they call a collective in `given`, where another
  // call of a rank is a mismatch. If a rank does not arrive, both are aborted.
  struct Groups {
    ProcessGroup own;
    ProcessGroup given;
  };

  // Collective. `parameters` require gradients and are on one device; `sink` is made for them.
  // `features` may change and outlives this object.
  // Errors: unsupported, with their names, if another reducer has some of the parameters and a
  // feature of either excludes that.
  Reducer(NamedTensors parameters, std::unique_ptr<GradientSink> sink, Groups groups,
          const DistributedDataParallelOptions& options, const Features& features);
  Reducer(const Reducer&) = delete;
  Reducer& operator=(const Reducer&) = delete;

  // Collective, before the first pass: replaces the sink, and the group in which ranks agree.
  void set_sink(std::unique_ptr<GradientSink> sink, const ProcessGroup& group);

  // Call it before a forward() with gradients. `synchronize`: later backward() passes are averaged;
  // otherwise gradients accumulate on this rank only. `change` describes a change of this rank's
  // module that prevents averaging, or is empty. The next averaged pass then throws misuse on all
  // ranks. If that pass reaches no known parameter here, other ranks may not average it. Their next
  // call in the given group then throws a mismatch with `change` on all ranks.
  // Collective once, after the first pass, which orders buckets by the arrival of rank 0's
  // gradients.
  // Errors of backward(): those of collectives and of DistributedDataParallel. Any other exception
  // in it reaches all ranks, which drop the pass and may continue.
  void prepare(bool synchronize, std::string change = {});

  // Makes a backward pass begin when it reaches this tensor: a pass with nested ones then counts as
  // one.
  void watch(const at::Tensor& output);

  // Adds to the divisor of gradients, with GradientMean::over_samples.
  void count_samples(double samples);

  // While set, every pass is announced to ranks that have joined; null ends this.
  void set_join(Join* join);

  // Takes part in the others' pass without gradients: `.grad` is undefined afterwards.
  void shadow_pass();

  // Drops passes that were not synchronised, and samples, since the last synchronised pass.
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

  // `device`: where the pass starts.
  void begin_pass(c10::Device device, bool watched);
  void finish_pass(BackwardPass& pass);
  void end_pass(const BackwardPass& pass);

  void forget_pass_cut_short();
  void announce(const std::string& change);
  ParameterUse use_of(std::size_t index) const;
  bool belongs_to_another_pass() const;
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
    std::vector<bool> touched;  // Gradients that have arrived.
    std::string change;         // From prepare().
  } window_;

  PassUnderWay pass_;
  std::optional<GraphTaskResult> unreported_;  // On a device, until all ranks have the report.
  std::chrono::nanoseconds longest_pass_{};    // So far, including those ended by an exception.
  std::chrono::nanoseconds report_time_{};
  BackwardClock clock_;
  const std::shared_ptr<const bool> alive_ = std::make_shared<const bool>(true);
  ParameterHooks hooks_;  // Last: no gradient arrives while other members are destroyed.
};

}  // namespace lockstep::parallel

// Follows the backward passes of a module, and averages each together with the other ranks.
// docs/internals/gradients.md describes the steps.
//
// Thread safety: one call at a time, as backward() itself.

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
  // Errors: unsupported, with the names, if another reducer has some of the parameters and a
  // feature of either excludes that.
  Reducer(NamedTensors parameters, std::unique_ptr<GradientSink> sink, Groups groups,
          const DistributedDataParallelOptions& options, const Features& features);
  Reducer(const Reducer&) = delete;
  Reducer& operator=(const Reducer&) = delete;

  // Collective, before the first pass. `group`: where ranks agree.
  void set_sink(std::unique_ptr<GradientSink> sink, const ProcessGroup& group);

  // Call it before a forward() with gradients. `synchronize`: later passes are averaged. `change`:
  // a change of this rank's module that prevents averaging, or empty. The next averaged pass then
  // throws misuse on all ranks. If it reaches no known parameter here, the other ranks' next call
  // in the given group throws a mismatch with `change` on all ranks.
  // Collective once, after the first pass, to order buckets by the arrival of rank 0's gradients.
  // Errors of backward(): those of collectives and of DistributedDataParallel. Any other exception
  // reaches all ranks, which drop the pass and may continue.
  void prepare(bool synchronize, std::string change = {});

  // Lets a pass begin when it reaches this tensor, so that a pass with nested ones is one.
  void watch(const at::Tensor& output);

  void count_samples(double samples);

  // While set, every pass is announced to joined ranks.
  void set_join(Join* join);

  // Takes part in the others' pass without gradients: `.grad` is undefined afterwards.
  void shadow_pass();

  // Drops unsynchronised passes and samples since the last synchronised pass.
  void forget_window();

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

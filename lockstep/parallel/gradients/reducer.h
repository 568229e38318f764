// Follows a module's backward passes, and averages each over all ranks
// (docs/internals/gradients.md).
//
// Thread safety: one call at a time.

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
  // Ranks agree in `own`. A pass ends with a collective in `given`. Another call of a rank
  // instead is a mismatch. If a rank does not arrive, both groups are aborted.
  struct Groups {
    ProcessGroup own;
    ProcessGroup given;
  };

  // Collective. `parameters` require gradients and are on one device. `features` may change and
  // outlives this object.
  // Errors: unsupported, with their names, for parameters of another reducer if a feature of either
  // excludes that.
  Reducer(NamedTensors parameters, std::unique_ptr<GradientSink> sink, Groups groups,
          const DistributedDataParallelOptions& options, const Features& features);
  Reducer(const Reducer&) = delete;
  Reducer& operator=(const Reducer&) = delete;

  // Collective, before the first pass. `group`: Groups::own.
  void set_sink(std::unique_ptr<GradientSink> sink, const ProcessGroup& group);

  // Before a forward() with gradients. `synchronize`: later passes are averaged. `change`: a change
  // of this rank's module that prevents averaging, or empty. The next averaged pass then throws
  // misuse on all ranks. If that pass reaches no known parameter here, this rank calls a barrier in
  // Groups::given, labelled with `change`. Another call of a rank instead is a mismatch on all
  // ranks. Collective in the call that rebuilds buckets.
  void prepare(bool synchronize, std::string change = {});

  // A backward() that reaches this tensor begins a pass, which includes nested backward() calls.
  void watch(const at::Tensor& output);

  void count_samples(double samples);
  double samples() const { return window_.samples; }  // Since the last synchronised pass.

  // While set, passes are announced to joined ranks.
  void set_join(Join* join);

  // Takes part in the others' pass without gradients; `.grad` becomes undefined.
  void shadow_pass();

  // Drops passes and samples since the last synchronised pass.
  void forget_window();

  bool has_passed() const { return intake_.has_passed(); }
  bool has_others() const { return hooks_.has_others(); }
  bool allows_others() const override { return features_.allow_common_parameters(); }

  PassAgreement& agreement() { return agreement_; }
  const GradientSink& sink() const { return intake_.sink(); }
  const BucketAssignment& assignment() const { return intake_.plan().assignment(); }
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
  std::optional<GraphTaskResult> unreported_;  // On a device, until reports were exchanged.
  std::chrono::nanoseconds longest_pass_{};    // Including those ended by an exception.
  std::chrono::nanoseconds report_time_{};
  BackwardClock clock_;
  const std::shared_ptr<const bool> alive_ = std::make_shared<const bool>(true);
  ParameterHooks hooks_;  // Last: no gradient arrives during destruction.
};

}  // namespace lockstep::parallel

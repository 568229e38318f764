// Follows the backward passes of a module: which gradients came, and what all ranks make of them.
//
// A hook on each parameter's gradient accumulator hands the gradient to a GradientSink, which
// averages it. Reducer keeps account: it tells the sink which buckets are complete, and at the end
// of the pass it agrees with the other ranks on whether the result counts.
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
#include <string_view>
#include <vector>

#include "lockstep/comm/process_group.h"
#include "lockstep/parallel/backward_pass.h"
#include "lockstep/parallel/backward_report.h"
#include "lockstep/parallel/bucket_order.h"
#include "lockstep/parallel/bucket_progress.h"
#include "lockstep/parallel/distributed_data_parallel_options.h"
#include "lockstep/parallel/gradient_counts.h"
#include "lockstep/parallel/gradient_sink.h"
#include "lockstep/parallel/join.h"
#include "lockstep/parallel/parameter_hooks.h"
#include "lockstep/parallel/pass_agreement.h"
#include "lockstep/parallel/pass_report.h"
#include "lockstep/tensor/named_tensors.h"

namespace lockstep {

class Reducer final : public GradientOwner {
 public:
  // Ranks agree in `own`; `given` is given up with it when a rank is waited for in vain.
  struct Groups {
    ProcessGroup own;
    ProcessGroup given;
  };

  // Collective. `parameters` require gradients and are on one device; `sink` is made for them.
  Reducer(NamedTensors parameters, std::unique_ptr<GradientSink> sink, Groups groups,
          const DistributedDataParallelOptions& options);
  Reducer(const Reducer&) = delete;
  Reducer& operator=(const Reducer&) = delete;

  // Collective, before the first pass: gradients go to `sink` from now on, and ranks agree in
  // `group`.
  void set_sink(std::unique_ptr<GradientSink> sink, const ProcessGroup& group);

  // Before a forward() whose gradients matter. Says whether the backward() passes from now on are
  // averaged; otherwise gradients accumulate on this rank alone. Collective once, after the first
  // pass: buckets are made anew, in the order in which rank 0's gradients came.
  // backward() throws what a collective throws, and what DistributedDataParallel says. Any other
  // exception in the midst of it reaches all ranks, which drop the pass and may go on.
  void prepare(bool synchronize);

  // A backward pass begins when it comes to this tensor: one that nests others is then one pass.
  void watch(const at::Tensor& output);

  // Adds to what gradients are divided by, with GradientMean::over_samples.
  void count_samples(double samples) { samples_ += samples; }

  // While set, every pass is announced to ranks that have no input left; null ends it.
  // Errors: unsupported when another reducer has some of the parameters.
  void set_join(Join* join);

  // Takes part in the others' pass with no gradient at all: `.grad` is undefined afterwards.
  void shadow_pass();

  // Forgets passes that were not synchronised, and samples, since the last pass that was.
  void forget_window();

  // Whether a pass was averaged.
  bool has_passed() const { return has_passed_; }
  bool has_others() const { return hooks_.has_others(); }
  bool allows_others() const override;

  PassAgreement& agreement() { return agreement_; }
  const GradientSink& sink() const { return *sink_; }
  const BucketAssignment& assignment() const { return order_.assignment(); }
  const NamedTensors& parameters() const { return parameters_; }
  BackwardTimes times() const;

 private:
  void on_gradient(std::size_t index, const at::Tensor& incoming) override;
  void rebuild_buckets();

  void begin_pass(bool watched);
  void reset_pass();
  void take(std::size_t index, const at::Tensor& incoming);
  void note(std::size_t index, Taken taken);
  void finish_bucket();
  void finish_buckets();
  void finish_pass(BackwardPass& pass);
  void finish_sink(const PassReports& reports, double factor);
  void end_pass(const BackwardPass& pass);

  void announce();
  ParameterUse use_of(std::size_t index) const;
  bool is_anothers_pass() const;
  PassReports exchange_reports(std::string_view exception = {});
  bool may_finish(const PassReports& reports);
  double factor_of(const PassReports& reports) const;
  void drop_gradients() noexcept;

  const DistributedDataParallelOptions options_;
  const NamedTensors parameters_;
  const c10::Device device_;  // On which they were when this was made.
  Groups groups_;
  PassAgreement agreement_;
  BucketOrder order_;
  std::unique_ptr<GradientSink> sink_;
  Join* join_ = nullptr;
  bool has_passed_ = false;

  // Since the last synchronised pass.
  bool synchronize_ = true;
  double samples_ = 0;
  std::vector<bool> touched_;  // Which gradients have come.

  // The pass under way, or the last one.
  PassUnderWay pass_;
  GradientCounts counts_;
  BucketProgress progress_;
  PassReport report_;

  // So far, also those that an exception cut short.
  std::chrono::nanoseconds longest_pass_{};
  std::chrono::nanoseconds copy_time_{};
  std::chrono::nanoseconds wait_time_{};

  const std::shared_ptr<const bool> alive_ = std::make_shared<const bool>(true);
  ParameterHooks hooks_;  // Last: while others go, no gradient comes.
};

}  // namespace lockstep

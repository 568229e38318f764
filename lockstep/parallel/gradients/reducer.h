// Averages gradients over all ranks by the end of backward(): what DistributedDataParallel is
// made of beside its forward().
//
// A hook on each parameter's gradient accumulator hands the gradient to its bucket. Buckets are
// then averaged: one after the other on another thread while backward() goes on, where there is a
// core for it, or all at once by the last act of backward(), which is faster where there is none.
//
// Which parameters a pass has left out is known at its end, without a search of the graph: what
// forward() returned does not matter, and neither does how many forward() calls there were.
//
// On a CUDA device all of it is enqueued: a pass waits for the device once, to learn whether its
// gradients are finite.
//
// Gradients of shared parameters stay this rank's own here: SharedOptimizer averages them, each
// rank what it steps. All else holds for them too.
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
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include "lockstep/comm/process_group.h"
#include "lockstep/parallel/gradients/backward_report.h"
#include "lockstep/parallel/gradients/bucket_reduction.h"
#include "lockstep/parallel/gradients/distributed_data_parallel_options.h"
#include "lockstep/parallel/gradients/finite_check.h"
#include "lockstep/parallel/gradients/gradient_buckets.h"
#include "lockstep/parallel/gradients/gradient_hook.h"
#include "lockstep/parallel/gradients/gradient_pool.h"
#include "lockstep/parallel/gradients/graph_task.h"
#include "lockstep/parallel/gradients/join.h"
#include "lockstep/parallel/gradients/owned_gradients.h"
#include "lockstep/parallel/gradients/pass_report.h"
#include "lockstep/tensor/named_tensors.h"

namespace lockstep {

class Reducer final : public GradientOwner {
 public:
  // Collective. Of `parameters`, those that require gradients are reduced; they are on one device.
  Reducer(NamedTensors parameters, const ProcessGroup& group,
          const DistributedDataParallelOptions& options);
  ~Reducer();
  Reducer(const Reducer&) = delete;
  Reducer& operator=(const Reducer&) = delete;

  // Before a forward() whose gradients matter. Says whether the backward() passes from now on are
  // averaged; otherwise gradients accumulate on this rank alone. Collective once, after the first
  // pass: buckets are made anew, in the order in which rank 0's gradients came.
  // backward() throws what a collective throws, and what DistributedDataParallel says. Any other
  // exception in the midst of it reaches all ranks, which drop the pass and may go on.
  void prepare(bool synchronize);

  // A backward pass begins when it comes to this tensor: one that nests others is then one pass.
  void watch(const at::Tensor& output);

  // Errors: misuse after the first pass, or when there is one already.
  void set_hook(CommunicationHook hook);

  // From now on gradients are averaged on one rank each, `owners` by parameter, and undefined on
  // the others. Collective. Errors: as set_hook(); unsupported when there is a hook.
  void set_owners(std::vector<int> owners);

  // Adds to what gradients are divided by, with GradientMean::over_samples.
  void count_samples(double samples);

  // While set, every pass is announced to ranks that have no input left; null ends it.
  // Errors: unsupported with set_owners().
  void set_join(Join* join);

  // Of a pass whose gradients were kept apart, with the option `deterministic`: tells all ranks of
  // it and returns what they said, or nothing when all of them skip it. Then, and with an Error,
  // which is as backward()'s, all gradients are undefined.
  // `exception` is the text of what has ended the pass here, if anything has.
  std::optional<PassReports> agree(PassReport report, const std::vector<ParameterUse>& uses,
                                   std::string_view exception = {});

  // A pass has ended in `error` here, which is null for an unknown one. `take_part`, which gets
  // its text, does what the others wait for, so that they learn of it; all gradients are dropped.
  // Blocking: until the others have come to the end of the pass. The groups are given up, with that
  // text, after three times the longest pass so far, and not before 5 s.
  using TakePart = std::function<void(std::string_view text)>;
  void drop_with_the_others(const std::exception_ptr& error, const TakePart& take_part) noexcept;
  void drop();
  void require_takeable(const std::string& name, at::Tensor& gradient) const;

  // Takes part in the others' pass with no gradient at all: `.grad` is undefined afterwards.
  void shadow_pass();

  // Of passes that were not synchronised and samples that were counted since the last one that was.
  void forget_window();

  const std::optional<NonFiniteGradient>& non_finite() const { return non_finite_; }
  const BucketAssignment& assignment() const { return assignment_; }
  const NamedTensors& parameters() const { return parameters_; }
  BackwardTimes times() const;

  // In which gradients may lie; none where there is nothing to sum.
  std::vector<RegisteredMemory> gradient_memory() const {
    if (buckets_ != nullptr) return buckets_->memory();
    return pool_ != nullptr ? std::vector{pool_->memory()} : std::vector<RegisteredMemory>{};
  }

  // Whether gradients are reduced during backward().
  bool is_overlapped() const { return overlapped_ || owned_ != nullptr; }

  // How many passes there were, also when this is gone.
  std::shared_ptr<const std::int64_t> passes() const { return pass_count_; }

  bool shards_gradients() const { return owned_ != nullptr; }

 private:
  // Lives as long as LibTorch's graph task: until the pass is complete or an exception ends it.
  class Pass {
   public:
    explicit Pass(Reducer& reducer);
    ~Pass();
    Pass(const Pass&) = delete;
    Pass& operator=(const Pass&) = delete;

    bool has_announced = false;  // To ranks without input left.
    bool has_reported = false;   // Otherwise the others wait, to whom an exception is reported.

   private:
    const GradientPool::Arming arming_;
    const GraphTaskResult result_;
    Reducer& reducer_;
    const std::weak_ptr<const bool> alive_;
    const bool is_on_device_;
    const Clock::time_point begin_ = Clock::now();
  };

  std::unique_ptr<GradientHook> hook_on(std::size_t index);
  void renew_hooks();
  void require_allowed() const;
  bool has_others() const;
  bool is_ours(std::size_t index) const { return hooks_[index]->is_in_charge(); }
  bool reaches_parameters() const;
  bool is_anothers_pass() const;
  void on_gradient(std::size_t index, const at::Tensor& incoming) override;
  bool allows_others() const override;
  void begin_pass(bool watched);
  void finish_pass(Pass& pass);
  void announce();
  void forget_pass_cut_short();
  void reset_pass();

  void take(std::size_t index, const at::Tensor& incoming);
  void adopt_left_out(const PassReports& reports);
  void take_owned(std::size_t index, const at::Tensor& incoming);
  void note_finite(std::size_t index, bool finite);
  void note_mean(std::size_t index);
  void finish_bucket();
  bool take_left_out(std::size_t index);
  void finish_buckets();
  PassReports exchange_reports(std::string_view exception = {});
  bool may_go_on(const PassReports& reports);
  bool may_average(const PassReports& reports);
  void drop_gradients();
  void check_kept();
  void enqueue_check(std::size_t bucket);
  void note_device_check();
  bool is_on_device() const { return !device_.is_cpu(); }
  void divide(const PassReports& reports) const;
  void learn();

  bool checks_finite() const { return options_.non_finite != NonFinite::ignore; }
  bool overlaps() const {
    return overlapped_ && buckets_ != nullptr && join_ == nullptr && !recording_;
  }
  bool starts_early() const { return overlaps() || (owned_ != nullptr && !recording_); }
  ParameterUse use_of(std::size_t index) const;
  const std::shared_ptr<GradientPool>& pool() const {
    return buckets_ != nullptr ? buckets_->pool() : pool_;
  }
  void make_buckets(BucketAssignment assignment);
  void rebuild_buckets();

  const DistributedDataParallelOptions options_;
  const NamedTensors parameters_;
  const c10::Device device_;  // On which they were when this was made.
  const BucketLimits limits_;
  const bool overlapped_;
  ProcessGroup group_;  // With overlap one of its own: its calls come from two threads.
  const ProcessGroup given_;

  BucketAssignment assignment_;
  std::unique_ptr<GradientBuckets> buckets_;  // None where there is nothing to sum in backward().
  std::shared_ptr<GradientPool> pool_;        // For large gradients that lie in no bucket's pool.
  std::unique_ptr<OwnedGradients> owned_;     // In place of the buckets.
  BucketReduction reduction_;
  std::vector<std::unique_ptr<GradientHook>> hooks_;
  const std::shared_ptr<const bool> alive_ = std::make_shared<const bool>(true);
  Join* join_ = nullptr;

  // Since the last synchronised pass.
  bool synchronize_ = true;
  double samples_ = 0;
  std::vector<bool> touched_;  // Which gradients have come.

  // The pass under way, or the last one.
  int graph_task_ = -1;
  bool watched_ = false;  // It began at an output, so nested graph tasks are a part of it.
  std::weak_ptr<Pass> pass_;
  std::optional<GraphTaskResult> unreported_;  // On a device, until all ranks know of the pass.
  std::vector<int> remaining_;                 // How often each gradient has still to come.
  std::vector<bool> taken_;                    // Whether it is in its bucket as it came.
  std::size_t next_bucket_ = 0;                // The next one to start,
  std::vector<std::size_t> pending_;  // and of each one, how many gradients are not in it yet.
  PassReport report_;
  // Of what is on a device; the reduction's thread enqueues it, if there is one.
  FiniteCheck finite_check_;
  std::optional<NonFiniteGradient> non_finite_;

  // So far, also those that an exception cut short.
  const std::shared_ptr<std::int64_t> pass_count_ = std::make_shared<std::int64_t>(0);
  std::int64_t& passes_ = *pass_count_;

  // What the first passes teach.
  bool recording_;                    // How often each gradient comes, of a static graph.
  std::vector<int> expected_;         // How often each gradient comes in a pass.
  std::vector<std::size_t> arrival_;  // In which order they came,
  bool rebuild_due_ = false;          // which is known
  bool rebuilt_;                      // and has been made use of, or never will.
  bool has_passed_ = false;

  std::chrono::nanoseconds longest_pass_{};
  std::chrono::nanoseconds copy_time_{};
  std::chrono::nanoseconds wait_time_{};
};

}  // namespace lockstep

// Reports that ranks exchange once in each backward pass, and the decision that all ranks draw from
// them: the pass is averaged, skipped or an Error that names its cause on all ranks.
//
// Thread safety: none.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/comm/process_group.h"
#include "lockstep/parallel/gradients/distributed_data_parallel_options.h"
#include "lockstep/parallel/gradients/gradient_noise.h"
#include "lockstep/parallel/gradients/replica_writes.h"
#include "lockstep/tensor/named_tensors.h"

namespace lockstep::parallel {

enum class ParameterUse : std::uint8_t {
  used,       // Has a gradient to average.
  unused,     // Has none, and need not.
  missing,    // Has none, but should have one.
  elsewhere,  // Is another DistributedDataParallel's in this pass, on all ranks.
};

// Travels as it lies in memory.
struct PassReport {
  static constexpr std::int64_t none = -1;

  std::int64_t pass = 0;           // Its number: all ranks' are the same.
  double samples = 0;              // Counted since the last synchronised pass.
  std::int64_t non_finite = none;  // The first parameter with such a gradient.
  std::int64_t repeated = none;    // A parameter whose gradient came too often.
  std::int64_t kept_mean = none;   // A parameter whose gradient contains an earlier pass's mean.
  std::int64_t threw = 0;    // Bytes of the exception's text that has ended the pass; 0 for none.
  std::int64_t changed = 0;  // 1 if that text describes a change of the module.

  // For a NoiseScale: the sum of squares of this rank's own gradients since the last synchronised
  // pass, NaN if `.grad` contains others, too, and how many passes made them; none without a
  // NoiseScale.
  double squares = 0;
  std::int64_t passes = none;

  ReplicaWrites writes = {};  // Zero where ranks have no replicas of their own.
};

// All ranks' reports.
class PassReports {
 public:
  // Collective, unless the group has one rank. `uses` has one entry for each parameter. `exception`
  // is the text of the exception that has ended the pass here; empty without one.
  PassReports(PassReport report, const std::vector<ParameterUse>& uses, const ProcessGroup& group,
              std::string_view exception = {});

  double samples() const;
  std::int64_t last_pass() const;
  bool used_by_any(std::size_t parameter) const;

  // All ranks' gradients before they were averaged: the sum of squares, and the number of passes.
  struct OwnGradients {
    double squares = 0;
    std::int64_t passes = 0;
  };
  OwnGradients own_gradients() const;

  std::optional<NonFiniteGradient> non_finite(const NamedTensors& parameters) const;

  // Errors: aborted, with the rank and its text, when an exception has ended the pass on one.
  void require_no_exception() const;

  // Errors: misuse when a rank's module was changed: how, and on which rank.
  void require_same_module() const;

  // Errors: mismatch when ranks average different passes with each other.
  void require_same_pass() const;

  // Errors: mismatch when ranks have made other writes to their replicas, which now differ.
  void require_same_writes() const;

  // Errors: mismatch when only some ranks have a NoiseScale.
  void require_same_measures() const;

  // Errors: misuse, with the parameters' names, when a rank misses a gradient, had one repeated or
  // added one to a mean that it alone has.
  void require_complete(const NamedTensors& parameters) const;

 private:
  void exchange_texts(std::string_view own, const ProcessGroup& group);
  std::string text_of(int rank) const;
  PassReport report_of(int rank) const;
  ParameterUse use(int rank, std::size_t parameter) const;
  std::string missing_on(int rank, const NamedTensors& parameters) const;

  const int ranks_;
  const std::size_t row_bytes_;
  std::vector<std::uint8_t> rows_;  // For each rank: its report, then its uses.
  std::vector<char> texts_;         // For each rank: its exception's text. Empty without one.
};

// Thrown on all ranks alike, as all read the same reports.
class AgreedError : public Error {
 public:
  explicit AgreedError(const Error& error) : Error(error) {}
};

bool is_agreed(const std::exception_ptr& error);

// Decides with all ranks whether a backward pass is averaged, skipped or an Error.
class PassAgreement {
 public:
  explicit PassAgreement(const DistributedDataParallelOptions& options) : options_(options) {}

  // Collective: tells all ranks of this rank's pass, which becomes the next one. `exception` is as
  // in PassReports.
  PassReports exchange(PassReport report, const std::vector<ParameterUse>& uses,
                       const ProcessGroup& group, std::string_view exception = {});

  // Whether the pass is averaged; otherwise all ranks skip it, and rank 0 logs why.
  // Errors, all of them AgreedError: as backward()'s.
  bool accepts(const PassReports& reports, const NamedTensors& parameters,
               const ProcessGroup& group);

  // Counts a pass that was cut short without a word to the other ranks, which may go on.
  void count_lost_pass() { ++*passes_; }

  // Measures for a NoiseScale, as long as that lives; null otherwise.
  void measure(const std::shared_ptr<GradientNoise>& noise) { noise_ = noise; }
  std::shared_ptr<GradientNoise> noise() const { return noise_.lock(); }

  // Compares the ranks' writes to `parameters`, which outlive this, unless they are ignored.
  void compare_writes(const NamedTensors& parameters) { writes_.emplace(parameters); }
  void ignore_writes(bool ignored) { writes_are_ignored_ = ignored; }

  // From now on, weights must be equal whatever the ranks have written: owners step them.
  void compare_weights() { weights_are_owned_ = true; }

  // Samples of all ranks in the last pass.
  double samples() const { return samples_; }

  // Number of passes so far, also when this is gone.
  std::shared_ptr<const std::int64_t> passes() const { return passes_; }

  // The first such gradient of the last pass, on any rank.
  const std::optional<NonFiniteGradient>& non_finite() const { return non_finite_; }

 private:
  bool judge(const PassReports& reports, const NamedTensors& parameters, int rank);

  const DistributedDataParallelOptions options_;
  const std::shared_ptr<std::int64_t> passes_ = std::make_shared<std::int64_t>(0);
  std::optional<NonFiniteGradient> non_finite_;
  std::optional<WriteCounts> writes_;
  bool writes_are_ignored_ = false;
  bool weights_are_owned_ = false;
  double samples_ = 0;
  std::weak_ptr<GradientNoise> noise_;
};

}  // namespace lockstep::parallel

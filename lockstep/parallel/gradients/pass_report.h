// Reports that ranks exchange in each backward pass, and their common decision.
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
  used,
  unused,     // Needs no gradient.
  missing,    // Needs one.
  elsewhere,  // Another DistributedDataParallel averages it. An Error if any rank has `used`.
};

// Sent as its memory image.
struct PassReport {
  static constexpr std::int64_t none = -1;

  std::int64_t pass = 0;
  double samples = 0;
  std::int64_t non_finite = none;  // The first parameter.
  std::int64_t repeated = none;    // Its gradient came too often.
  std::int64_t kept_mean = none;   // Its gradient includes an earlier mean.
  std::int64_t threw = 0;          // Bytes of the exception's text, or 0.
  std::int64_t changed = 0;        // 1 if the text is of a changed module.

  // GradientNoise::squares() and passes(). Without a NoiseScale, `passes` is `none`.
  double squares = 0;
  std::int64_t passes = none;

  ReplicaWrites writes = {};  // Zero without own replicas.
};

class PassReports {
 public:
  // Collective, unless the group has one rank. `uses`: by parameter. `exception`: text of the
  // exception, or the module's change, that ended this rank's pass; or empty.
  PassReports(PassReport report, const std::vector<ParameterUse>& uses, const ProcessGroup& group,
              std::string_view exception = {});

  double samples() const;
  std::int64_t last_pass() const;
  bool used_by_any(std::size_t parameter) const;

  // Sums over all ranks.
  struct OwnGradients {
    double squares = 0;
    std::int64_t passes = 0;
  };
  OwnGradients own_gradients() const;

  std::optional<NonFiniteGradient> non_finite(const NamedTensors& parameters) const;

  // Errors: aborted for an exception on any rank.
  void require_no_exception() const;

  // Errors: misuse.
  void require_same_module() const;

  // Errors: mismatch.
  void require_same_pass() const;

  // Errors: mismatch if a rank's writes and weights both differ from rank 0's.
  void require_same_writes() const;

  // Errors: mismatch if only some ranks have a NoiseScale.
  void require_same_measures() const;

  // Errors: misuse, naming parameters, if a rank misses a gradient, got one repeatedly, or added
  // one to an earlier mean that no other rank has.
  void require_complete(const NamedTensors& parameters) const;

 private:
  void exchange_texts(std::string_view own, const ProcessGroup& group);
  std::string text_of(int rank) const;
  PassReport report_of(int rank) const;
  ParameterUse use(int rank, std::size_t parameter) const;
  std::string missing_on(int rank, const NamedTensors& parameters) const;

  const int ranks_;
  const std::size_t row_bytes_;
  std::vector<std::uint8_t> rows_;  // By rank: its report, then its uses.
  std::vector<char> texts_;         // By rank. Empty without an exception.
};

// Thrown on all ranks.
class AgreedError : public Error {
 public:
  explicit AgreedError(const Error& error) : Error(error) {}
};

bool is_agreed(const std::exception_ptr& error);

// Decides with all ranks whether a pass is averaged, skipped or an Error.
class PassAgreement {
 public:
  explicit PassAgreement(const DistributedDataParallelOptions& options) : options_(options) {}

  // Collective. `exception`: as in PassReports.
  PassReports exchange(PassReport report, const std::vector<ParameterUse>& uses,
                       const ProcessGroup& group, std::string_view exception = {});

  // Whether the pass is averaged, not skipped. Errors: backward()'s, as AgreedError.
  bool accepts(const PassReports& reports, const NamedTensors& parameters,
               const ProcessGroup& group);

  // Counts a pass without a report, which other ranks may have completed.
  void count_lost_pass() { ++*passes_; }

  // Null without a NoiseScale.
  void measure(const std::shared_ptr<GradientNoise>& noise) { noise_ = noise; }
  std::shared_ptr<GradientNoise> noise() const { return noise_.lock(); }

  // `parameters` outlive this object.
  void compare_writes(const NamedTensors& parameters) { writes_.emplace(parameters); }
  void ignore_writes(bool ignored) { writes_are_ignored_ = ignored; }

  // From now on weights must be equal, whatever ranks wrote.
  void compare_weights() { weights_are_owned_ = true; }

  // In the last pass, of all ranks.
  double samples() const { return samples_; }

  // Outlives this object.
  std::shared_ptr<const std::int64_t> passes() const { return passes_; }

  // The lowest rank's, in the last pass; empty with NonFinite::ignore.
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

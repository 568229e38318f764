// Decides with all ranks whether a backward pass is averaged, skipped or an Error.
//
// Thread safety: none.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <exception>
#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/comm/process_group.h"
#include "lockstep/parallel/gradients/distributed_data_parallel_options.h"
#include "lockstep/parallel/gradients/pass_report.h"
#include "lockstep/tensor/named_tensors.h"

namespace lockstep {

// Thrown on all ranks alike, as all read the same reports.
class AgreedError : public Error {
 public:
  explicit AgreedError(const Error& error) : Error(error) {}
};

bool is_agreed(const std::exception_ptr& error);

class PassAgreement {
 public:
  explicit PassAgreement(const DistributedDataParallelOptions& options) : options_(options) {}

  // Collective: tells all ranks of this rank's pass, which becomes the next one. `exception` is the
  // text of what has ended the pass here, if anything has.
  PassReports exchange(PassReport report, const std::vector<ParameterUse>& uses,
                       const ProcessGroup& group, std::string_view exception = {});

  // Whether the pass is averaged; otherwise all ranks skip it, and rank 0 logs why.
  // Errors, all of them AgreedError: as backward()'s.
  bool accepts(const PassReports& reports, const NamedTensors& parameters,
               const ProcessGroup& group);

  // Counts a pass that was cut short without a word to the other ranks, which may go on.
  void count_lost_pass() { ++*passes_; }

  // Number of passes so far, also when this is gone.
  std::shared_ptr<const std::int64_t> passes() const { return passes_; }

  // The first such gradient of the last pass, on any rank.
  const std::optional<NonFiniteGradient>& non_finite() const { return non_finite_; }

 private:
  bool judge(const PassReports& reports, const NamedTensors& parameters, int rank);

  const DistributedDataParallelOptions options_;
  const std::shared_ptr<std::int64_t> passes_ = std::make_shared<std::int64_t>(0);
  std::optional<NonFiniteGradient> non_finite_;
};

}  // namespace lockstep

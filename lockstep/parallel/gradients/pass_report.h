// What ranks tell each other once in each backward pass: so that all of them take the same
// decision, and whoever made it necessary is named on all.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/comm/process_group.h"
#include "lockstep/parallel/gradients/backward_report.h"
#include "lockstep/tensor/named_tensors.h"

namespace lockstep {

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
  std::int64_t repeated = none;    // One whose gradient came more often than it should.
  std::int64_t kept_mean = none;  // One that an earlier pass's mean, which others lack, is part of.
  std::int64_t threw = 0;  // Bytes of the exception's text that has ended the pass; 0 for none.
};

// All ranks' reports.
class PassReports {
 public:
  // Collective, unless the group has one rank. `uses` has one entry for each parameter. `exception`
  // is the text of what has ended the pass here, and empty where nothing has.
  PassReports(PassReport report, const std::vector<ParameterUse>& uses, const ProcessGroup& group,
              std::string_view exception = {});

  double samples() const;
  std::int64_t last_pass() const;
  bool used_by_any(std::size_t parameter) const;
  std::optional<NonFiniteGradient> non_finite(const NamedTensors& parameters) const;

  // Errors: aborted, with the rank and its text, when an exception has ended the pass on one.
  void require_no_exception() const;

  // Errors: mismatch when ranks average different passes with each other.
  void require_same_pass() const;

  // Errors: misuse, with the parameters' names, when a rank misses a gradient, had one repeated or
  // added one to a mean that it alone has.
  void require_complete(const NamedTensors& parameters) const;

 private:
  void exchange_texts(std::string_view own, const ProcessGroup& group);
  PassReport report_of(int rank) const;
  ParameterUse use(int rank, std::size_t parameter) const;
  std::string missing_on(int rank, const NamedTensors& parameters) const;

  const int ranks_;
  const std::size_t row_bytes_;
  std::vector<std::uint8_t> rows_;  // Of each rank: its report, then its uses.
  std::vector<char> texts_;         // Of each rank: of its exception. Empty where there is none.
};

}  // namespace lockstep

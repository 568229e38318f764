// SPDX-License-Identifier: Apache-2.0
#include "lockstep/parallel/gradients/pass_report.h"

#include <algorithm>
#include <cstring>
#include <string>

#include "lockstep/base/error.h"
#include "lockstep/base/log.h"

namespace lockstep::parallel {
namespace {

constexpr std::size_t most_text = 1024;  // Bytes.

}  // namespace

PassReports::PassReports(PassReport report, const std::vector<ParameterUse>& uses,
                         const ProcessGroup& group, std::string_view exception)
    : ranks_(group.size()),
      row_bytes_(sizeof(PassReport) + uses.size()),
      rows_(static_cast<std::size_t>(ranks_) * row_bytes_) {
  report.threw = static_cast<std::int64_t>(std::min(exception.size(), most_text));
  std::uint8_t* own = rows_.data() + static_cast<std::size_t>(group.rank()) * row_bytes_;
  std::memcpy(own, &report, sizeof report);
  std::memcpy(own + sizeof report, uses.data(), uses.size());
  if (ranks_ > 1)
    group.all_gather({.data = own, .count = row_bytes_, .dtype = DType::uint8},
                     {.data = rows_.data(), .count = rows_.size(), .dtype = DType::uint8}, {},
                     {.label = "reports of a backward pass"});
  exchange_texts(exception, group);
}

// A second exchange, if reports announce a text.
void PassReports::exchange_texts(std::string_view own, const ProcessGroup& group) {
  bool any = false;
  for (int rank = 0; rank < ranks_; ++rank) any = any || report_of(rank).threw > 0;
  if (!any) return;
  texts_.resize(static_cast<std::size_t>(ranks_) * most_text);
  char* place = texts_.data() + static_cast<std::size_t>(group.rank()) * most_text;
  own.copy(place, most_text);
  if (ranks_ == 1) return;
  group.all_gather({.data = place, .count = most_text, .dtype = DType::uint8},
                   {.data = texts_.data(), .count = texts_.size(), .dtype = DType::uint8}, {},
                   {.label = "exceptions of a backward pass"});
}

std::string PassReports::text_of(int rank) const {
  const auto bytes = static_cast<std::size_t>(report_of(rank).threw);
  return bytes == 0 ? "" : std::string(&texts_[static_cast<std::size_t>(rank) * most_text], bytes);
}

void PassReports::require_no_exception() const {
  for (int rank = 0; rank < ranks_; ++rank) {
    const PassReport report = report_of(rank);
    if (report.threw == 0 || report.changed != 0) continue;
    throw Error(Fault::aborted, "rank " + std::to_string(rank) +
                                    ": backward() ended with an exception: " + text_of(rank) +
                                    ": all ranks have dropped this pass");
  }
}

void PassReports::require_same_module() const {
  for (int rank = 0; rank < ranks_; ++rank)
    require(report_of(rank).changed == 0,
            [&] { return "on rank " + std::to_string(rank) + ' ' + text_of(rank); });
}

void PassReports::require_same_writes() const {
  const ReplicaWrites first = report_of(0).writes;
  for (int rank = 1; rank < ranks_; ++rank) {
    const ReplicaWrites other = report_of(rank).writes;
    if (other.pattern == first.pattern || other.weights == first.weights) continue;
    throw Error(Fault::mismatch,
                "backward pass " + std::to_string(report_of(0).pass) + ": rank 0 and rank " +
                    std::to_string(rank) +
                    " have different weights. Since the last pass, rank 0 has made " +
                    std::to_string(first.count) + " writes to its parameters and rank " +
                    std::to_string(rank) + ' ' + std::to_string(other.count) +
                    ": the ranks are at different places of the program. An optimizer that calls "
                    "its closure several times, such as LBFGS, needs the closure of "
                    "average_loss(). With shard_gradients(), only the optimizer given there steps. "
                    "Load or change weights on all ranks alike, or within edit_parameters(). All "
                    "ranks have dropped this pass");
  }
}

double PassReports::samples() const {
  double sum = 0;
  for (int rank = 0; rank < ranks_; ++rank) sum += report_of(rank).samples;
  return sum;
}

std::int64_t PassReports::last_pass() const {
  std::int64_t last = 0;
  for (int rank = 0; rank < ranks_; ++rank) last = std::max(last, report_of(rank).pass);
  return last;
}

void PassReports::require_same_pass() const {
  const std::int64_t expected = report_of(0).pass;
  for (int rank = 1; rank < ranks_; ++rank) {
    const std::int64_t pass = report_of(rank).pass;
    if (pass == expected) continue;
    throw Error(
        Fault::mismatch,
        "rank 0 is in backward pass " + std::to_string(expected) + " and rank " +
            std::to_string(rank) + " in pass " + std::to_string(pass) +
            ": an exception has cut a pass of one of them short. All ranks have dropped this pass");
  }
}

PassReports::OwnGradients PassReports::own_gradients() const {
  OwnGradients all;
  for (int rank = 0; rank < ranks_; ++rank) {
    const PassReport report = report_of(rank);
    all.squares += report.squares;
    all.passes += report.passes;
  }
  return all;
}

void PassReports::require_same_measures() const {
  const auto measures = [this](int rank) { return report_of(rank).passes != PassReport::none; };
  for (int rank = 1; rank < ranks_; ++rank) {
    if (measures(rank) == measures(0)) continue;
    const int with = measures(0) ? 0 : rank;
    throw Error(Fault::mismatch, "rank " + std::to_string(with) + " has a NoiseScale and rank " +
                                     std::to_string(with == 0 ? rank : 0) +
                                     " has none: make one on every rank");
  }
}

bool PassReports::used_by_any(std::size_t parameter) const {
  for (int rank = 0; rank < ranks_; ++rank)
    if (use(rank, parameter) == ParameterUse::used) return true;
  return false;
}

std::optional<NonFiniteGradient> PassReports::non_finite(const NamedTensors& parameters) const {
  for (int rank = 0; rank < ranks_; ++rank) {
    const std::int64_t parameter = report_of(rank).non_finite;
    if (parameter != PassReport::none)
      return NonFiniteGradient{rank, parameters[static_cast<std::size_t>(parameter)].first};
  }
  return {};
}

void PassReports::require_complete(const NamedTensors& parameters) const {
  for (int rank = 0; rank < ranks_; ++rank) {
    const std::int64_t repeated = report_of(rank).repeated;
    require(repeated == PassReport::none, [&] {
      return "on rank " + std::to_string(rank) + " the gradient of " +
             parameters[static_cast<std::size_t>(repeated)].first +
             " came too often in one backward pass. Nested backward() calls that share a "
             "parameter, "
             "and recomputation of activations, need static_graph, and every pass must then be "
             "like the first one. Nested calls also need outputs of forward() in which tensors are "
             "found (lockstep/parallel/replicate/distributed_data_parallel.h)";
    });
    const std::int64_t kept = report_of(rank).kept_mean;
    require(kept == PassReport::none, [&] {
      return "on rank " + std::to_string(rank) + " the gradient of " +
             parameters[static_cast<std::size_t>(kept)].first +
             " was still the mean of an earlier pass, which with shard_gradients() no other rank "
             "has: call zero_grad() before each pass that is averaged, so that gradients are "
             "undefined";
    });
    const std::string missing = missing_on(rank, parameters);
    require(missing.empty(), [&] {
      return "on rank " + std::to_string(rank) + " backward() gave no gradient to " + missing +
             ": no part in the loss; caused by rank " + std::to_string(rank) +
             "; to do: set find_unused_parameters (with static_graph, each pass must use the same "
             "parameters), or requires_grad_(false) before DistributedDataParallel is made";
    });
  }
}

std::string PassReports::missing_on(int rank, const NamedTensors& parameters) const {
  std::string names;
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const ParameterUse use = this->use(rank, i);
    if (use == ParameterUse::missing || (use == ParameterUse::elsewhere && used_by_any(i)))
      names += (names.empty() ? "" : ", ") + parameters[i].first;
  }
  return names;
}

PassReport PassReports::report_of(int rank) const {
  PassReport report;
  std::memcpy(&report, rows_.data() + static_cast<std::size_t>(rank) * row_bytes_, sizeof report);
  return report;
}

ParameterUse PassReports::use(int rank, std::size_t parameter) const {
  const std::size_t row = static_cast<std::size_t>(rank) * row_bytes_;
  return static_cast<ParameterUse>(rows_[row + sizeof(PassReport) + parameter]);
}

bool is_agreed(const std::exception_ptr& error) {
  try {
    if (error) std::rethrow_exception(error);
  } catch (const AgreedError&) {
    return true;
  } catch (...) {
  }
  return false;
}

PassReports PassAgreement::exchange(PassReport report, const std::vector<ParameterUse>& uses,
                                    const ProcessGroup& group, std::string_view exception) {
  report.pass = ++*passes_;
  ReplicaWrites writes = writes_ ? writes_->count(report.pass) : ReplicaWrites{};
  if (weights_are_owned_) writes.pattern = static_cast<std::uint64_t>(group.rank());
  if (!writes_are_ignored_) report.writes = writes;
  return {report, uses, group, exception};
}

bool PassAgreement::accepts(const PassReports& reports, const NamedTensors& parameters,
                            const ProcessGroup& group) {
  try {
    return judge(reports, parameters, group.rank());
  } catch (const Error& error) {
    throw AgreedError(error);
  }
}

bool PassAgreement::judge(const PassReports& reports, const NamedTensors& parameters, int rank) {
  *passes_ = reports.last_pass();
  samples_ = reports.samples();
  reports.require_no_exception();
  reports.require_same_module();
  reports.require_same_pass();
  reports.require_same_writes();
  reports.require_same_measures();
  reports.require_complete(parameters);
  require(options_.mean == GradientMean::over_ranks || reports.samples() > 0,
          "no rank has counted samples: call count_samples() before backward()");
  non_finite_.reset();
  if (options_.non_finite == NonFinite::ignore) return true;
  non_finite_ = reports.non_finite(parameters);
  if (!non_finite_) return true;
  const std::string text = "the gradient of " + non_finite_->parameter + " on rank " +
                           std::to_string(non_finite_->rank) + " is infinite or NaN";
  if (options_.non_finite == NonFinite::fail)
    throw Error(Fault::corrupt,
                text + "; caused by rank " + std::to_string(non_finite_->rank) +
                    "; to do: look for a bad sample or a too large learning rate; NonFinite::skip "
                    "skips such steps; with a GradScaler, set NonFinite::ignore");
  if (rank == 0) log(LogLevel::warning, text + ": all ranks skip this step");
  return false;
}

}  // namespace lockstep::parallel

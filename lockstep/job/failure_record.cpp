// SPDX-License-Identifier: Apache-2.0
#include "lockstep/job/failure_record.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <signal.h>

#include <cctype>
#include <cstring>

namespace lockstep {
namespace {

// Percent-encodes characters that could end a value, and those that are not text.
std::string escaped(std::string_view text) {
  if (text.empty()) return "-";
  std::string value;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (std::isalnum(byte) != 0 || std::strchr("-._:@/+#()", c) != nullptr)
      value += c;
    else
      value += fmt::format("%{:02X}", byte);
  }
  return value;
}

std::string cause(const Failure& failure) {
  if (failure.fault) return std::string(name(*failure.fault));
  const bool threw = !failure.what.empty();
  if (threw && (failure.signal == SIGABRT || (!failure.signal && !failure.exit_code)))
    return "exception";
  if (failure.signal) {
    const char* abbreviation = ::sigabbrev_np(*failure.signal);
    return fmt::format("signal:{}(SIG{})", *failure.signal, abbreviation ? abbreviation : "?");
  }
  if (failure.exit_code) return fmt::format("exit:{}", *failure.exit_code);
  return failure.left ? "left" : "unknown";
}

// The OOM killer only uses SIGKILL.
std::string_view oom(const Failure& failure) {
  if (failure.oom) return *failure.oom ? "yes" : "no";
  const bool known =
      failure.signal || failure.exit_code || failure.left || failure.fault || !failure.what.empty();
  return known && failure.signal != SIGKILL ? "no" : "unknown";
}

// Returns text such as "1+3"; "-" for another kind of failure.
std::string ranks_of(Fault fault, const Failure& failure) {
  if (failure.fault != fault) return "-";
  return failure.ranks.empty() ? "-" : fmt::format("{}", fmt::join(failure.ranks, "+"));
}

}  // namespace

std::string failure_record(std::string_view job_id, const Failure& failure,
                           std::chrono::milliseconds after) {
  return fmt::format(
      "lockstep-fail job={} rank={} host={} pid={} cause={} oom={} op={} seq={} group={} "
      "detected_by={} after_ms={} waits_for={} differ={} call={} called={}",
      escaped(job_id), failure.rank, escaped(failure.host), failure.pid, cause(failure),
      oom(failure), escaped(failure.operation), failure.sequence, escaped(failure.group),
      failure.detected_by < 0 ? "launcher" : fmt::to_string(failure.detected_by), after.count(),
      ranks_of(Fault::timeout, failure), ranks_of(Fault::mismatch, failure), escaped(failure.call),
      escaped(failure.fault == Fault::mismatch ? failure.what : ""));
}

}  // namespace lockstep

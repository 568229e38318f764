// One rank's part in a group: its identity, its backend until the end, its last calls, and the
// Error that broke the group.
//
// Thread safety: any thread, except for rank_context() and backend().

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <chrono>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "lockstep/base/error.h"
#include "lockstep/comm/core/abort_reason.h"
#include "lockstep/comm/core/backend.h"
#include "lockstep/comm/group/flight_recorder.h"
#include "lockstep/comm/group/group_identity.h"
#include "lockstep/comm/group/rank_context.h"

namespace lockstep::comm {

struct FailureReports {
  std::string text;                          // The Error's.
  std::optional<Failure> failure = {};       // If ranks caused it: for RankContext::report_break().
  std::optional<AbortReason> to_group = {};  // If other ranks would not detect it themselves.
};

// `context` begins the message of `error`; `timeout` is its call's.
FailureReports reports_of(const std::exception_ptr& error, const GroupIdentity& group,
                          const std::string& context, std::chrono::milliseconds timeout);

class GroupContext {
 public:
  // The end of the group releases them, even if handles of the group remain.
  struct Resources {
    std::shared_ptr<RankContext> rank_context;
    std::shared_ptr<Backend> backend;  // Released first: it may use objects of `rank_context`.
  };

  // Sets the backend's name and place in `identity`.
  GroupContext(GroupIdentity identity, Resources resources);

  const GroupIdentity& identity() const { return identity_; }

  // Only for the thread that CallQueue admits, before end().
  RankContext& rank_context() const { return *resources_.rank_context; }
  Backend& backend() const { return *resources_.backend; }

  // Both null after end().
  Resources remaining() const;

  // Errors: misuse after begin_end().
  Resources resources() const;
  void require_usable() const {
    if (is_over_) throw_over();
  }

  bool is_over() const { return is_over_; }
  void begin_end() { is_over_ = true; }

  // No call of the group may be running.
  void end();

  bool is_broken() const { return is_broken_.load(std::memory_order_acquire); }
  void throw_if_broken() const {
    if (is_broken()) throw_first();
  }

  // Keeps `error` for every later call, sends the reports, and saves the flight record. Does
  // nothing if the group is broken. Arguments: as reports_of().
  void break_with(const std::exception_ptr& error, const std::string& context,
                  std::chrono::milliseconds timeout);

  // Reports an error that ended a call but not the group.
  void report(const std::exception_ptr& error, const std::string& context) const;

  FlightRecorder& collectives() { return collectives_; }
  FlightRecorder& messages() { return messages_; }
  std::string flight_record(const std::string& error = {}) const;

 private:
  [[noreturn]] void throw_over() const;
  [[noreturn]] void throw_first() const;

  const GroupIdentity identity_;
  FlightRecorder collectives_;
  FlightRecorder messages_;
  std::atomic<bool> is_over_{false};
  std::atomic<bool> is_broken_{false};
  mutable std::mutex mutex_;  // Guards the next two.
  std::exception_ptr first_;
  Resources resources_;
};

}  // namespace lockstep::comm

// The first Error that broke a group. Every later call throws it again.
//
// Thread safety: any thread.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <chrono>
#include <exception>
#include <functional>
#include <mutex>
#include <string>

#include "lockstep/base/error.h"
#include "lockstep/comm/core/abort_reason.h"
#include "lockstep/comm/group/group_identity.h"

namespace lockstep::comm {

class GroupFailure {
 public:
  // Each is called at most once, in this order, on the thread whose call broke the group; note()
  // may also call the first one. May not throw.
  struct Reactions {
    // Living ranks, or ranks that left, caused it; as ranks of the job.
    std::function<void(Failure)> report_break = [](const Failure&) {};
    // Otherwise, ranks that did not see the Error would wait forever.
    std::function<void(const AbortReason&)> abort = [](const AbortReason&) {};
    // Always, with the Error's text.
    std::function<void(const std::string&)> save_record = [](const std::string&) {};
  };

  // `group` must outlive it.
  GroupFailure(const GroupIdentity& group, Reactions reactions);

  bool is_broken() const { return is_broken_.load(std::memory_order_acquire); }
  void throw_if_broken() const {
    if (is_broken()) throw_first();
  }

  // Unless the group is broken. `context` begins the message of `error`; `timeout` is its call's.
  void break_with(std::exception_ptr error, const std::string& context,
                  std::chrono::milliseconds timeout);

  // Reports an error that ended a call but not the group.
  void note(const std::exception_ptr& error, const std::string& context) const;

 private:
  [[noreturn]] void throw_first() const;
  void report_break(const Error& error, const std::string& context,
                    std::chrono::milliseconds timeout) const;
  Failure in_the_job(Failure failure) const;

  const GroupIdentity& group_;
  const Reactions reactions_;
  std::atomic<bool> is_broken_{false};
  mutable std::mutex mutex_;
  std::exception_ptr first_;
};

}  // namespace lockstep::comm

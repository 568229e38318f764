// The parts of a group that are released at its end, even if handles remain.
//
// Thread safety: any thread; backend(), activity() and count_reduced_bytes(): only the thread that
// holds the turn, before the end.
// Errors: misuse after the end has begun, from require_usable(), in_job(), shared_backend() and
// allocate_local().

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstddef>
#include <memory>
#include <mutex>
#include <string>

#include "lockstep/base/error.h"
#include "lockstep/comm/core/abort_reason.h"
#include "lockstep/comm/core/backend.h"
#include "lockstep/comm/group/group_identity.h"
#include "lockstep/comm/group/rank_in_job.h"

namespace lockstep::comm {

class GroupLife {
 public:
  // `group` must outlive it.
  GroupLife(const GroupIdentity& group, std::shared_ptr<Backend> backend,
            std::shared_ptr<RankInJob> in_job);

  bool is_over() const { return is_over_; }
  void require_usable() const {
    if (is_over_) throw_over();
  }

  Backend& backend() const { return *backend_; }
  Activity& activity() const { return in_job_->activity(); }
  void count_reduced_bytes(std::uint64_t bytes) const { in_job_->count_reduced_bytes(bytes); }

  std::shared_ptr<RankInJob> in_job() const;
  std::shared_ptr<Backend> shared_backend() const;

  // Do nothing after the end.
  void leave() const;
  void abort(const AbortReason& why) const;
  void report_break(Failure failure) const;
  void note_abort() const;  // In this rank's activity, which peers read.

  // Errors: also as Backend::allocate_local().
  RegisteredMemory allocate_local(std::size_t bytes) const;

  // False after the end.
  bool knows_of_loss() const;

  void begin_end() { is_over_ = true; }

  // No call of the group may be running.
  void end();

 private:
  [[noreturn]] void throw_over() const;

  const GroupIdentity& group_;
  std::atomic<bool> is_over_{false};
  mutable std::mutex mutex_;  // Guards the next two.
  std::shared_ptr<RankInJob> in_job_;
  std::shared_ptr<Backend> backend_;  // May use objects that in_job_ keeps alive.
};

}  // namespace lockstep::comm

// SPDX-License-Identifier: Apache-2.0
#include "lockstep/comm/hosts/failure_notices.h"

#include <chrono>
#include <utility>

#include "lockstep/base/error.h"

namespace lockstep::comm {

FailureNotices::FailureNotices(std::shared_ptr<HostSession> session, Connections& connections,
                               std::vector<bool> is_here)
    : session_(std::move(session)),
      connections_(connections),
      is_here_(std::move(is_here)),
      thread_(start_thread(&FailureNotices::watch, this)) {}

FailureNotices::~FailureNotices() {
  {
    const std::lock_guard lock(mutex_);
    ending_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

bool FailureNotices::is_here(int rank) const {
  const auto index = static_cast<std::size_t>(rank);
  return rank >= 0 && index < is_here_.size() && is_here_[index];
}

void FailureNotices::tell_what_is_known() const {
  if (const auto failure = session_->page().failure()) connections_.tell_failure(*failure);
}

void FailureNotices::watch() {
  constexpr std::chrono::milliseconds slice{20};
  std::unique_lock lock(mutex_);
  while (!changed_.wait_for(lock, slice, [this] { return ending_; })) {
    try {
      session_->throw_if_peer_lost("watching this host's ranks");
    } catch (const Error& error) {
      const auto& failure = error.failure();
      if (failure && is_here(failure->rank)) connections_.tell_failure(*failure);
      return;  // Only the first failure of a job counts.
    }
  }
}

}  // namespace lockstep::comm

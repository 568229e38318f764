// SPDX-License-Identifier: Apache-2.0
#include "lockstep/comm/hosts/failure_news.h"

#include <chrono>

#include "lockstep/base/error.h"

namespace lockstep {

FailureNews::FailureNews(std::shared_ptr<HostSession> session, Lines& lines,
                         std::vector<bool> is_here)
    : session_(std::move(session)),
      lines_(lines),
      is_here_(std::move(is_here)),
      thread_(start_thread(&FailureNews::watch, this)) {}

FailureNews::~FailureNews() {
  {
    const std::lock_guard lock(mutex_);
    ending_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void FailureNews::watch() {
  constexpr std::chrono::milliseconds slice{20};
  std::unique_lock lock(mutex_);
  while (!changed_.wait_for(lock, slice, [this] { return ending_; })) {
    try {
      session_->throw_if_peer_lost("watching this host's ranks");
    } catch (const Error& error) {
      const auto& failure = error.failure();
      const bool is_known = failure && failure->rank >= 0;
      if (is_known && is_here_[static_cast<std::size_t>(failure->rank)])
        lines_.tell_failure(*failure);
      return;  // The first failure of a job is the one that counts.
    }
  }
}

}  // namespace lockstep

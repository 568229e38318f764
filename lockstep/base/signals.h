// Scope guards that change signal handling and restore it.
//
// Thread safety: KeepSignalHandlers changes the process, the others the calling thread only.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <pthread.h>
#include <signal.h>

#include <array>
#include <cstddef>
#include <initializer_list>

namespace lockstep {

// Blocks all signals in this thread and in threads started in this scope, so that the user's
// threads receive them.
class BlockSignals {
 public:
  BlockSignals() {
    sigset_t all;
    ::sigfillset(&all);
    ::pthread_sigmask(SIG_SETMASK, &all, &before_);
  }
  ~BlockSignals() { ::pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  BlockSignals(const BlockSignals&) = delete;
  BlockSignals& operator=(const BlockSignals&) = delete;

 private:
  sigset_t before_;
};

// System calls return an error instead of raising SIGPIPE (a pipe without a reader) or SIGXFSZ (a
// file larger than `ulimit -f`).
class IgnoreSignals {
 public:
  IgnoreSignals(std::initializer_list<int> signals) {
    sigset_t wanted;
    ::sigemptyset(&wanted);
    for (const int signal : signals) ::sigaddset(&wanted, signal);
    ::pthread_sigmask(SIG_BLOCK, &wanted, &before_);
    ::sigemptyset(&ours_);
    for (const int signal : signals)
      if (::sigismember(&before_, signal) == 0) ::sigaddset(&ours_, signal);
  }
  ~IgnoreSignals() {
    const timespec at_once{};
    while (::sigtimedwait(&ours_, nullptr, &at_once) > 0) {  // Drops signals raised in this scope.
    }
    ::pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  }
  IgnoreSignals(const IgnoreSignals&) = delete;
  IgnoreSignals& operator=(const IgnoreSignals&) = delete;

 private:
  sigset_t before_;
  sigset_t ours_;  // Signals that were not blocked before.
};

// Restores the handlers after foreign code: some network libraries install ones that exit with code
// 1.
class KeepSignalHandlers {
 public:
  KeepSignalHandlers() {
    for (std::size_t i = 0; i < before_.size(); ++i)
      known_[i] = ::sigaction(static_cast<int>(i) + 1, nullptr, &before_[i]) == 0;
  }
  ~KeepSignalHandlers() {
    for (std::size_t i = 0; i < before_.size(); ++i)
      if (known_[i]) ::sigaction(static_cast<int>(i) + 1, &before_[i], nullptr);
  }
  KeepSignalHandlers(const KeepSignalHandlers&) = delete;
  KeepSignalHandlers& operator=(const KeepSignalHandlers&) = delete;

 private:
  std::array<struct sigaction, 31> before_{};  // Signals 1 to 31.
  std::array<bool, 31> known_{};
};

}  // namespace lockstep

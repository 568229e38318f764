// Scope guards that change signal handling and restore it.
//
// Thread safety: BlockSignals and IgnoreSignals change the calling thread only, KeepSignalHandlers
// the process.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <pthread.h>
#include <signal.h>

#include <array>
#include <cstddef>
#include <initializer_list>

namespace lockstep {

// Blocks all signals in the calling thread. Threads started in this scope inherit that, so the
// user's threads receive the signals.
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

// Makes a system call return an error instead of a fatal signal: SIGPIPE from a pipe without a
// reader, SIGXFSZ from a file larger than `ulimit -f` allows.
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
    while (::sigtimedwait(&ours_, nullptr, &at_once) > 0) {  // Drops the signals raised in this
                                                             // scope.
    }
    ::pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  }
  IgnoreSignals(const IgnoreSignals&) = delete;
  IgnoreSignals& operator=(const IgnoreSignals&) = delete;

 private:
  sigset_t before_;
  sigset_t ours_;  // Signals that were not blocked before.
};

// Restores this process's signal handlers after foreign code has run. Network libraries that
// engines load install handlers that print a backtrace and exit with code 1.
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
  std::array<struct sigaction, 31> before_{};  // Handlers of signals 1 to 31.
  std::array<bool, 31> known_{};
};

}  // namespace lockstep

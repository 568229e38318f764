// Turns signals that a failing system call raises in its own thread into plain errors while it
// lives. Otherwise they would end the process.
// SIGPIPE comes from a write to a pipe without a reader. SIGXFSZ comes from a file larger than
// `ulimit -f` allows.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <signal.h>

#include <initializer_list>

namespace lockstep {

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
    while (::sigtimedwait(&ours_, nullptr, &at_once) > 0) {  // Drops the signals raised meanwhile.
    }
    ::pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  }
  IgnoreSignals(const IgnoreSignals&) = delete;
  IgnoreSignals& operator=(const IgnoreSignals&) = delete;

 private:
  sigset_t before_;
  sigset_t ours_;  // Signals that were not blocked before.
};

}  // namespace lockstep

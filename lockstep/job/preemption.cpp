// SPDX-License-Identifier: Apache-2.0
#include "lockstep/job/preemption.h"

#include <signal.h>

#include <atomic>
#include <mutex>

#include "lockstep/base/error.h"

namespace lockstep {
namespace {

std::atomic<bool> keeps{false};
std::atomic<bool> signalled{false};
static_assert(std::atomic<bool>::is_always_lock_free);  // Signal handlers need lock-free stores.

void keep(int) { signalled.store(true); }

}  // namespace

void keep_preemption_signals() {
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  if (keeps) return;
  struct sigaction action {};
  action.sa_handler = keep;
  action.sa_flags = SA_RESTART;  // Interrupted reads and writes of the program continue.
  ::sigfillset(&action.sa_mask);
  for (const int signal : {SIGTERM, SIGUSR1})
    if (::sigaction(signal, &action, nullptr) != 0) throw_errno("installing a signal handler");
  keeps = true;
}

bool keeps_preemption_signals() { return keeps; }

bool preemption_signalled() { return signalled; }

}  // namespace lockstep

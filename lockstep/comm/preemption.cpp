// SPDX-License-Identifier: Apache-2.0
#include "lockstep/comm/preemption.h"

#include <signal.h>

#include <atomic>
#include <cstdint>
#include <mutex>

#include "lockstep/comm/error.h"
#include "lockstep/comm/group_state.h"

namespace lockstep {
namespace {

std::atomic<bool> keeps{false};
std::atomic<bool> signalled{false};
static_assert(std::atomic<bool>::is_always_lock_free);  // Or no signal handler could store it.

void keep(int) { signalled.store(true); }

}  // namespace

void keep_preemption_signals() {
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  if (keeps) return;
  struct sigaction action {};
  action.sa_handler = keep;
  action.sa_flags = SA_RESTART;  // What the program reads or writes goes on.
  ::sigfillset(&action.sa_mask);
  for (const int signal : {SIGTERM, SIGUSR1})
    if (::sigaction(signal, &action, nullptr) != 0) throw_errno("installing a signal handler");
  keeps = true;
}

bool keeps_preemption_signals() { return keeps; }

bool preemption_signalled() { return signalled; }

void ProcessGroup::State::on_preemption() {
  require_own_process();
  require_usable();
  keep_preemption_signals();
  rank_wide_->expect_preemption();  // After the handlers are there: now a signal ends nobody.
}

bool ProcessGroup::State::preempted(const CallOptions& options) {
  require(keeps_preemption_signals(), "preempted: call on_preemption() first");
  std::uint8_t any = preemption_signalled();
  Collective collective{
      .signature = {.count = 1, .operation = Operation::all_reduce, .dtype = DType::uint8},
      .output = {.data = &any, .count = 1, .dtype = DType::uint8}};
  collective.signature.op = ReduceOp::max;
  CallOptions own = options;
  own.label = "preempted";
  run(std::move(collective), own);
  if (any != 0) rank_wide_->agree_on_preemption();
  return any != 0;
}

}  // namespace lockstep

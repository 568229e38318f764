// SPDX-License-Identifier: Apache-2.0
#include "lockstep/torch_backend/interrupts.h"

#include <pthread.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/types.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdint>
#include <mutex>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/base/thread.h"
#include "lockstep/torch_backend/errors.h"

namespace lockstep::torch_backend {
namespace {

pthread_t main_thread{};
std::atomic<pid_t> process{0};  // Forked children share the eventfd, and have no watcher.
struct sigaction handler_before {};
int rung = -1;  // An eventfd: a signal handler can wake a thread only by writing to it.

std::mutex mutex;
Membership* awaited = nullptr;  // Set by the main thread; guarded by `mutex`, as is `is_missed`.
// A signal arrived while the main thread waited for no group.
bool is_missed = false;

void on_interrupt(int signal, siginfo_t* info, void* context) {
  const int error_number = errno;
  const std::uint64_t one = 1;
  if (::getpid() == process) {
    [[maybe_unused]] const auto written = ::write(rung, &one, sizeof one);
  }
  errno = error_number;
  if ((handler_before.sa_flags & SA_SIGINFO) != 0)
    handler_before.sa_sigaction(signal, info, context);
  else if (handler_before.sa_handler != SIG_DFL && handler_before.sa_handler != SIG_IGN)
    handler_before.sa_handler(signal);
}

void watch() {
  std::uint64_t count = 0;
  while (::read(rung, &count, sizeof count) == sizeof count || errno == EINTR) {
    const std::lock_guard lock(mutex);
    is_missed = awaited == nullptr;
    if (awaited != nullptr) awaited->abort("interrupted by SIGINT");
  }
}

}  // namespace

void catch_interrupts() {
  if (process == ::getpid()) return;
  const bool is_inherited = process != 0;
  rung = ::eventfd(0, EFD_CLOEXEC);
  if (rung < 0) throw_errno("eventfd");
  start_thread(watch).detach();
  main_thread = ::pthread_self();
  awaited = nullptr;
  process = ::getpid();
  if (is_inherited) return;
  ::sigaction(SIGINT, nullptr, &handler_before);
  struct sigaction ours = handler_before;
  ours.sa_sigaction = on_interrupt;
  ours.sa_flags |= SA_SIGINFO;
  ::sigaction(SIGINT, &ours, nullptr);
}

Interruptible::Interruptible(Membership& group)
    : is_on_(process == ::getpid() && ::pthread_equal(main_thread, ::pthread_self()) != 0) {
  if (!is_on_) return;
  std::unique_lock lock(mutex);
  // Python has handled the signal, or raises its exception now.
  while (std::exchange(is_missed, false)) {
    lock.unlock();
    throw_if_interrupted();
    lock.lock();
  }
  outer_ = std::exchange(awaited, &group);
}

Interruptible::~Interruptible() {
  if (!is_on_) return;
  const std::lock_guard lock(mutex);
  awaited = outer_;
}

}  // namespace lockstep::torch_backend

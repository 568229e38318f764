// SPDX-License-Identifier: Apache-2.0
#include "lockstep/base/this_process.h"

#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <new>

namespace lockstep {
namespace {

using Pid = std::atomic<pid_t>;

// Returns a page that the kernel clears in every child; null where the kernel cannot do that.
// Handlers of pthread_atfork() would miss clone().
Pid* make_page() {
  const auto bytes = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  void* const page =
      ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (page == MAP_FAILED) return nullptr;
  if (::madvise(page, bytes, MADV_WIPEONFORK) == 0) return new (page) Pid(0);
  ::munmap(page, bytes);
  return nullptr;
}

}  // namespace

pid_t this_process() {
  static Pid* const known = make_page();
  if (known == nullptr) return ::getpid();
  pid_t pid = known->load(std::memory_order_relaxed);
  if (pid == 0) {
    pid = ::getpid();
    known->store(pid, std::memory_order_relaxed);
  }
  return pid;
}

}  // namespace lockstep

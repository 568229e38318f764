// SPDX-License-Identifier: Apache-2.0
#include "lockstep/base/thread.h"

#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "lockstep/base/error.h"

namespace lockstep {
namespace {

// The kernel's minimum, in ns.
constexpr std::uint64_t short_slice = 100'000;

// The kernel's first version, 48 bytes (include/uapi/linux/sched/types.h), whose header conflicts
// with <sched.h>.
struct SchedulingAttributes {
  std::uint32_t size;
  std::uint32_t policy;
  std::uint64_t flags;
  std::int32_t nice;
  std::uint32_t priority;
  std::uint64_t runtime;  // For SCHED_OTHER: the slice, in ns.
  std::uint64_t deadline;
  std::uint64_t period;
};

constexpr pid_t this_thread = 0;

// Most systems' default. Unused pages take no memory.
constexpr std::size_t least_stack_bytes = std::size_t{8} << 20;

class Attributes {
 public:
  Attributes() {
    std::size_t bytes = 0;
    check(::pthread_getattr_default_np(&attributes_) == 0 &&
              ::pthread_attr_getstacksize(&attributes_, &bytes) == 0 &&
              ::pthread_attr_setstacksize(&attributes_, std::max(bytes, least_stack_bytes)) == 0,
          "a thread cannot have a stack of its own size");
  }
  ~Attributes() { ::pthread_attr_destroy(&attributes_); }
  Attributes(const Attributes&) = delete;
  Attributes& operator=(const Attributes&) = delete;

  const pthread_attr_t* get() const { return &attributes_; }

 private:
  pthread_attr_t attributes_;
};

}  // namespace

void ask_for_short_slices() {
  SchedulingAttributes attributes{};
  if (::syscall(SYS_sched_getattr, this_thread, &attributes, sizeof attributes, 0) != 0) return;
  if (attributes.policy != SCHED_OTHER) return;
  attributes.runtime = short_slice;
  ::syscall(SYS_sched_setattr, this_thread, &attributes, 0);  // Other kernels ignore it.
}

void Thread::start(void* (*routine)(void*), void* body) {
  const Attributes attributes;
  pthread_t id{};
  const int error = ::pthread_create(&id, attributes.get(), routine, body);
  if (error != 0) throw_errno("starting a thread", error);
  id_ = id;
}

Thread& Thread::operator=(Thread&& other) noexcept {
  check(!joinable(), "a thread that may run is replaced");
  id_ = std::exchange(other.id_, std::nullopt);
  return *this;
}

Thread::~Thread() { check(!joinable(), "a thread that may run is aborted"); }

void Thread::join() {
  const int error = ::pthread_join(*id_, nullptr);
  id_.reset();
  check(error == 0, "a thread is joined that cannot be");
}

void Thread::detach() { ::pthread_detach(*std::exchange(id_, std::nullopt)); }

}  // namespace lockstep

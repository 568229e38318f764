// SPDX-License-Identifier: Apache-2.0
#include "lockstep/base/short_slices.h"

#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdint>

namespace lockstep {
namespace {

// The shortest that the kernel gives, in ns.
constexpr std::uint64_t short_slice = 100'000;

// As the kernel has it (include/uapi/linux/sched/types.h), in the first version, of 48 bytes. That
// header cannot be had together with <sched.h>.
struct SchedulingAttributes {
  std::uint32_t size;
  std::uint32_t policy;
  std::uint64_t flags;
  std::int32_t nice;
  std::uint32_t priority;
  std::uint64_t runtime;  // Of SCHED_OTHER: the slice, in ns.
  std::uint64_t deadline;
  std::uint64_t period;
};

constexpr pid_t this_thread = 0;

}  // namespace

void ask_for_short_slices() {
  SchedulingAttributes attributes{};
  if (::syscall(SYS_sched_getattr, this_thread, &attributes, sizeof attributes, 0) != 0) return;
  if (attributes.policy != SCHED_OTHER) return;
  attributes.runtime = short_slice;
  ::syscall(SYS_sched_setattr, this_thread, &attributes, 0);  // A kernel without them ignores it.
}

}  // namespace lockstep

// SPDX-License-Identifier: Apache-2.0
#include "lockstep/base/short_slices.h"

#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdint>

namespace lockstep {
namespace {

// The kernel's minimum, in ns.
constexpr std::uint64_t short_slice = 100'000;

// The first version of the kernel's struct, 48 bytes (include/uapi/linux/sched/types.h). That
// header conflicts with <sched.h>.
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

}  // namespace

void ask_for_short_slices() {
  SchedulingAttributes attributes{};
  if (::syscall(SYS_sched_getattr, this_thread, &attributes, sizeof attributes, 0) != 0) return;
  if (attributes.policy != SCHED_OTHER) return;
  attributes.runtime = short_slice;
  ::syscall(SYS_sched_setattr, this_thread, &attributes, 0);  // Kernels without the feature ignore
                                                              // it.
}

}  // namespace lockstep

// SPDX-License-Identifier: Apache-2.0
#include "lockstep/parallel/gradients/overlap.h"

#include <ATen/Parallel.h>
#include <sched.h>

#include <vector>

#include "lockstep/comm/values.h"

namespace lockstep {
namespace {

// Exchanged between ranks.
struct Cores {
  int threads;  // Own threads, including one that would reduce during backward().
  cpu_set_t allowed;
};

Cores own_cores() {
  Cores own{};
  own.threads = at::get_num_threads() + 1;
  ::sched_getaffinity(0, sizeof own.allowed, &own.allowed);  // Empty if it fails.
  return own;
}

// All ranks are on one host.
bool suffice(const std::vector<Cores>& all) {
  cpu_set_t allowed;
  CPU_ZERO(&allowed);
  int threads = 0;
  for (const Cores& cores : all) {
    CPU_OR(&allowed, &allowed, &cores.allowed);
    threads += cores.threads;
  }
  return CPU_COUNT(&allowed) >= threads;
}

}  // namespace

bool agree_on_overlap(const DistributedDataParallelOptions& options, const ProcessGroup& group,
                      c10::Device device) {
  if (!device.is_cpu()) return options.overlap.value_or(group.size() > 1);
  const auto all = all_gather_value(own_cores(), group, {.label = "cores"});
  // Networks transfer without the cores, also if none of them is free.
  const bool spans_hosts = group.local_size() < group.size();
  return options.overlap.value_or(spans_hosts || (group.size() > 1 && suffice(all)));
}

}  // namespace lockstep

// SPDX-License-Identifier: Apache-2.0
#include "lockstep/parallel/overlap.h"

#include <ATen/Parallel.h>
#include <sched.h>

#include <algorithm>
#include <cstdint>
#include <string>

#include "lockstep/comm/values.h"

namespace lockstep {
namespace {

bool has_idle_core() {
  cpu_set_t cores;
  if (::sched_getaffinity(0, sizeof cores, &cores) != 0) return false;
  return CPU_COUNT(&cores) > at::get_num_threads();
}

std::string text_of(const DistributedDataParallelOptions& options) {
  std::string text = "options of DistributedDataParallel:";
  for (const int value :
       {static_cast<int>(options.broadcast_buffers),
        static_cast<int>(options.find_unused_parameters), static_cast<int>(options.static_graph),
        options.overlap ? int{*options.overlap} : -1, static_cast<int>(options.mean),
        static_cast<int>(options.non_finite)})
    text += ' ' + std::to_string(value);
  if (options.bucket_cap_mb) text += " cap " + std::to_string(*options.bucket_cap_mb);
  for (const double cap : options.bucket_caps_mb) text += " of " + std::to_string(cap);
  return text;
}

}  // namespace

bool agree_on_overlap(const DistributedDataParallelOptions& options, const ProcessGroup& group) {
  const bool wanted = options.overlap.value_or(group.size() > 1 && has_idle_core());
  const std::string tag = text_of(options);
  const auto all = all_gather_value(static_cast<std::uint8_t>(wanted), group, {.tag = tag});
  return std::find(all.begin(), all.end(), 0) == all.end();
}

}  // namespace lockstep

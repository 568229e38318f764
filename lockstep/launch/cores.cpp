// SPDX-License-Identifier: Apache-2.0
#include "lockstep/launch/cores.h"

#include <fmt/format.h>
#include <sched.h>

#include <cerrno>
#include <memory>

#include "lockstep/comm/error.h"

namespace lockstep {

std::vector<int> usable_cpus() {
  // A fixed cpu_set_t is too small for the largest hosts, and the kernel then says EINVAL.
  for (int capacity = CPU_SETSIZE; capacity <= 1 << 20; capacity *= 2) {
    const std::unique_ptr<cpu_set_t, void (*)(cpu_set_t*)> set(
        CPU_ALLOC(capacity), [](cpu_set_t* memory) { CPU_FREE(memory); });
    const std::size_t bytes = CPU_ALLOC_SIZE(capacity);
    if (::sched_getaffinity(0, bytes, set.get()) != 0) {
      if (errno == EINVAL) continue;
      break;
    }
    std::vector<int> cpus;
    for (int cpu = 0; cpu < capacity; ++cpu)
      if (CPU_ISSET_S(cpu, bytes, set.get())) cpus.push_back(cpu);
    return cpus;
  }
  throw_errno("sched_getaffinity");
}

std::vector<std::vector<int>> divide_cpus(const std::vector<int>& cpus, int ranks) {
  require(ranks > 0, "CPUs can only be divided among one rank or more");
  const auto parts = static_cast<std::size_t>(ranks);
  std::vector<std::vector<int>> blocks(parts);
  if (parts > cpus.size()) return blocks;
  for (std::size_t i = 0; i < parts; ++i) {
    const auto begin = cpus.size() * i / parts;
    const auto end = cpus.size() * (i + 1) / parts;
    for (auto k = begin; k < end; ++k) blocks[i].push_back(cpus[k]);
  }
  return blocks;
}

std::string as_ranges(const std::vector<int>& numbers) {
  std::string text;
  for (std::size_t first = 0; first < numbers.size();) {
    std::size_t last = first;
    while (last + 1 < numbers.size() && numbers[last + 1] == numbers[last] + 1) ++last;
    if (!text.empty()) text += ',';
    text += last == first ? fmt::format("{}", numbers[first])
                          : fmt::format("{}-{}", numbers[first], numbers[last]);
    first = last + 1;
  }
  return text;
}

}  // namespace lockstep

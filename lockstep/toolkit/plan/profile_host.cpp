// SPDX-License-Identifier: Apache-2.0
#include "lockstep/toolkit/plan/profile_host.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/ones.h>
#include <unistd.h>

#include <cstdint>
#include <fstream>
#include <string>

#include "lockstep/base/error.h"
#include "lockstep/base/memory.h"
#include "lockstep/tensor/collectives.h"
#include "lockstep/toolkit/plan/measure_layer.h"

namespace lockstep::plan {
namespace {

constexpr std::int64_t large = std::int64_t{16} << 20;

ReduceSample reduce_sample(const ProcessGroup& world, const ProcessGroup& group,
                           std::int64_t bytes) {
  // Registered memory, as of gradients.
  const RegisteredMemory memory = group.allocate(static_cast<std::size_t>(bytes));
  const at::Tensor tensor =
      at::from_blob(memory.data(), {bytes / static_cast<std::int64_t>(sizeof(float))}, at::kFloat);
  tensor.zero_();
  ReduceSample sample{.ranks = group.size(), .bytes = static_cast<double>(bytes)};
  world.barrier();
  sample.all_reduce = shortest_time([&] { all_reduce(tensor, group, ReduceOp::average); });
  world.barrier();
  sample.reduce_scatter = shortest_time([&] { reduce_scatter(tensor, group, ReduceOp::average); });
  return sample;
}

}  // namespace

std::vector<ReduceSample> measure_reductions(const ProcessGroup& world) {
  constexpr std::int64_t small = 4096;
  std::vector<ReduceSample> samples;
  for (int ranks = 2; ranks <= world.size(); ++ranks) {
    if (world.size() % ranks != 0) continue;
    const ProcessGroup group = world.split(world.rank() / ranks, world.rank());
    // Parts of equal size.
    for (const std::int64_t bytes : {small * ranks, large / ranks / small * small * ranks})
      samples.push_back(reduce_sample(world, group, bytes));
  }
  return samples;
}

double measure_copies(const ProcessGroup& world) {
  const at::Tensor from = at::ones({large}, at::kByte), to = at::empty({large}, at::kByte);
  world.barrier();
  return static_cast<double>(large) / shortest_time([&] { to.copy_(from); });
}

ProcessBytes resident_bytes() {
  std::ifstream file("/proc/self/statm");
  double all = 0, resident = 0, shared = 0;
  file >> all >> resident >> shared;
  if (!file) throw_errno("/proc/self/statm");
  const auto page = static_cast<double>(page_size());
  return {.own = (resident - shared) * page, .shared = shared * page};
}

}  // namespace lockstep::plan

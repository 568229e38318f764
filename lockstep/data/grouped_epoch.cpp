// SPDX-License-Identifier: Apache-2.0
#include "lockstep/data/grouped_epoch.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/randperm.h>

#include <algorithm>
#include <numeric>
#include <span>

#include "lockstep/base/hash.h"

namespace lockstep::data {
namespace {

// Each group's first sample, then the total.
std::vector<std::int64_t> first_samples(const GroupedOrder& order) {
  std::vector<std::int64_t> firsts{0};
  for (const std::size_t size : order.group_sizes)
    firsts.push_back(firsts.back() + static_cast<std::int64_t>(size));
  return firsts;
}

void shuffle_block(std::span<std::int64_t> samples, const at::Generator& generator) {
  const at::Tensor places =
      at::randperm(static_cast<std::int64_t>(samples.size()), generator, at::kLong);
  const auto* const place = places.const_data_ptr<std::int64_t>();
  std::vector<std::int64_t> shuffled(samples.size());
  for (std::size_t i = 0; i < samples.size(); ++i)
    shuffled[i] = samples[static_cast<std::size_t>(place[i])];
  std::ranges::copy(shuffled, samples.begin());
}

}  // namespace

GroupedEpoch draw_grouped_epoch(const GroupedOrder& order, bool shuffle, std::uint64_t seed,
                                std::int64_t epoch) {
  GroupedEpoch drawn{.groups = std::vector<std::size_t>(order.group_sizes.size()), .samples = {}};
  std::iota(drawn.groups.begin(), drawn.groups.end(), std::size_t{0});
  if (!shuffle) return drawn;

  const auto generator = at::detail::createCPUGenerator(seed + static_cast<std::uint64_t>(epoch));
  const at::Tensor groups =
      at::randperm(static_cast<std::int64_t>(drawn.groups.size()), generator, at::kLong);
  std::copy_n(groups.const_data_ptr<std::int64_t>(), drawn.groups.size(), drawn.groups.begin());

  const std::vector<std::int64_t> firsts = first_samples(order);
  drawn.samples = at::empty({firsts.back()}, at::kLong);
  auto* const samples = drawn.samples.mutable_data_ptr<std::int64_t>();
  std::size_t begin = 0;
  std::size_t end = 0;
  for (std::size_t i = 0; i < drawn.groups.size(); ++i) {
    const std::size_t group = drawn.groups[i];
    std::iota(samples + end, samples + end + order.group_sizes[group], firsts[group]);
    end += order.group_sizes[group];
    if ((i + 1) % order.groups_per_block != 0 && i + 1 < drawn.groups.size()) continue;
    shuffle_block({samples + begin, end - begin}, generator);
    begin = end;
  }
  return drawn;
}

std::size_t samples_in(const GroupedOrder& order) {
  return std::accumulate(order.group_sizes.begin(), order.group_sizes.end(), std::size_t{0});
}

std::uint64_t digest_of(const GroupedOrder& order) {
  std::vector<std::uint64_t> numbers{order.groups_per_block};
  numbers.insert(numbers.end(), order.group_sizes.begin(), order.group_sizes.end());
  if (order.fingerprint != 0) numbers.push_back(order.fingerprint);
  return hash_of_elements(numbers);
}

}  // namespace lockstep::data

// SPDX-License-Identifier: Apache-2.0
#include <cstddef>
#include <cstdint>

#include "bench/data/sides.h"
#include "lockstep/toolkit.h"

namespace lockstep::bench {
namespace {

constexpr std::int64_t length = 1024;
constexpr std::size_t timed_batches = 1000;

TokenFile tokens_of(const SideOptions& options) {
  return TokenFile(options.data, {.length = length, .raw = torch::kUInt16, .vocabulary = 50'257});
}

}  // namespace

double tokens_by_file(const SideOptions& options) {
  const TokenFile tokens = tokens_of(options);
  DistributedSampler sampler(tokens.size(), 1, 0, {.drop_last = true});
  const auto rows = static_cast<std::int64_t>(options.batch_size);
  const at::Tensor data = torch::empty({rows, length}, torch::kLong);
  const at::Tensor target = torch::empty_like(data);
  return cpu_us(timed_batches, [&] {
    sampler.reset();
    for (std::size_t i = 0; i < timed_batches; ++i) {
      auto indices = sampler.next(options.batch_size);
      tokens.fill({.indices = *indices, .data = data, .target = target});
    }
  });
}

double tokens_by_loader(const SideOptions& options) {
  const TokenFile tokens = tokens_of(options);
  DistributedSampler sampler(tokens.size(), 1, 0, {.drop_last = true});
  DataLoader loader(tokens, sampler,
                    {.batch_size = options.batch_size, .threads = options.threads});
  return cpu_us(timed_batches, [&] {
    std::size_t left = timed_batches;
    for ([[maybe_unused]] const Batch& batch : loader)
      if (--left == 0) break;
  });
}

}  // namespace lockstep::bench

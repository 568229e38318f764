// SPDX-License-Identifier: Apache-2.0
#include "lockstep/data/batch_dataset.h"

#include "lockstep/base/error.h"

namespace lockstep {
namespace {

// An epoch has 2^32 groups of four numbers per sample.
constexpr int epoch_shift = 32;

}  // namespace

SampleRandom::SampleRandom(std::uint64_t seed, std::int64_t epoch, std::size_t sample)
    : engine_(seed, sample, static_cast<std::uint64_t>(epoch) << epoch_shift) {}

std::uint64_t SampleRandom::bits() {
  const std::uint64_t high = engine_();
  return high << 32 | engine_();
}

double SampleRandom::uniform(double from, double to) {
  constexpr double unit = 0x1p-53;
  return from + (to - from) * (static_cast<double>(bits() >> 11) * unit);
}

std::int64_t SampleRandom::below(std::int64_t count) {
  require(count > 0, "SampleRandom: the count must be positive");
  // Draws again below 2^64 mod count, for equal probabilities (Lemire, "Fast random integer
  // generation in an interval", 2019).
  const auto range = static_cast<std::uint64_t>(count);
  const std::uint64_t surplus = -range % range;
  std::uint64_t drawn = bits();
  while (drawn < surplus) drawn = bits();
  return static_cast<std::int64_t>(drawn % range);
}

}  // namespace lockstep

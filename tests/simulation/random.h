// Random numbers that are the same on every platform: splitmix64.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace lockstep::simulation {

class Random {
 public:
  explicit Random(std::uint64_t seed) : state_(seed) {}

  // A stream of its own: removing what one stream is used for does not change the others.
  Random(std::uint64_t seed, std::uint64_t stream)
      : state_(Random(seed ^ (stream * 0x9e3779b97f4a7c15ULL)).next()) {}

  std::uint64_t next() {
    std::uint64_t z = (state_ += 0x9e3779b97f4a7c15ULL);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ULL;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebULL;
    return z ^ (z >> 31);
  }

  // From `least` to `most`, both included.
  std::int64_t between(std::int64_t least, std::int64_t most) {
    return least + static_cast<std::int64_t>(next() % static_cast<std::uint64_t>(most - least + 1));
  }

  bool one_in(std::int64_t n) { return between(1, n) == 1; }

 private:
  std::uint64_t state_;
};

}  // namespace lockstep::simulation

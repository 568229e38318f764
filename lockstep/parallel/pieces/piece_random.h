// The random numbers of one piece, the same wherever it is computed.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>

#include <cstdint>

namespace lockstep {

// While it lives, LibTorch's default CPU generator is ours; then it is what it was before.
class PieceRandom {
 public:
  PieceRandom();
  ~PieceRandom();
  PieceRandom(const PieceRandom&) = delete;
  PieceRandom& operator=(const PieceRandom&) = delete;

  // The numbers from now on follow from these alone.
  void begin(std::uint64_t seed, std::int64_t step, int piece);

 private:
  at::Generator generator_;
  const at::Tensor before_;
};

}  // namespace lockstep

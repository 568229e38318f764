// The random numbers of one piece, equal on every rank that may compute it.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>

#include <cstdint>

namespace lockstep {

// Takes over LibTorch's default CPU generator. The destructor restores its earlier state.
class PieceRandom {
 public:
  PieceRandom();
  ~PieceRandom();
  PieceRandom(const PieceRandom&) = delete;
  PieceRandom& operator=(const PieceRandom&) = delete;

  // Restarts the generator; the numbers depend only on these three values.
  void begin(std::uint64_t seed, std::int64_t step, int piece);

 private:
  at::Generator generator_;
  const at::Tensor before_;
};

}  // namespace lockstep

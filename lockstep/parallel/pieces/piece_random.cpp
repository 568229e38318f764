// SPDX-License-Identifier: Apache-2.0
#include "lockstep/parallel/pieces/piece_random.h"

#include <ATen/CPUGeneratorImpl.h>

#include <array>
#include <mutex>

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace lockstep {
namespace {

at::Tensor random_state_of(at::Generator generator) {
  const std::lock_guard lock(generator.mutex());
  return generator.get_state();
}

}  // namespace

PieceRandom::PieceRandom()
    : generator_(at::detail::getDefaultCPUGenerator()), before_(random_state_of(generator_)) {}

PieceRandom::~PieceRandom() {
  const std::lock_guard lock(generator_.mutex());
  generator_.set_state(before_);
}

// The key is hashed, because LibTorch's Mersenne twister uses only 32 bits of the seed and
// neighbours must differ in them.
void PieceRandom::begin(std::uint64_t seed, std::int64_t step, int piece) {
  const std::array<std::uint64_t, 3> key{seed, static_cast<std::uint64_t>(step),
                                         static_cast<std::uint64_t>(piece)};
  const std::lock_guard lock(generator_.mutex());
  generator_.set_current_seed(XXH3_64bits(key.data(), sizeof key));
}

}  // namespace lockstep

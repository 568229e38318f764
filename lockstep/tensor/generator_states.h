// The states of random generators, for drawing the same numbers again.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <utility>
#include <vector>

namespace lockstep {

using Generators = std::vector<at::Generator>;

// Thread safety: locks each generator.
class GeneratorStates {
 public:
  explicit GeneratorStates(const Generators& generators);
  void restore() const;

 private:
  std::vector<std::pair<at::Generator, at::Tensor>> states_;
};

// Thread safety: any thread may call it.
at::Tensor default_generator_state();

// Errors: c10::Error if `state` does not belong to this LibTorch's generators.
void set_default_generator_state(const at::Tensor& state);

// Draws a number from LibTorch's default CPU generator, which so stays in step on all ranks.
// Derives a seed for `place`, such as a rank. Frozen: it determines the masks of a resumed
// training. Thread safety: any thread may call it.
std::uint64_t drawn_seed(std::uint64_t place);

// Its destructor restores LibTorch's default CPU generator.
class KeptGenerator {
 public:
  KeptGenerator();
  ~KeptGenerator() { restore(); }
  KeptGenerator(const KeptGenerator&) = delete;
  KeptGenerator& operator=(const KeptGenerator&) = delete;

  void restore() const { state_.restore(); }

 private:
  const GeneratorStates state_;
};

}  // namespace lockstep

// States of random generators, for repeating their numbers.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <utility>
#include <vector>

#include "lockstep/base/api.h"

namespace lockstep {

using Generators = std::vector<at::Generator>;

// Thread safety: locks each generator.
class LOCKSTEP_API GeneratorStates {
 public:
  explicit GeneratorStates(const Generators& generators);
  void restore() const;

 private:
  std::vector<std::pair<at::Generator, at::Tensor>> states_;
};

// Thread safety: full.
at::Tensor default_generator_state();

// Errors: c10::Error for another LibTorch's state.
void set_default_generator_state(const at::Tensor& state);

// A seed for `place`, such as a rank, from a number that LibTorch's default CPU generator draws.
// That generator stays equal on all ranks. Frozen: resumed trainings draw the same dropout masks.
// Thread safety: full.
std::uint64_t drawn_seed(std::uint64_t place);

// The destructor restores LibTorch's default CPU generator.
class LOCKSTEP_API KeptGenerator {
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

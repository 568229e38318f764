// SPDX-License-Identifier: Apache-2.0
#include "lockstep/tensor/generator_states.h"

#include <ATen/CPUGeneratorImpl.h>

#include <mutex>

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace lockstep {

GeneratorStates::GeneratorStates(const Generators& generators) {
  for (at::Generator generator : generators) {
    const std::lock_guard lock(generator.mutex());
    states_.emplace_back(generator, generator.get_state());
  }
}

void GeneratorStates::restore() const {
  for (auto [generator, state] : states_) {
    const std::lock_guard lock(generator.mutex());
    generator.set_state(state);
  }
}

at::Tensor default_generator_state() {
  at::Generator generator = at::detail::getDefaultCPUGenerator();
  const std::lock_guard lock(generator.mutex());
  return generator.get_state();
}

void set_default_generator_state(const at::Tensor& state) {
  at::Generator generator = at::detail::getDefaultCPUGenerator();
  const std::lock_guard lock(generator.mutex());
  generator.set_state(state);
}

std::uint64_t drawn_seed(std::uint64_t place) {
  at::Generator shared = at::detail::getDefaultCPUGenerator();
  std::uint64_t drawn = 0;
  {
    const std::lock_guard lock(shared.mutex());
    drawn = at::check_generator<at::CPUGeneratorImpl>(shared)->random64();
  }
  return XXH3_64bits_withSeed(&drawn, sizeof drawn, static_cast<XXH64_hash_t>(place));
}

KeptGenerator::KeptGenerator() : state_({at::detail::getDefaultCPUGenerator()}) {}

}  // namespace lockstep

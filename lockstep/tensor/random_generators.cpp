// SPDX-License-Identifier: Apache-2.0
#include "lockstep/tensor/random_generators.h"

#include <ATen/CPUGeneratorImpl.h>

#include <mutex>
#include <string>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "lockstep/base/error.h"
#include "lockstep/comm/process_group.h"

namespace lockstep {
namespace {

std::string name_of(int rank) { return "rank." + std::to_string(rank); }

at::Tensor current_state() {
  at::Generator generator = at::detail::getDefaultCPUGenerator();
  const std::lock_guard lock(generator.mutex());
  return generator.get_state();
}

void require_accepted(bool ok, const std::string& name) {
  require(ok, [&] {
    return "RandomGenerators: '" + name + "' is not the state of a generator of this LibTorch";
  });
}

void restore(const at::Tensor& state, const std::string& name) {
  at::Generator generator = at::detail::getDefaultCPUGenerator();
  const std::lock_guard lock(generator.mutex());
  try {
    generator.set_state(state);
  } catch (const c10::Error&) {
    require_accepted(false, name);
  }
}

// Frozen, because it determines the numbers that a resumed training draws. LibTorch's Mersenne
// twister uses only the low 32 bits.
std::uint64_t seed_of(const at::Tensor& state_of_rank_0, int rank) {
  return XXH3_64bits_withSeed(state_of_rank_0.const_data_ptr(), state_of_rank_0.nbytes(),
                              static_cast<XXH64_hash_t>(rank));
}

}  // namespace

RandomGenerators::RandomGenerators(const ProcessGroup& group) : rank_(group.rank()) {}

StateDict RandomGenerators::state_dict() {
  return {.tensors = {{name_of(rank_), whole(current_state())}}, .values = {}};
}

StateRequest RandomGenerators::wanted(const StateDict& saved) {
  const std::string name = name_of(saved.tensors.contains(name_of(rank_)) ? rank_ : 0);
  const auto found = saved.tensors.find(name);
  require(found != saved.tensors.end(), "RandomGenerators: the saved state has no '" + name + "'");
  const at::Tensor ours = current_state();
  const at::Tensor& theirs = found->second.data;
  require_accepted(theirs.scalar_type() == ours.scalar_type() && theirs.sizes() == ours.sizes(),
                   name);
  return {{name, {0, theirs.numel()}}};
}

void RandomGenerators::load_state_dict(StateDict state) {
  if (const auto own = state.tensors.find(name_of(rank_)); own != state.tensors.end())
    return restore(own->second.data, own->first);
  const auto first = state.tensors.find(name_of(0));
  require(first != state.tensors.end(), "RandomGenerators: no state of rank 0 was loaded");
  at::Generator generator = at::detail::getDefaultCPUGenerator();
  const std::lock_guard lock(generator.mutex());
  generator.set_current_seed(seed_of(first->second.data.contiguous(), rank_));
}

}  // namespace lockstep

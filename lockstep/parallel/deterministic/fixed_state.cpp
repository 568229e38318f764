// SPDX-License-Identifier: Apache-2.0
#include "lockstep/parallel/deterministic/fixed_state.h"

#include <ATen/CPUGeneratorImpl.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/instancenorm.h>

#include <array>
#include <mutex>
#include <string>

#include "lockstep/base/error.h"
#include "lockstep/base/hash.h"
#include "lockstep/nn/sync_batch_norm.h"
#include "lockstep/tensor/named_tensors.h"
#include "lockstep/tensor/tensor_memory.h"

namespace lockstep::parallel {
namespace {

template <class Layer>
bool tracks(const torch::nn::Module& module) {
  const auto* layer = dynamic_cast<const Layer*>(&module);
  return layer != nullptr && layer->options.track_running_stats();
}

bool follows_samples(const torch::nn::Module& module) {
  namespace nn = torch::nn;
  return dynamic_cast<const SyncBatchNormImpl*>(&module) != nullptr ||
         tracks<nn::BatchNorm1dImpl>(module) || tracks<nn::BatchNorm2dImpl>(module) ||
         tracks<nn::BatchNorm3dImpl>(module) || tracks<nn::InstanceNorm1dImpl>(module) ||
         tracks<nn::InstanceNorm2dImpl>(module) || tracks<nn::InstanceNorm3dImpl>(module);
}

bool has_any(const torch::nn::Module& module) {
  for (const auto& layer : module.modules(/*include_self=*/false))
    if (layer->is_training() && follows_samples(*layer)) return true;
  return module.is_training() && follows_samples(module);
}

}  // namespace

void require_fixed_statistics(const torch::nn::Module& module) {
  if (!has_any(module)) return;
  std::string names;
  for (const auto& entry : module.named_modules({}, /*include_self=*/false))
    if (entry.value()->is_training() && follows_samples(*entry.value()))
      names += (names.empty() ? "" : ", ") + entry.key();
  throw Error(Fault::unsupported,
              "with deterministic, no layer may take statistics from its samples in training: " +
                  (names.empty() ? "the module itself does" : names) +
                  ". Use GroupNorm or LayerNorm, or call eval() on these layers");
}

std::vector<std::uint64_t> fingerprints_of(const torch::nn::Module& module) {
  std::vector<std::uint64_t> fingerprints;
  for (const auto& [name, parameter] : named_parameters(module))
    fingerprints.push_back(static_cast<std::uint64_t>(parameter._version()));
  for (const auto& [name, buffer] : named_buffers(module))
    fingerprints.push_back(digest_of(buffer));
  return fingerprints;
}

// Hashed: neighbours must differ in the seed's 32 bits that the Mersenne twister uses.
void MicrobatchRandom::begin(std::uint64_t seed, std::int64_t step, int microbatch) {
  const std::array<std::uint64_t, 3> key{seed, static_cast<std::uint64_t>(step),
                                         static_cast<std::uint64_t>(microbatch)};
  at::Generator generator = at::detail::getDefaultCPUGenerator();
  const std::lock_guard lock(generator.mutex());
  generator.set_current_seed(hash_of_elements(key));
}

}  // namespace lockstep::parallel

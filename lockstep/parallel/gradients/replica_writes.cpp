// SPDX-License-Identifier: Apache-2.0
#include "lockstep/parallel/gradients/replica_writes.h"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <utility>

namespace lockstep::parallel {
namespace {

std::uint32_t writes_so_far(const at::Tensor& parameter) {
  const c10::VariableVersion& version = parameter.unsafeGetTensorImpl()->version_counter();
  return version.enabled() ? version.current_version() : 0;
}

// FNV-1a over whole words.
void mix(std::uint64_t& digest, std::uint64_t word) { digest = (digest ^ word) * 0x100000001b3; }

// One element's bytes, equal on all ranks, whatever their memory formats.
std::uint64_t element_of(const at::Tensor& parameter, std::int64_t pass) {
  if (parameter.numel() == 0 || !parameter.is_cpu()) return 0;
  constexpr std::int64_t stride = 7919;  // Prime, so that passes cover all elements.
  std::int64_t rest = pass * stride % parameter.numel();
  std::int64_t offset = 0;
  for (std::int64_t dim = parameter.dim() - 1; dim >= 0; --dim) {
    offset += rest % parameter.size(dim) * parameter.stride(dim);
    rest /= parameter.size(dim);
  }
  const auto size = static_cast<std::size_t>(parameter.element_size());
  const auto* const data = static_cast<const std::byte*>(parameter.const_data_ptr());
  std::uint64_t bytes = 0;
  std::memcpy(&bytes, data + static_cast<std::size_t>(offset) * size, std::min(sizeof bytes, size));
  return bytes;
}

}  // namespace

WriteCounts::WriteCounts(const NamedTensors& parameters) : parameters_(parameters) {
  for (const auto& [name, parameter] : parameters)
    seen_.push_back({writes_so_far(parameter), parameter.const_data_ptr()});
}

ReplicaWrites WriteCounts::count(std::int64_t pass) {
  ReplicaWrites writes;
  for (std::size_t i = 0; i < seen_.size(); ++i) {
    const at::Tensor& parameter = parameters_[i].second;
    const Seen now{writes_so_far(parameter), parameter.const_data_ptr()};
    const Seen before = std::exchange(seen_[i], now);
    const std::uint32_t since = now.writes - before.writes + (now.data != before.data ? 1 : 0);
    writes.count += since;
    mix(writes.pattern, since);
    mix(writes.weights, element_of(parameter, pass));
  }
  return writes;
}

}  // namespace lockstep::parallel

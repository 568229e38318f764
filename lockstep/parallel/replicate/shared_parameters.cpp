// SPDX-License-Identifier: Apache-2.0
#include "lockstep/parallel/replicate/shared_parameters.h"

#include <ATen/core/grad_mode.h>

#include <atomic>
#include <exception>

#include "lockstep/base/error.h"
#include "lockstep/base/memory.h"
#include "lockstep/comm/sharing_ranks.h"
#include "lockstep/parallel/gradients/gradient_memory.h"
#include "lockstep/parallel/replicate/replicas.h"
#include "lockstep/tensor/collectives.h"
#include "lockstep/tensor/tensor_memory.h"

namespace lockstep::parallel {
namespace {

constexpr std::size_t counter_bytes = padded(sizeof(std::uint64_t));

std::uint32_t version_of(const at::Tensor& parameter) {
  return static_cast<std::uint32_t>(parameter._version());
}

bool lie_together(const at::Tensor& a, const at::Tensor& b) {
  const auto begin = [](const at::Tensor& tensor) {
    return static_cast<std::size_t>(tensor.storage_offset()) * tensor.element_size();
  };
  return a.numel() > 0 && b.numel() > 0 && begin(a) < begin(b) + b.nbytes() &&
         begin(b) < begin(a) + a.nbytes();
}

}  // namespace

SharedParameters::SharedParameters(const NamedTensors& parameters, const ProcessGroup& group)
    : group_(group) {
  if (group.local_size() != group.size())
    throw Error(
        Fault::unsupported,
        "share_parameters: the group's ranks are on several hosts, which share no memory: use "
        "ZeroRedundancyOptimizer there");
  if (!all_share_memory(group, "share_parameters"))
    throw Error(Fault::unsupported,
                "share_parameters: an engine moves all bytes (LOCKSTEP_BACKEND), so even the ranks "
                "of one host share no memory: leave the engine to hosts, as in shm+gloo");
  lay_out(parameters);
  const at::NoGradGuard no_grad;
  for (const Place& place : places_) {
    const at::Tensor shared = view(place);
    // Parts of one tensor, with one version counter, become separate.
    place.parameter.unsafeGetTensorImpl()->set_version_counter(
        c10::VariableVersion(version_of(place.parameter)));
    if (place.parameter.is_meta()) {
      move_from_meta(place.parameter, shared);
      continue;
    }
    if (group.rank() == 0) shared.copy_(place.parameter.detach());
    place.parameter.set_data(shared);
  }
  group.barrier();
  for (Place& place : places_) place.version = version_of(place.parameter);
}

void SharedParameters::lay_out(const NamedTensors& parameters) {
  std::size_t offset = counter_bytes * static_cast<std::size_t>(group_.size());
  for (const auto& [name, parameter] : parameters) {
    if (!indices_.emplace(parameter.unsafeGetTensorImpl(), places_.size()).second) continue;
    if (!parameter.is_cpu() && !parameter.is_meta())
      throw Error(Fault::unsupported, "share_parameters: " + name + " is on " +
                                          parameter.device().str() + ", and not in CPU memory");
    for (const Place& place : places_)
      if (parameter.is_alias_of(place.parameter) && lie_together(parameter, place.parameter))
        throw Error(Fault::unsupported, "share_parameters: " + name + " lies in the memory of " +
                                            place.name +
                                            " but is another tensor: use one tensor for both");
    places_.push_back({name, parameter, offset, parameter.scalar_type(), parameter.sizes().vec(),
                       dense_strides(parameter)});
    offset += padded(parameter.nbytes());
  }
  memory_ = shared_block(group_.allocate_shared(offset));
}

std::uint64_t& SharedParameters::count_of(int rank) const {
  auto* const begin = static_cast<std::byte*>(memory_.data());
  return *reinterpret_cast<std::uint64_t*>(begin + counter_bytes * static_cast<std::size_t>(rank));
}

void SharedParameters::count() {
  std::atomic_ref(count_of(group_.rank())).fetch_add(1, std::memory_order_acq_rel);
}

at::Tensor SharedParameters::view(const Place& place) const {
  return view_of(memory_, place.offset, place.sizes, place.strides, place.dtype);
}

bool SharedParameters::is_partially_updated() const {
  const auto load = [&](int rank) {
    return std::atomic_ref(count_of(rank)).load(std::memory_order_acquire);
  };
  const std::uint64_t first = load(0);
  for (int rank = 1; rank < group_.size(); ++rank)
    if (load(rank) != first) return true;
  return first % 2 != 0;
}

void SharedParameters::note_written(const at::Tensor& parameter) {
  Place& place = places_[index_of(parameter)];
  parameter.unsafeGetTensorImpl()->bump_version();
  place.version = version_of(parameter);
}

bool SharedParameters::is_laid_out(const Place& place) {
  return place.parameter.scalar_type() == place.dtype && place.parameter.sizes() == place.sizes &&
         has_strides(place.parameter, place.strides);
}

void SharedParameters::require_intact() const {
  require(!editing_, "call forward() and step() after edit_parameters(), not within it");
  for (const Place& place : places_) {
    const at::Tensor& parameter = place.parameter;
    const auto* const address = static_cast<const std::byte*>(memory_.data()) + place.offset;
    const bool is_there = parameter.numel() == 0 || parameter.data_ptr() == address;
    require(is_there && is_laid_out(place), [&] {
      return "parameter " + place.name +
             " is shared by all ranks but now lies in other memory: call to() and set_data() "
             "before "
             "DistributedDataParallel is made, or within edit_parameters()";
    });
    require(version_of(parameter) == place.version, [&] {
      return "parameter " + place.name +
             " is shared by all ranks but was written to in place, or by an optimizer other than "
             "SharedOptimizer: write to it within edit_parameters()";
    });
  }
  if (is_partially_updated())
    throw Error(Fault::corrupt,
                "the weights are partially updated: a rank was lost, or threw, while they were "
                "stepped. Make a new "
                "group and DistributedDataParallel, and load a checkpoint");
}

void SharedParameters::with_gathered(const std::vector<at::Tensor>& parameters,
                                     const std::function<void()>& use) {
  for (const at::Tensor& parameter : parameters) require_shared(parameter);
  use();
  require_intact();
}

std::exception_ptr SharedParameters::edit(std::string_view call,
                                          const std::function<void()>& change) {
  group_.barrier({.label = call});  // Other ranks may still read.
  if (group_.rank() == 0) count();  // Partially updated until the end of this call.
  const std::exception_ptr error = attempt_on_rank_0(group_, call, [&] { change_here(change); });
  count();
  if (group_.rank() != 0) count();
  for (const Place& place : places_) note_written(place.parameter);
  group_.barrier();
  return error;
}

void SharedParameters::change_here(const std::function<void()>& change) {
  std::exception_ptr error;
  editing_ = true;
  try {
    change();
  } catch (...) {
    error = std::current_exception();
  }
  editing_ = false;
  for (Place& place : places_) {
    const at::Tensor shared = view(place);
    if (place.parameter.data_ptr() == shared.data_ptr()) continue;
    const bool fits =
        place.parameter.scalar_type() == place.dtype && place.parameter.sizes() == place.sizes;
    if (!error && !fits)
      error = std::make_exception_ptr(Error(
          Fault::misuse, "parameter " + place.name + " has another type or shape than before"));
    const at::NoGradGuard no_grad;
    if (!error) shared.copy_(place.parameter.detach());
    place.parameter.set_data(shared);
  }
  if (error) std::rethrow_exception(error);
}

std::size_t SharedParameters::index_of(const at::Tensor& parameter) const {
  const auto found = indices_.find(parameter.unsafeGetTensorImpl());
  require(found != indices_.end(),
          "the optimizer has a parameter that DistributedDataParallel does not share");
  return found->second;
}

void SharedParameters::require_shared(const at::Tensor& tensor) const { index_of(tensor); }

std::vector<Shard> SharedParameters::frozen_shards(const at::Tensor& parameter) const {
  index_of(parameter);
  if (parameter.numel() == 0) return {};
  return {{.begin = 0, .end = parameter.numel(), .owner = 0}};
}

void SharedParameters::settle_step(const std::vector<at::Tensor>& written) {
  for (const at::Tensor& parameter : written) note_written(parameter);
}

at::Tensor SharedParameters::fragment(const at::Tensor& parameter, std::int64_t begin,
                                      std::int64_t end) const {
  const Place& place = places_[index_of(parameter)];
  const std::size_t skipped = static_cast<std::size_t>(begin) * parameter.element_size();
  return view_of(memory_, place.offset + skipped, {end - begin}, {1}, place.dtype);
}

}  // namespace lockstep::parallel

// SPDX-License-Identifier: Apache-2.0
#include "lockstep/parallel/shared_parameters.h"

#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <atomic>
#include <exception>

#include "lockstep/comm/error.h"
#include "lockstep/parallel/on_rank_0.h"
#include "lockstep/parallel/padded.h"
#include "lockstep/tensor/collectives.h"
#include "lockstep/tensor/strides.h"

namespace lockstep {
namespace {

constexpr std::size_t counter_bytes = padded(sizeof(std::uint64_t));

}  // namespace

SharedParameters::SharedParameters(const NamedTensors& parameters, const ProcessGroup& group)
    : group_(group) {
  std::size_t offset = counter_bytes * static_cast<std::size_t>(group.size());
  for (const auto& [name, parameter] : parameters) {
    const auto is_this = [&](const Place& place) { return place.parameter.is_same(parameter); };
    if (std::any_of(places_.begin(), places_.end(), is_this)) continue;
    if (!parameter.is_cpu())
      throw Error(Fault::unsupported, "share_parameters: " + name + " is not in CPU memory");
    places_.push_back({name, parameter, offset, parameter.scalar_type(), parameter.sizes().vec(),
                       dense_strides(parameter)});
    offset += padded(parameter.nbytes());
  }
  memory_ = group.allocate_shared(offset);
  const at::NoGradGuard no_grad;
  for (const Place& place : places_) {
    const at::Tensor shared = view(place);
    if (group.rank() == 0) shared.copy_(place.parameter.detach());
    place.parameter.set_data(shared);
  }
  group.barrier();
  remember_versions();
}

std::uint64_t& SharedParameters::steps_of(int rank) const {
  auto* const begin = static_cast<std::byte*>(memory_.data());
  return *reinterpret_cast<std::uint64_t*>(begin + counter_bytes * static_cast<std::size_t>(rank));
}

at::Tensor SharedParameters::view(const Place& place) const {
  return view_of(memory_, place.offset, place.sizes, place.strides, place.dtype);
}

void SharedParameters::remember_versions() {
  for (Place& place : places_)
    place.version = static_cast<std::uint32_t>(place.parameter._version());
}

bool SharedParameters::is_torn() const {
  const auto steps = [&](int rank) {
    return std::atomic_ref(steps_of(rank)).load(std::memory_order_acquire);
  };
  for (int rank = 1; rank < group_.size(); ++rank)
    if (steps(rank) != steps(0)) return true;
  return false;
}

void SharedParameters::complete_step() {
  std::atomic_ref(steps_of(group_.rank())).fetch_add(1, std::memory_order_release);
}

void SharedParameters::note_step() {
  for (const Place& place : places_) place.parameter.unsafeGetTensorImpl()->bump_version();
  remember_versions();
}

bool SharedParameters::is_laid_out(const Place& place) {
  return place.parameter.scalar_type() == place.dtype && place.parameter.sizes() == place.sizes &&
         has_strides(place.parameter, place.strides);
}

void SharedParameters::require_intact() const {
  for (const Place& place : places_) {
    const at::Tensor& parameter = place.parameter;
    const auto* const address = static_cast<const std::byte*>(memory_.data()) + place.offset;
    const bool is_there = parameter.numel() == 0 || parameter.data_ptr() == address;
    require(is_there && is_laid_out(place), [&] {
      return "parameter " + place.name +
             " is shared by all ranks but lies in other memory by now: to() and set_data() are for "
             "before DistributedDataParallel is made, or for its edit_parameters()";
    });
    require(static_cast<std::uint32_t>(parameter._version()) == place.version, [&] {
      return "parameter " + place.name +
             " is shared by all ranks but was written to, by an optimizer that is no "
             "SharedOptimizer or in place: edit_parameters() is for that";
    });
  }
  if (is_torn())
    throw Error(Fault::corrupt,
                "the weights are torn: a rank was lost while they were stepped. Load a checkpoint");
}

void SharedParameters::edit(const std::function<void()>& change) {
  group_.barrier({.tag = "edit_parameters"});  // Nobody reads what is written now.
  if (group_.rank() == 0) complete_step();     // Torn until the others have, too.
  const std::exception_ptr error =
      attempt_on_rank_0(group_, "edit_parameters()", [&] { change_here(change); });
  if (group_.rank() != 0) complete_step();
  remember_versions();
  group_.barrier();
  if (error) std::rethrow_exception(error);
}

void SharedParameters::change_here(const std::function<void()>& change) {
  std::exception_ptr error;
  try {
    change();
  } catch (...) {
    error = std::current_exception();
  }
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

const SharedParameters::Place& SharedParameters::place_of(const at::Tensor& parameter) const {
  const auto found = std::find_if(places_.begin(), places_.end(), [&](const Place& place) {
    return place.parameter.is_same(parameter);
  });
  require(found != places_.end(),
          "a parameter of the optimizer is none of those that DistributedDataParallel shares");
  return *found;
}

const std::vector<at::Tensor>& SharedParameters::require_shared(
    const std::vector<at::Tensor>& tensors) const {
  for (const at::Tensor& tensor : tensors) place_of(tensor);
  return tensors;
}

at::Tensor SharedParameters::fragment(const at::Tensor& parameter, std::int64_t begin,
                                      std::int64_t end) const {
  const Place& place = place_of(parameter);
  const std::size_t skipped = static_cast<std::size_t>(begin) * parameter.element_size();
  return view_of(memory_, place.offset + skipped, {end - begin}, {1}, place.dtype);
}

}  // namespace lockstep

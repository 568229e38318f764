// SPDX-License-Identifier: Apache-2.0
#include "lockstep/parallel/fully_sharded/offloaded_parameters.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/base/memory.h"

namespace lockstep::parallel {
namespace {

c10::impl::VirtualGuardImpl guard_of(c10::Device device) {
  return c10::impl::VirtualGuardImpl(device.type());
}

UnitSource::Memory memory_on(c10::Device device, std::size_t bytes) {
  const auto tensor = std::make_shared<const at::Tensor>(at::empty(
      {static_cast<std::int64_t>(bytes)}, at::TensorOptions().dtype(at::kByte).device(device)));
  return {static_cast<std::byte*>(tensor->mutable_data_ptr()), tensor};
}

}  // namespace

OffloadedParameters::OffloadedParameters(const NamedTensors& parameters,
                                         const std::vector<Unit>& units, std::size_t resident_units,
                                         c10::Device device, const MakeStore& make_store)
    : device_(device), copies_(guard_of(device).getStreamFromGlobalPool(device)) {
  NamedTensors on_host;
  for (const auto& [name, parameter] : parameters) {
    const at::Tensor host =
        parameter.variable_data().contiguous().set_requires_grad(parameter.requires_grad());
    on_host.emplace_back(name, host);
    on_hosts_.emplace(parameter.unsafeGetTensorImpl(), host);
  }
  store_ = make_store(on_host);
  std::vector<TouchedUnits::Unit> touched;
  std::size_t bytes_of_slot = 0;
  for (const auto& [name, indices] : units) {
    TouchedUnits::Unit& unit = touched.emplace_back(TouchedUnits::Unit{.name = name});
    for (const std::size_t i : indices) {
      unit.members.push_back({parameters[i].first, parameters[i].second, unit.bytes});
      unit.bytes += padded(parameters[i].second.nbytes());
    }
    bytes_of_slot = std::max(bytes_of_slot, unit.bytes);
    copied_.emplace_back();
  }
  const std::size_t slots = std::min(resident_units, units.size());
  for (std::size_t i = 0; i < slots; ++i) slots_.push_back(memory_on(device, bytes_of_slot));
  touched_.emplace(std::move(touched), slots, device, static_cast<UnitSource&>(*this));
}

// The thread may wait in the store for ranks that wait for this one.
OffloadedParameters::~OffloadedParameters() {
  if (touched_ && touched_->busy()) store_->abandon(destroyed_in_a_pass);
}

at::Tensor OffloadedParameters::host_of(const at::Tensor& parameter) const {
  const auto found = on_hosts_.find(parameter.unsafeGetTensorImpl());
  require(found != on_hosts_.end(),
          "the optimizer has a parameter that FullyShardedDataParallel does not share");
  return found->second;
}

void OffloadedParameters::require_shared(const at::Tensor& tensor) const { host_of(tensor); }

std::vector<Shard> OffloadedParameters::frozen_shards(const at::Tensor& parameter) const {
  return store_->frozen_shards(host_of(parameter));
}

at::Tensor OffloadedParameters::fragment(const at::Tensor& parameter, std::int64_t begin,
                                         std::int64_t end) const {
  return store_->fragment(host_of(parameter), begin, end);
}

// Units first: their thread may use the host's store.

void OffloadedParameters::require_intact() const {
  touched_->require_intact();
  store_->require_intact();
}

void OffloadedParameters::begin_pass(bool with_gradients) {
  touched_->begin_pass(with_gradients);
  store_->begin_pass(with_gradients);
}

void OffloadedParameters::end_evaluation() noexcept {
  touched_->end_evaluation();
  store_->end_evaluation();
}

void OffloadedParameters::end_pass() noexcept {
  touched_->end_pass();
  store_->end_pass();
}

std::function<void()> OffloadedParameters::filling(std::size_t unit, const Memory& to) {
  auto used = std::make_shared<c10::Event>(device_.type());
  used->record(guard_of(device_).getStream(device_));
  return [this, unit, to, used] {
    const at::NoGradGuard no_grad;
    const c10::StreamGuard guard(copies_);
    used->block(copies_);
    for (const TouchedUnits::Member& member : touched_->units()[unit].members)
      tensor_at(to, member).copy_(host_of(member.parameter));
    copied_[unit].emplace(device_.type());
    copied_[unit]->record(copies_);
  };
}

void OffloadedParameters::after_filling(std::size_t unit) {
  copied_[unit]->block(guard_of(device_).getStream(device_));
}

at::Tensor OffloadedParameters::tensor_at(const Memory& memory,
                                          const TouchedUnits::Member& member) const {
  return at::from_blob(
      memory.data + member.offset, member.watched.sizes(), [](void*) {},
      at::TensorOptions().dtype(member.watched.scalar_type()).device(device_), device_);
}

void OffloadedParameters::with_gathered(const std::vector<at::Tensor>& parameters,
                                        const std::function<void()>& use) {
  touched_->require_intact();
  std::vector<at::Tensor> on_host;
  for (const at::Tensor& parameter : parameters) on_host.push_back(host_of(parameter));
  store_->with_gathered(on_host, [&] {
    touched_->lend(
        parameters, [this](std::size_t bytes) { return memory_on(device_, bytes); }, use);
  });
}

std::exception_ptr OffloadedParameters::edit(std::string_view call,
                                             const std::function<void()>& change) {
  touched_->forget();
  const std::exception_ptr error = store_->edit(call, [&] { touched_->edit(change); });
  touched_->note_written();
  return error;
}

void OffloadedParameters::bring(std::size_t unit, const Memory& to) {
  filling(unit, to)();
  after_filling(unit);
}

void OffloadedParameters::take_back(std::size_t unit, const Memory& from) {
  for (const TouchedUnits::Member& member : touched_->units()[unit].members)
    host_of(member.parameter).copy_(tensor_at(from, member));
}

void OffloadedParameters::begin_step() {
  touched_->forget();
  store_->begin_step();
}

void OffloadedParameters::settle_step(const std::vector<at::Tensor>& written) {
  std::vector<at::Tensor> on_host;
  for (const at::Tensor& parameter : written) on_host.push_back(host_of(parameter));
  store_->settle_step(on_host);
  touched_->note_written();
}

}  // namespace lockstep::parallel

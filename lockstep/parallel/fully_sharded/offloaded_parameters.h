// The parameters of a fully sharded module on a device, which has slots for a few units. Another
// store keeps them in the hosts' memory. When an operator uses a parameter, a separate stream
// copies its unit into a slot.
//
// Thread safety: as GatheredParameters.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/core/Event.h>
#include <c10/core/Stream.h>

#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "lockstep/parallel/fully_sharded/sharded_units.h"
#include "lockstep/parallel/fully_sharded/touched_units.h"
#include "lockstep/parallel/replicate/parameter_store.h"
#include "lockstep/tensor/named_tensors.h"

namespace lockstep::parallel {

class OffloadedParameters final : public ParameterStore, private UnitSource {
 public:
  using MakeStore = std::function<std::shared_ptr<ParameterStore>(const NamedTensors& on_host)>;

  // Collective if `make_store` is. Moves distinct `parameters` to `device`.
  OffloadedParameters(const NamedTensors& parameters, const std::vector<Unit>& units,
                      std::size_t resident_units, c10::Device device, const MakeStore& make_store);

  void require_intact() const override;
  bool is_partially_updated() const override { return store_->is_partially_updated(); }
  ~OffloadedParameters() override;

  void begin_pass(bool with_gradients) override;
  void end_evaluation() noexcept override;
  void end_pass() noexcept override;
  void with_gathered(const std::vector<at::Tensor>& parameters,
                     const std::function<void()>& use) override;

  std::exception_ptr edit(std::string_view call, const std::function<void()>& change) override;
  void require_shared(const at::Tensor& tensor) const override;
  std::vector<Shard> frozen_shards(const at::Tensor& parameter) const override;

  // In the host's memory.
  at::Tensor fragment(const at::Tensor& parameter, std::int64_t begin,
                      std::int64_t end) const override;
  at::Tensor on_host(const at::Tensor& parameter) const override { return host_of(parameter); }
  void begin_step() override;
  void end_step() override { store_->end_step(); }
  void settle_step(const std::vector<at::Tensor>& written) override;
  bool abandon(std::string_view reason) noexcept override { return store_->abandon(reason); }

 private:
  at::Tensor host_of(const at::Tensor& parameter) const;

  Memory slot(std::size_t number) const override { return slots_[number]; }
  std::function<void()> filling(std::size_t unit, const Memory& to) override;
  void after_filling(std::size_t unit) override;
  void bring(std::size_t unit, const Memory& to) override;
  void take_back(std::size_t unit, const Memory& from) override;
  at::Tensor tensor_at(const Memory& memory, const TouchedUnits::Member& member) const;

  const c10::Device device_;
  const c10::Stream copies_;
  std::unordered_map<const void*, at::Tensor> on_hosts_;  // By TensorImpl.
  std::vector<std::optional<c10::Event>> copied_;         // By unit.
  std::vector<Memory> slots_;
  std::shared_ptr<ParameterStore> store_;
  std::optional<TouchedUnits> touched_;  // Last: its thread uses the other members.
};

}  // namespace lockstep::parallel

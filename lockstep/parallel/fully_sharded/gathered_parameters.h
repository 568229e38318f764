// The parameters of a module that is fully sharded across hosts (docs/internals/fully-sharded.md).
// If ranks use units in different orders, gathers throw mismatch on all ranks.
//
// Thread safety: none, but operators may run on autograd's threads.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "lockstep/comm/process_group.h"
#include "lockstep/parallel/fully_sharded/sharded_units.h"
#include "lockstep/parallel/fully_sharded/touched_units.h"
#include "lockstep/parallel/replicate/parameter_store.h"
#include "lockstep/parallel/shared_parameters/host_groups.h"
#include "lockstep/parallel/shared_parameters/slice_layout.h"
#include "lockstep/tensor/named_tensors.h"

namespace lockstep::parallel {

class GatheredParameters final : public ParameterStore, private UnitSource {
 public:
  // Collective: cuts rank 0's values of distinct `parameters` into the ranks' slices of `units`.
  // Means of gradients have the same slices (GradientSlices).
  // Errors: unsupported for parameters neither in CPU memory nor on meta; system if a host has too
  // little memory.
  GatheredParameters(const NamedTensors& parameters, const std::vector<Unit>& units,
                     std::size_t resident_units, HostGroups groups);
  ~GatheredParameters() override;

  void require_intact() const override;
  bool is_partially_updated() const override { return is_partially_updated_; }
  void begin_pass(bool with_gradients) override { touched_->begin_pass(with_gradients); }
  void end_evaluation() noexcept override { touched_->end_evaluation(); }
  void end_pass() noexcept override { touched_->end_pass(); }
  void with_gathered(const std::vector<at::Tensor>& parameters,
                     const std::function<void()>& use) override;
  std::exception_ptr edit(std::string_view call, const std::function<void()>& change) override;
  void require_shared(const at::Tensor& tensor) const override;
  std::vector<Shard> frozen_shards(const at::Tensor& parameter) const override;
  at::Tensor fragment(const at::Tensor& parameter, std::int64_t begin,
                      std::int64_t end) const override;
  void begin_step() override;
  void end_step() override {}
  void settle_step(const std::vector<at::Tensor>& written) override;
  bool abandon(std::string_view reason) noexcept override;

  // Bytes of this rank's slices, and of the host's slots. A slot holds one gathered unit.
  std::size_t slice_bytes() const;
  std::size_t slot_bytes() const { return slots_->bytes(); }

 private:
  // From rank 0 to the others, in edit().
  struct Order {
    enum class Verb : std::int64_t { bring, take_back, end };
    Verb verb;
    std::uint64_t unit = 0;
    std::uint64_t slot = 0;
  };

  // A unit's trained or frozen parameters, sliced together.
  struct Cut {
    SliceLayout layout;
    std::vector<std::size_t> offsets = {};  // By region of `layout`: bytes from the unit's start.
    std::vector<at::Tensor> slices = {};    // This rank's, by region.
  };

  struct Place {
    std::string name;
    at::Tensor parameter;
    std::size_t unit = 0;
    std::size_t cut = 0;
    std::size_t number = 0;  // In the cut's layout.
  };

  std::vector<TouchedUnits::Unit> lay_out(const NamedTensors& parameters,
                                          const std::vector<Unit>& units);
  void add_cut(TouchedUnits::Unit& unit, const std::vector<std::size_t>& parameters);
  std::size_t index_of(const at::Tensor& parameter) const;
  const Cut& cut_of(const Place& place) const { return cuts_[place.unit][place.cut]; }
  std::vector<Shard> slices_of(const Place& place) const;

  Memory slot(std::size_t number) const override;
  std::function<void()> filling(std::size_t unit, const Memory& to) override;
  void after_filling(std::size_t) override {}
  void bring(std::size_t unit, const Memory& to) override;
  void take_back(std::size_t unit, const Memory& from) override;
  void lead_edit(const std::function<void()>& change);
  void follow_edit();
  Order::Verb obey(const Order& given);
  void carry_out(const Order& order) const;
  void scatter_values(const TouchedUnits::Unit& unit, const std::vector<Cut>& cuts) const;

  // Copies between all ranks' slices and memory of every host, or of rank 0's host only.
  enum class Way { to_all_hosts, to_rank_0, from_rank_0 };
  void move(Way way, const std::string& label, const std::vector<Cut>& cuts,
            std::byte* memory) const;

  const HostGroups groups_;
  std::vector<Place> places_;  // In the order of units and their members.
  std::unordered_map<const void*, std::size_t> indices_;  // Into places_, by TensorImpl.
  std::vector<std::vector<Cut>> cuts_;                    // By unit.
  std::size_t bytes_of_slot_ = 0;
  std::shared_ptr<const RegisteredMemory> slots_;
  bool is_partially_updated_ = false;
  std::exception_ptr edit_error_;        // The Error that ended an edit.
  std::optional<TouchedUnits> touched_;  // Last: its thread uses the other members.
};

}  // namespace lockstep::parallel

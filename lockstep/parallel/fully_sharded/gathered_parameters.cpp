// SPDX-License-Identifier: Apache-2.0
#include "lockstep/parallel/fully_sharded/gathered_parameters.h"

#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/base/memory.h"
#include "lockstep/comm/values.h"
#include "lockstep/parallel/replicate/replicas.h"
#include "lockstep/tensor/buffers.h"

namespace lockstep::parallel {
namespace {

Buffer bytes_of(void* data, std::size_t bytes) {
  return {.data = data, .count = bytes, .dtype = DType::uint8};
}

Buffer bytes_of(const at::Tensor& tensor) {
  return bytes_of(tensor.mutable_data_ptr(), tensor.nbytes());
}

std::byte* address_in(const RegisteredMemory& memory, std::size_t offset) {
  return static_cast<std::byte*>(memory.data()) + offset;
}

std::size_t sum_of(const Counts& counts) {
  std::size_t sum = 0;
  for (const std::size_t count : counts) sum += count;
  return sum;
}

}  // namespace

GatheredParameters::GatheredParameters(const NamedTensors& parameters,
                                       const std::vector<Unit>& units, std::size_t resident_units,
                                       HostGroups groups)
    : groups_(std::move(groups)) {
  std::vector<TouchedUnits::Unit> touched = lay_out(parameters, units);
  const std::size_t slots = std::min(resident_units, units.size());
  slots_ = std::make_shared<const RegisteredMemory>(
      groups_.host.allocate_shared(slots * bytes_of_slot_));
  for (std::size_t i = 0; i < touched.size(); ++i) scatter_values(touched[i], cuts_[i]);
  touched_.emplace(std::move(touched), slots, c10::Device(at::kCPU),
                   static_cast<UnitSource&>(*this));
}

GatheredParameters::~GatheredParameters() {
  if (touched_ && touched_->busy()) abandon(destroyed_in_a_pass);
}

// Other ranks' gathers and this rank's would deadlock.
bool GatheredParameters::abandon(std::string_view reason) noexcept {
  abort_groups({groups_.host, groups_.rail}, "a pass of FullyShardedDataParallel", reason);
  return true;
}

std::vector<TouchedUnits::Unit> GatheredParameters::lay_out(const NamedTensors& parameters,
                                                            const std::vector<Unit>& units) {
  std::vector<TouchedUnits::Unit> all;
  for (const auto& [name, indices] : units) {
    TouchedUnits::Unit& unit = all.emplace_back(TouchedUnits::Unit{.name = name});
    cuts_.emplace_back();
    for (const bool is_trained : {true, false}) {
      std::vector<std::size_t> together;
      for (const std::size_t i : indices) {
        const auto& [parameter_name, parameter] = parameters[i];
        if (!parameter.is_cpu() && !parameter.is_meta())
          throw Error(Fault::unsupported, "FullyShardedDataParallel: parameter " + parameter_name +
                                              " is on " + parameter.device().str() +
                                              ", and not in CPU memory");
        if (parameter.requires_grad() != is_trained) continue;
        together.push_back(places_.size());
        indices_.emplace(parameter.unsafeGetTensorImpl(), places_.size());
        places_.push_back({parameter_name, parameter, all.size() - 1});
      }
      if (!together.empty()) add_cut(unit, together);
    }
    bytes_of_slot_ = std::max(bytes_of_slot_, unit.bytes);
  }
  return all;
}

void GatheredParameters::add_cut(TouchedUnits::Unit& unit,
                                 const std::vector<std::size_t>& parameters) {
  std::vector<Cut>& cuts = cuts_.back();
  std::vector<at::Tensor> tensors;
  for (const std::size_t i : parameters) {
    places_[i].cut = cuts.size();
    places_[i].number = tensors.size();
    tensors.push_back(places_[i].parameter);
  }
  Cut cut{.layout = SliceLayout(tensors, groups_.all.size())};
  const auto own = static_cast<std::size_t>(groups_.own_slice());
  for (const SliceLayout::Region& region : cut.layout.regions) {
    cut.offsets.push_back(unit.bytes);
    unit.bytes +=
        padded(static_cast<std::size_t>(region.elements()) * c10::elementSize(region.type));
    cut.slices.push_back(at::zeros({region.bounds[own + 1] - region.bounds[own]},
                                   at::TensorOptions().dtype(region.type)));
  }
  for (const std::size_t i : parameters) {
    const Place& place = places_[i];
    const SliceLayout::Home& home = cut.layout.homes[place.number];
    const std::size_t begin = static_cast<std::size_t>(home.begin) * place.parameter.element_size();
    unit.members.push_back({place.name, place.parameter, cut.offsets[home.region] + begin});
  }
  cuts.push_back(std::move(cut));
}

std::size_t GatheredParameters::index_of(const at::Tensor& parameter) const {
  const auto found = indices_.find(parameter.unsafeGetTensorImpl());
  require(found != indices_.end(),
          "the optimizer has a parameter that FullyShardedDataParallel does not share");
  return found->second;
}

void GatheredParameters::require_shared(const at::Tensor& tensor) const { index_of(tensor); }

// Owners are slices.
std::vector<Shard> GatheredParameters::slices_of(const Place& place) const {
  return cut_of(place).layout.shards_of(place.number);
}

std::vector<Shard> GatheredParameters::frozen_shards(const at::Tensor& parameter) const {
  std::vector<Shard> shards = slices_of(places_[index_of(parameter)]);
  for (Shard& shard : shards)
    shard = {0, shard.begin, shard.end, groups_.owners[static_cast<std::size_t>(shard.owner)]};
  return shards;
}

at::Tensor GatheredParameters::fragment(const at::Tensor& parameter, std::int64_t begin,
                                        std::int64_t end) const {
  const Place& place = places_[index_of(parameter)];
  const Cut& cut = cut_of(place);
  const SliceLayout::Home& home = cut.layout.homes[place.number];
  const std::int64_t first =
      home.begin -
      cut.layout.regions[home.region].bounds[static_cast<std::size_t>(groups_.own_slice())];
  return cut.slices[home.region].slice(0, first + begin, first + end).variable_data();
}

std::size_t GatheredParameters::slice_bytes() const {
  std::size_t bytes = 0;
  for (const std::vector<Cut>& cuts : cuts_)
    for (const Cut& cut : cuts)
      for (const at::Tensor& slice : cut.slices) bytes += slice.nbytes();
  return bytes;
}

void GatheredParameters::require_intact() const {
  touched_->require_intact();
  if (is_partially_updated_)
    throw Error(Fault::corrupt,
                "the weights are partially updated: a rank was lost, or threw, while they were "
                "stepped. Make a new "
                "group and FullyShardedDataParallel, and load a checkpoint");
}

UnitSource::Memory GatheredParameters::slot(std::size_t number) const {
  return {address_in(*slots_, number * bytes_of_slot_), slots_, number};
}

std::function<void()> GatheredParameters::filling(std::size_t unit, const Memory& to) {
  std::string what = "unit " + touched_->units()[unit].name;
  // Different labels stop ranks that evict different units.
  if (to.slot) what += " into slot " + std::to_string(*to.slot);
  return [this, unit, to, what = std::move(what)] {
    move(Way::to_all_hosts, "gather of " + what, cuts_[unit], to.data);
  };
}

// Waits until no rank of the host uses its memory's old contents.
void GatheredParameters::move(Way way, const std::string& label, const std::vector<Cut>& cuts,
                              std::byte* memory) const {
  naming_errors(label, [&] {
    groups_.host.barrier({.label = label});
    const int first = groups_.first_of_rail();
    for (const Cut& cut : cuts)
      for (std::size_t i = 0; i < cut.slices.size(); ++i) {
        const SliceLayout::Region& region = cut.layout.regions[i];
        const std::size_t size = c10::elementSize(region.type);
        const auto at = [&](int slice) {
          return static_cast<std::size_t>(region.bounds[static_cast<std::size_t>(slice)]) * size;
        };
        Counts bytes;
        for (int host = 0; host < groups_.hosts(); ++host)
          bytes.push_back(at(first + host + 1) - at(first + host));
        const Buffer slice = bytes_of(cut.slices[i]);
        const Buffer of_rail = bytes_of(memory + cut.offsets[i] + at(first), sum_of(bytes));
        if (of_rail.count == 0) continue;
        if (way == Way::to_all_hosts)
          groups_.rail->all_gather(slice, of_rail, bytes, {.label = label});
        else if (way == Way::to_rank_0)
          groups_.rail->gather(slice, of_rail, 0, bytes, {.label = label});
        else
          groups_.rail->scatter(of_rail, slice, 0, bytes, {.label = label});
      }
    groups_.host.barrier({.label = label});
  });
}

void GatheredParameters::with_gathered(const std::vector<at::Tensor>& parameters,
                                       const std::function<void()>& use) {
  const auto make = [&](std::size_t bytes) {
    auto memory = std::make_shared<const RegisteredMemory>(groups_.host.allocate_shared(bytes));
    return Memory{address_in(*memory, 0), memory};
  };
  touched_->lend(parameters, make, use);
}

void GatheredParameters::begin_step() {
  touched_->forget();
  is_partially_updated_ = true;
}

// No unit is resident after a step.
void GatheredParameters::settle_step(const std::vector<at::Tensor>&) {
  touched_->note_written();
  is_partially_updated_ = false;
}

// Moves rank 0's values, if any, into all slices.
void GatheredParameters::scatter_values(const TouchedUnits::Unit& unit,
                                        const std::vector<Cut>& cuts) const {
  const auto has_values = [](const TouchedUnits::Member& member) {
    return !member.parameter.is_meta() && member.parameter.nbytes() > 0;
  };
  if (std::ranges::none_of(unit.members, has_values)) return;
  std::byte* const memory = slot(0).data;
  if (groups_.all.rank() == 0) {
    std::memset(memory, 0, unit.bytes);
    for (const TouchedUnits::Member& member : unit.members) {
      if (!has_values(member)) continue;
      const at::Tensor plain = member.parameter.detach().contiguous();
      std::memcpy(memory + member.offset, plain.const_data_ptr(), plain.nbytes());
    }
  }
  move(Way::from_rank_0, "first values of unit " + unit.name, cuts, memory);
}

std::exception_ptr GatheredParameters::edit(std::string_view call,
                                            const std::function<void()>& change) {
  groups_.all.barrier({.label = call});  // Other ranks may still read.
  begin_step();
  std::exception_ptr error;
  try {
    if (groups_.all.rank() != 0) follow_edit();
    error = attempt_on_rank_0(groups_.all, call, [&] { lead_edit(change); });
    groups_.all.barrier();
  } catch (const Error&) {
    if (edit_error_) std::rethrow_exception(edit_error_);  // The first Error.
    throw;
  }
  settle_step({});
  return error;
}

void GatheredParameters::lead_edit(const std::function<void()>& change) {
  std::exception_ptr error;
  try {
    touched_->edit(change);
  } catch (...) {
    error = std::current_exception();
  }
  if (!edit_error_) obey({.verb = Order::Verb::end});
  if (error) std::rethrow_exception(error);
}

void GatheredParameters::follow_edit() {
  while (obey({}) != Order::Verb::end) continue;
}

void GatheredParameters::bring(std::size_t unit, const Memory& to) {
  obey({Order::Verb::bring, unit, *to.slot});
}

void GatheredParameters::take_back(std::size_t unit, const Memory& from) {
  obey({Order::Verb::take_back, unit, *from.slot});
}

// Collective: all ranks execute rank 0's order. An Error ends the edit, and aborts the groups, in
// which ranks may wait, unless a rank was lost, which all detect.
GatheredParameters::Order::Verb GatheredParameters::obey(const Order& given) {
  if (edit_error_) std::rethrow_exception(edit_error_);
  try {
    const Order order =
        broadcast_value(given, groups_.all, 0, {.label = "order of rank 0, which edits"});
    if (order.verb != Order::Verb::end) carry_out(order);
    return order.verb;
  } catch (const Error& error) {
    edit_error_ = std::current_exception();
    if (error.fault() != Fault::peer_lost)
      abort_groups({groups_.all, groups_.host, groups_.rail},
                   "a change of parameters of FullyShardedDataParallel", error.what());
    throw;
  }
}

void GatheredParameters::carry_out(const Order& order) const {
  const bool comes = order.verb == Order::Verb::bring;
  const std::string label = "unit " + touched_->units()[order.unit].name +
                            (comes ? " to rank 0, which edits" : " from rank 0, which edits");
  move(comes ? Way::to_rank_0 : Way::from_rank_0, label, cuts_[order.unit], slot(order.slot).data);
}

}  // namespace lockstep::parallel

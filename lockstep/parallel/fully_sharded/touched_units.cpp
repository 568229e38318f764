// SPDX-License-Identifier: Apache-2.0
#include "lockstep/parallel/fully_sharded/touched_units.h"

#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <exception>
#include <utility>

#include "lockstep/base/error.h"

namespace lockstep::parallel {
namespace {

std::uint32_t version_of(const at::Tensor& parameter) {
  return static_cast<std::uint32_t>(parameter._version());
}

bool lies_where_expected(const TouchedUnits::Member& member) {
  return member.parameter.storage().unsafeGetStorageImpl() ==
         member.watched.storage().unsafeGetStorageImpl();
}

std::string text_of_detached(const std::string& name, const std::string& unit) {
  return "parameter " + name + " of unit " + unit +
         " is not here outside of a pass: use it in forward() and backward() of "
         "FullyShardedDataParallel, or within with_gathered(), and write to it within "
         "edit_parameters()";
}

std::string text_of_detached_in_edit(const std::string& name, const std::string& unit) {
  return "parameter " + name + " of unit " + unit +
         " is not here until an operator of LibTorch uses it: within edit_parameters() and " +
         "initialize(), call one before data_ptr()";
}

}  // namespace

class TouchedUnits::Watcher final : public TouchWatcher {
 public:
  explicit Watcher(TouchedUnits& units) : units_(units) {}
  void touched(const std::vector<std::size_t>& ids) override { units_.touched(ids); }

 private:
  TouchedUnits& units_;
};

TouchedUnits::TouchedUnits(std::vector<Unit> units, std::size_t slots, c10::Device device,
                           UnitSource& source)
    : units_(std::move(units)),
      slots_(slots),
      source_(source),
      watcher_(std::make_shared<Watcher>(*this)),
      resident_(units_.size(), slots) {
  for (std::size_t i = 0; i < units_.size(); ++i) {
    for (Member& member : units_[i].members) {
      const at::Tensor form = member.parameter.detach();
      watch_tensor(member.parameter, {form.sizes(), form.scalar_type(), device}, watcher_, i);
      member.watched = member.parameter.variable_data();
      member.version = version_of(member.parameter);
    }
    detach(units_[i]);
  }
}

TouchedUnits::~TouchedUnits() {
  jobs_.let_finish();
  for (const Unit& unit : units_) detach(unit);
}

void TouchedUnits::require_intact() const {
  jobs_.wait();  // Jobs may use the parameters.
  require(!edited_, "call forward() and step() after edit_parameters(), not within it");
  for (const Unit& unit : units_)
    for (const Member& member : unit.members) {
      require(lies_where_expected(member), [&] {
        return "parameter " + member.name +
               " is shared by all ranks but now lies in other memory: call to() and set_data() "
               "before FullyShardedDataParallel is made, or within edit_parameters()";
      });
      require(version_of(member.parameter) == member.version, [&] {
        return "parameter " + member.name +
               " is shared by all ranks but was written to in place, or by an optimizer other "
               "than FullyShardedOptimizer: write to it within edit_parameters()";
      });
    }
}

// Parts of one tensor may share a counter.
void TouchedUnits::note_written() {
  for (const Unit& unit : units_)
    for (const Member& member : unit.members)
      member.parameter.unsafeGetTensorImpl()->bump_version();
  for (Unit& unit : units_)
    for (Member& member : unit.members) member.version = version_of(member.parameter);
}

void TouchedUnits::begin_pass(bool with_gradients) {
  jobs_.wait();
  (with_gradients ? in_pass_ : is_evaluating_) = true;
  resident_.begin_pass();
}

void TouchedUnits::end_evaluation() noexcept {
  jobs_.let_finish();
  is_evaluating_ = false;
}

void TouchedUnits::end_pass() noexcept {
  jobs_.let_finish();
  in_pass_ = false;
}

void TouchedUnits::touched(const std::vector<std::size_t>& units) {
  if (edited_) return bring_to_edit(units);
  const bool in_pass = in_pass_ || is_evaluating_;
  if (in_pass && units == last_touched_) return;
  std::vector<std::size_t> needed;
  for (const std::size_t unit : units)
    if (!units_[unit].is_swapped_in) needed.push_back(unit);
  if (needed.empty()) return;
  require(in_pass, [&] {
    const Unit& unit = units_[needed.front()];
    return text_of_detached(unit.members.front().name, unit.name);
  });
  last_touched_.clear();
  for (const ResidentUnits::Arrival& arrival : resident_.need(needed)) start(arrival);
  for (const std::size_t i : needed) {
    Unit& unit = units_[i];
    if (unit.is_attached) continue;
    jobs_.wait(unit.job);
    source_.after_filling(i);
    attach(unit, source_.slot(*resident_.slot_of(i)));
    unit.is_attached = true;
  }
  last_touched_ = units;
}

void TouchedUnits::start(const ResidentUnits::Arrival& arrival) {
  if (arrival.leaves && std::exchange(units_[*arrival.leaves].is_attached, false))
    detach(units_[*arrival.leaves]);
  units_[arrival.unit].job = jobs_.start(source_.filling(arrival.unit, source_.slot(arrival.slot)));
}

void TouchedUnits::attach(const Unit& unit, const UnitSource::Memory& memory) {
  for (const Member& member : unit.members)
    attach_memory(member.watched, memory.data + member.offset, memory.owner);
}

void TouchedUnits::detach(const Unit& unit) {
  const auto text = edited_ ? text_of_detached_in_edit : text_of_detached;
  for (const Member& member : unit.members)
    detach_memory(member.watched, text(member.name, unit.name));
}

void TouchedUnits::forget() {
  jobs_.wait();
  for (const std::size_t i : resident_.forget())
    if (std::exchange(units_[i].is_attached, false)) detach(units_[i]);
  last_touched_.clear();
  in_pass_ = is_evaluating_ = false;
}

std::size_t TouchedUnits::unit_of(const at::Tensor& parameter) const {
  const auto found = std::ranges::find_if(units_, [&](const Unit& unit) {
    return std::ranges::any_of(
        unit.members, [&](const Member& member) { return member.parameter.is_same(parameter); });
  });
  require(found != units_.end(), "with_gathered: a tensor is not one of the parameters");
  return static_cast<std::size_t>(found - units_.begin());
}

void TouchedUnits::lend(const std::vector<at::Tensor>& parameters,
                        const std::function<UnitSource::Memory(std::size_t bytes)>& make,
                        const std::function<void()>& use) {
  std::vector<std::size_t> swapped_in;
  for (const at::Tensor& parameter : parameters) {
    const std::size_t unit = unit_of(parameter);
    if (!units_[unit].is_swapped_in && std::ranges::find(swapped_in, unit) == swapped_in.end())
      swapped_in.push_back(unit);
  }
  require_intact();
  const bool was_in_pass = in_pass_, was_evaluating = is_evaluating_;
  forget();
  const auto leave = [&] {
    for (const std::size_t i : swapped_in)
      if (std::exchange(units_[i].is_swapped_in, false)) detach(units_[i]);
    in_pass_ = was_in_pass;
    is_evaluating_ = was_evaluating;
  };
  try {
    for (const std::size_t i : swapped_in) {
      const UnitSource::Memory memory = make(units_[i].bytes);
      jobs_.wait(jobs_.start(source_.filling(i, memory)));
      source_.after_filling(i);
      attach(units_[i], memory);
      units_[i].is_swapped_in = true;
    }
    use();
  } catch (...) {
    leave();
    throw;
  }
  leave();
  require_intact();
}

void TouchedUnits::edit(const std::function<void()>& change) {
  require_intact();
  forget();
  std::exception_ptr error;
  const auto attempt = [&](const std::function<void()>& act) {
    try {
      act();
    } catch (...) {
      if (!error) error = std::current_exception();
    }
  };
  const at::NoGradGuard no_grad;
  edited_.emplace(units_.size(), slots_);
  for (const Unit& unit : units_) detach(unit);  // Changes the message to that of an edit.
  attempt(change);
  attempt([&] { take_in_other_memory(); });
  attempt([&] {
    for (std::size_t i = 0; i < units_.size(); ++i)
      if (const auto slot = edited_->slot_of(i)) take_back(i, *slot);
  });
  edited_.reset();
  for (Unit& unit : units_) {
    unit.is_attached = false;
    detach(unit);
  }
  if (error) std::rethrow_exception(error);
}

void TouchedUnits::bring_to_edit(const std::vector<std::size_t>& units) {
  for (const ResidentUnits::Arrival& arrival : edited_->need(units)) {
    if (arrival.leaves) take_back(*arrival.leaves, arrival.slot);
    const UnitSource::Memory memory = source_.slot(arrival.slot);
    source_.bring(arrival.unit, memory);
    attach(units_[arrival.unit], memory);
    units_[arrival.unit].is_attached = true;
  }
}

void TouchedUnits::take_back(std::size_t unit, std::size_t slot) {
  if (!std::exchange(units_[unit].is_attached, false)) return;  // It could not be loaded.
  detach(units_[unit]);
  source_.take_back(unit, source_.slot(slot));
}

// Copies values of memory that `change` assigned to parameters. First collects all: parameters may
// have exchanged memory.
void TouchedUnits::take_in_other_memory() {
  std::vector<std::pair<const Member*, at::Tensor>> given;
  for (const Unit& unit : units_)
    for (const Member& member : unit.members) {
      if (lies_where_expected(member)) continue;
      given.emplace_back(&member, member.parameter.variable_data());
      member.parameter.set_data(member.watched.variable_data());
    }
  for (auto& [member, values] : given)
    if (values.key_set().has(watched_key)) values = values.clone();  // Memory of another parameter.
  std::string mismatch;
  for (const auto& [member, values] : given)
    if (values.scalar_type() == member->watched.scalar_type() &&
        values.sizes() == member->watched.sizes())
      at::Tensor(member->watched).copy_(values);
    else if (mismatch.empty())
      mismatch = member->name;
  require(mismatch.empty(),
          [&] { return "parameter " + mismatch + " has another type or shape than before"; });
}

}  // namespace lockstep::parallel

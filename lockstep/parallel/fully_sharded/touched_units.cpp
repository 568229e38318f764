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
  return member.parameter.storage().unsafeGetStorageImpl() == member.storage.unsafeGetStorageImpl();
}

std::string text_of_detached(const std::string& name, const std::string& unit) {
  return "parameter " + name + " of unit " + unit +
         " is not here outside of a pass: use it in forward() and backward() of "
         "FullyShardedDataParallel, or within with_gathered(), and write to it within "
         "edit_parameters()";
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
      device_(device),
      source_(source),
      watcher_(std::make_shared<Watcher>(*this)),
      resident_(units_.size(), slots) {
  for (std::size_t i = 0; i < units_.size(); ++i) {
    for (Member& member : units_[i].members) {
      watch(member, i, member.parameter.detach());
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
  jobs_.wait();  // They may use the parameters.
  require(!is_editing_, "call forward() and step() after edit_parameters(), not within it");
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

void TouchedUnits::note_written() {
  for (Unit& unit : units_)
    for (Member& member : unit.members) {
      member.parameter.unsafeGetTensorImpl()->bump_version();
      member.version = version_of(member.parameter);
    }
}

// --- Passes --------------------------------------------------------------------------------------

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
  const bool in_pass = in_pass_ || is_evaluating_;
  if (is_editing_ || (in_pass && units == last_touched_)) return;
  std::vector<std::size_t> needed;
  for (const std::size_t unit : units)
    if (!units_[unit].is_lent) needed.push_back(unit);
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

// `form` has the type and shape.
void TouchedUnits::watch(Member& member, std::size_t unit, const at::Tensor& form) const {
  watch_tensor(member.parameter, {form.sizes(), form.scalar_type(), device_}, watcher_, unit);
  member.storage = member.parameter.storage();
}

void TouchedUnits::attach(const Unit& unit, const UnitSource::Memory& memory) {
  for (const Member& member : unit.members)
    attach_memory(member.parameter, memory.data + member.offset, memory.owner);
}

void TouchedUnits::detach(const Unit& unit) {
  for (const Member& member : unit.members)
    detach_memory(member.parameter, text_of_detached(member.name, unit.name));
}

void TouchedUnits::forget() {
  jobs_.wait();
  for (const std::size_t i : resident_.forget())
    if (std::exchange(units_[i].is_attached, false)) detach(units_[i]);
  last_touched_.clear();
  in_pass_ = is_evaluating_ = false;
}

// --- Outside of passes ---------------------------------------------------------------------------

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
  std::vector<std::size_t> lent;
  for (const at::Tensor& parameter : parameters) {
    const std::size_t unit = unit_of(parameter);
    if (!units_[unit].is_lent && std::ranges::find(lent, unit) == lent.end()) lent.push_back(unit);
  }
  require_intact();
  const bool was_in_pass = in_pass_, was_evaluating = is_evaluating_;
  forget();
  const auto leave = [&] {
    for (const std::size_t i : lent)
      if (std::exchange(units_[i].is_lent, false)) detach(units_[i]);
    in_pass_ = was_in_pass;
    is_evaluating_ = was_evaluating;
  };
  try {
    for (const std::size_t i : lent) {
      const UnitSource::Memory memory = make(units_[i].bytes);
      jobs_.wait(jobs_.start(source_.filling(i, memory)));
      source_.after_filling(i);
      attach(units_[i], memory);
      units_[i].is_lent = true;
    }
    use();
  } catch (...) {
    leave();
    throw;
  }
  leave();
  require_intact();
}

void TouchedUnits::edit(std::vector<at::Tensor>& values, const std::function<void()>& change) {
  require_intact();
  const at::NoGradGuard no_grad;
  std::vector<std::pair<std::size_t, Member*>> all;
  for (std::size_t i = 0; i < units_.size(); ++i)
    for (Member& member : units_[i].members) all.emplace_back(i, &member);
  for (std::size_t i = 0; i < all.size(); ++i)
    attach_memory(all[i].second->parameter, values[i].mutable_data_ptr(),
                  std::make_shared<const at::Tensor>(values[i]));
  std::exception_ptr error;
  is_editing_ = true;
  try {
    change();
  } catch (...) {
    error = std::current_exception();
  }
  for (std::size_t i = 0; i < all.size(); ++i) {
    const auto& [unit, member] = all[i];
    const at::Tensor& parameter = member->parameter;
    if (!lies_where_expected(*member)) {
      const bool fits = parameter.scalar_type() == values[i].scalar_type() &&
                        parameter.sizes() == values[i].sizes();
      if (fits)
        values[i] = parameter.detach().to(device_).clone(at::MemoryFormat::Contiguous);
      else if (!error)
        error = std::make_exception_ptr(Error(
            Fault::misuse, "parameter " + member->name + " has another type or shape than before"));
      watch(*member, unit, values[i]);
    }
    detach_memory(parameter, text_of_detached(member->name, units_[unit].name));
  }
  is_editing_ = false;
  if (error) std::rethrow_exception(error);
}

}  // namespace lockstep::parallel

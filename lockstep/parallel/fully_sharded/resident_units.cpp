// SPDX-License-Identifier: Apache-2.0
#include "lockstep/parallel/fully_sharded/resident_units.h"

#include <algorithm>
#include <string>
#include <utility>

#include "lockstep/base/error.h"

namespace lockstep::parallel {

ResidentUnits::ResidentUnits(std::size_t units, std::size_t slots)
    : slots_(slots), slots_of_(units) {}

void ResidentUnits::begin_pass() {
  last_pass_ = std::exchange(this_pass_, {});
  is_as_expected_ = true;
}

std::vector<ResidentUnits::Arrival> ResidentUnits::need(const std::vector<std::size_t>& units) {
  require(units.size() <= slots_.size(), [&] {
    return "an operator needs parameters of " + std::to_string(units.size()) +
           " units at once: set resident_units to that number, which is " +
           std::to_string(slots_.size());
  });
  std::vector<Arrival> arrivals;
  const auto add = [&](std::size_t unit) {
    if (const auto arrival = bring(unit, units)) arrivals.push_back(*arrival);
  };
  for (const std::size_t unit : units) {
    note(unit);
    add(unit);
    slots_[*slots_of_[unit]].needed_at = ++now_;
  }
  const std::size_t next = this_pass_.size();
  if (is_as_expected_ && next < last_pass_.size()) add(last_pass_[next]);
  return arrivals;
}

void ResidentUnits::note(std::size_t unit) {
  if (!this_pass_.empty() && this_pass_.back() == unit) return;
  const std::size_t place = this_pass_.size();
  if (place >= last_pass_.size() || last_pass_[place] != unit) is_as_expected_ = false;
  this_pass_.push_back(unit);
}

// Empty if resident, or without a slot.
std::optional<ResidentUnits::Arrival> ResidentUnits::bring(std::size_t unit,
                                                           const std::vector<std::size_t>& kept) {
  if (slots_of_[unit]) return {};
  std::optional<std::size_t> place;
  for (std::size_t i = 0; i < slots_.size(); ++i) {
    const Slot& slot = slots_[i];
    if (slot.unit && std::ranges::find(kept, *slot.unit) != kept.end()) continue;
    if (!slot.unit) {
      place = i;
      break;
    }
    if (!place || slot.needed_at < slots_[*place].needed_at) place = i;
  }
  if (!place) return {};
  Slot& slot = slots_[*place];
  const Arrival arrival{unit, *place, slot.unit};
  if (slot.unit) slots_of_[*slot.unit].reset();
  slot = {.unit = unit, .needed_at = ++now_};
  slots_of_[unit] = *place;
  return arrival;
}

std::vector<std::size_t> ResidentUnits::forget() {
  std::vector<std::size_t> left;
  for (Slot& slot : slots_)
    if (const auto unit = std::exchange(slot.unit, std::nullopt)) left.push_back(*unit);
  for (const std::size_t unit : left) slots_of_[unit].reset();
  return left;
}

}  // namespace lockstep::parallel

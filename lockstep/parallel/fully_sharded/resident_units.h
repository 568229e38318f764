// Which units of a fully sharded module are in a host's memory, and when each comes and goes.
//
// A few slots hold one unit each. A unit that is needed and not there takes a free slot, or that of
// the unit which was not needed for the longest time. The order of the last pass tells which unit
// is needed next: it comes early, until a pass takes another order.
//
// Decisions follow from what was needed alone, never from time: ranks that need the same units in
// the same order decide alike.
//
// Thread safety: none.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

namespace lockstep::parallel {

class ResidentUnits {
 public:
  // A unit comes into a slot, in place of another one.
  struct Arrival {
    std::size_t unit;
    std::size_t slot;
    std::optional<std::size_t> leaves = {};
    bool operator==(const Arrival&) const = default;
  };

  ResidentUnits(std::size_t units, std::size_t slots);

  // A pass begins: the order of the one before is expected.
  void begin_pass();

  // An operator needs these units, all at once. Returns what must come, in this order: what is
  // needed, then the unit that is expected next, if a slot is left for it.
  // Errors: misuse for more units than slots.
  std::vector<Arrival> need(const std::vector<std::size_t>& units);

  std::optional<std::size_t> slot_of(std::size_t unit) const { return slots_of_[unit]; }

  // No unit is there any more. Returns those that were.
  std::vector<std::size_t> forget();

 private:
  struct Slot {
    std::optional<std::size_t> unit = {};
    std::uint64_t needed_at = 0;
  };

  void note(std::size_t unit);
  std::optional<Arrival> bring(std::size_t unit, const std::vector<std::size_t>& kept);

  std::vector<Slot> slots_;
  std::vector<std::optional<std::size_t>> slots_of_;  // By unit.
  std::vector<std::size_t> last_pass_;                // In the order in which they were needed.
  std::vector<std::size_t> this_pass_;
  bool is_as_expected_ = true;  // So far, in this pass.
  std::uint64_t now_ = 0;
};

}  // namespace lockstep::parallel

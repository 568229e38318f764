// Decides which units of a fully sharded module have one of a host's or a device's slots.
//
// A required unit without a slot takes a free one, or that of the least recently used unit. The
// unit that followed in the last pass is loaded early, until the pass deviates from that order.
// Decisions depend only on the sequence of required units, so ranks with equal sequences decide
// alike.
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
  struct Arrival {
    std::size_t unit;
    std::size_t slot;
    std::optional<std::size_t> leaves = {};
    bool operator==(const Arrival&) const = default;
  };

  ResidentUnits(std::size_t units, std::size_t slots);

  // Expects the order of the previous pass.
  void begin_pass();

  // An operator needs these units at once. Returns the units to load, in order: those of `units`
  // without a slot, then the expected next one, if `units` leave it a slot.
  // Errors: misuse for more units than slots.
  std::vector<Arrival> need(const std::vector<std::size_t>& units);

  std::optional<std::size_t> slot_of(std::size_t unit) const { return slots_of_[unit]; }

  // Removes and returns all units.
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
  std::vector<std::size_t> last_pass_;                // In the order of use.
  std::vector<std::size_t> this_pass_;
  bool is_as_expected_ = true;
  std::uint64_t now_ = 0;
};

}  // namespace lockstep::parallel

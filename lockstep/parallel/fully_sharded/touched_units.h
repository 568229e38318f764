// Units of parameters that have memory only while operators use them
// (docs/internals/fully-sharded.md). Using a parameter outside of passes, lend() and edit() throws.
//
// Thread safety: none, but operators may run on autograd's threads.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/parallel/fully_sharded/resident_units.h"
#include "lockstep/parallel/gradients/ordered_jobs.h"
#include "lockstep/tensor/touched_tensors.h"

namespace lockstep::parallel {

// Loads units, and owns the slots.
class UnitSource {
 public:
  virtual ~UnitSource() = default;

  struct Memory {
    std::byte* data;
    std::shared_ptr<const void> owner;
    std::optional<std::size_t> slot = {};  // Empty for memory of lend().
  };

  virtual Memory slot(std::size_t number) const = 0;

  // Returns a job, for another thread, that fills memory once operators enqueued so far have
  // finished with the old contents.
  virtual std::function<void()> filling(std::size_t unit, const Memory& to) = 0;

  // After the job: operators enqueued later see the unit.
  virtual void after_filling(std::size_t unit) = 0;

  // In an edit: loads a unit, or writes it back. Blocking.
  virtual void bring(std::size_t unit, const Memory& to) = 0;
  virtual void take_back(std::size_t unit, const Memory& from) = 0;
};

constexpr std::string_view destroyed_in_a_pass =
    "FullyShardedDataParallel was destroyed during a pass";

class TouchedUnits {
 public:
  struct Member {
    std::string name;
    at::Tensor parameter;
    std::size_t offset;         // In bytes.
    at::Tensor watched = {};    // With the expected memory.
    std::uint32_t version = 0;  // The expected one.
  };

  struct Unit {
    std::string name;
    std::vector<Member> members = {};
    std::size_t bytes = 0;
    std::uint64_t job = 0;       // The last that loaded it into a slot.
    bool is_attached = false;    // To that slot.
    bool is_swapped_in = false;  // In lend().
  };

  // Makes parameters watched tensors on `device` without memory. `source` outlives this object.
  TouchedUnits(std::vector<Unit> units, std::size_t slots, c10::Device device, UnitSource& source);
  ~TouchedUnits();
  TouchedUnits(const TouchedUnits&) = delete;
  TouchedUnits& operator=(const TouchedUnits&) = delete;

  const std::vector<Unit>& units() const { return units_; }

  // Errors: misuse in edit() and, with its name, for a moved or written parameter; those of loads.
  void require_intact() const;
  void note_written();

  // A pass without gradients lasts until end_evaluation(), one with gradients until end_pass().
  // These calls wait for a unit that is being loaded.
  void begin_pass(bool with_gradients);
  void end_evaluation() noexcept;
  void end_pass() noexcept;

  // Removes all units from their slots, and ends the pass.
  void forget();

  // Whether a slot is being filled.
  bool busy() const { return jobs_.busy(); }

  // Runs `use` while units of these parameters, the same on all ranks, are in memory from `make`.
  // Errors: misuse for other tensors, and if `use` has written to a parameter.
  void lend(const std::vector<at::Tensor>& parameters,
            const std::function<UnitSource::Memory(std::size_t bytes)>& make,
            const std::function<void()>& use);

  // Runs `change` on this rank only. Its operators must run on one thread; each may use at most as
  // many units as there are slots. If `change` assigns other memory to a parameter, the values are
  // copied.
  // Errors: those of `change`; misuse for a changed type or shape. Changes before an Error take
  // effect.
  void edit(const std::function<void()>& change);

 private:
  class Watcher;

  void touched(const std::vector<std::size_t>& units);
  void start(const ResidentUnits::Arrival& arrival);
  void attach(const Unit& unit, const UnitSource::Memory& memory);
  void detach(const Unit& unit);
  void bring_to_edit(const std::vector<std::size_t>& units);
  void take_back(std::size_t unit, std::size_t slot);
  void take_in_other_memory();
  std::size_t unit_of(const at::Tensor& parameter) const;

  std::vector<Unit> units_;
  const std::size_t slots_;
  UnitSource& source_;
  const std::shared_ptr<TouchWatcher> watcher_;
  ResidentUnits resident_;
  std::vector<std::size_t> last_touched_;  // All are attached.
  bool in_pass_ = false;
  bool is_evaluating_ = false;
  std::optional<ResidentUnits> edited_;  // During edit().
  mutable OrderedJobs jobs_;             // Last: its thread uses the other members.
};

}  // namespace lockstep::parallel

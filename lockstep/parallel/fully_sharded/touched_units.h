// Units of parameters that have memory only while operators use them
// (docs/internals/fully-sharded.md). Outside of passes and edits, using a parameter throws.
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
    std::optional<std::size_t> slot = {};  // Its number, if it is a slot.
  };

  virtual Memory slot(std::size_t number) const = 0;

  // Returns a job that fills memory after operators enqueued before this call have finished with
  // the old contents. The job runs on another thread.
  virtual std::function<void()> filling(std::size_t unit, const Memory& to) = 0;

  // After the job: operators enqueued after this call see the unit.
  virtual void after_filling(std::size_t unit) = 0;

  // In an edit, synchronously: loads a unit, or writes it back.
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
    std::size_t offset;         // From the unit's start, in bytes.
    at::Tensor watched = {};    // Has the expected memory.
    std::uint32_t version = 0;  // The expected one.
  };

  struct Unit {
    std::string name;
    std::vector<Member> members = {};
    std::size_t bytes = 0;
    std::uint64_t job = 0;       // The last one that filled its slot.
    bool is_attached = false;    // To that slot.
    bool is_swapped_in = false;  // In lend().
  };

  // Makes parameters watched tensors on `device`, without memory. `source` outlives this object.
  TouchedUnits(std::vector<Unit> units, std::size_t slots, c10::Device device, UnitSource& source);
  ~TouchedUnits();
  TouchedUnits(const TouchedUnits&) = delete;
  TouchedUnits& operator=(const TouchedUnits&) = delete;

  const std::vector<Unit>& units() const { return units_; }

  // Errors: misuse, with its name, for a parameter that has other memory or was written to.
  void require_intact() const;
  void note_written();

  // A pass with gradients lasts until backward() has ended, another one until end_evaluation().
  // Both calls wait for a unit that is being loaded early.
  void begin_pass(bool with_gradients);
  void end_evaluation() noexcept;
  void end_pass() noexcept;

  // Removes all units, and ends the pass.
  void forget();

  // Whether a slot is being filled.
  bool busy() const { return jobs_.busy(); }

  // Runs `use` while the units of these parameters are in memory that `make` returns. All ranks
  // pass the same parameters.
  // Errors: misuse for a tensor that is not one of the parameters, and if `use` has written to one.
  void lend(const std::vector<at::Tensor>& parameters,
            const std::function<UnitSource::Memory(std::size_t bytes)>& make,
            const std::function<void()>& use);

  // Runs `change`, only on this rank, by operators of one thread, each of which uses at most as
  // many units as there are slots. It may assign other memory to parameters, whose values then
  // count. Memory from data_ptr() is valid after an operator on the parameter, until one on another
  // unit.
  // Errors: those of `change`; misuse if a parameter has another type or shape than before. Changes
  // made before an Error take effect.
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
  std::vector<std::size_t> last_touched_;  // All of them are attached.
  bool in_pass_ = false;
  bool is_evaluating_ = false;
  std::optional<ResidentUnits> edited_;  // During edit().
  mutable OrderedJobs jobs_;             // Last: its thread uses the other members.
};

}  // namespace lockstep::parallel

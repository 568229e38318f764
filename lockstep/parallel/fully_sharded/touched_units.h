// Units of parameters that have memory while operators use them.
//
// An operator that touches a parameter (tensor/touched_tensors.h) makes its unit come into a slot
// of memory, in place of another one, and perhaps the next unit early (resident_units.h). A
// UnitSource fills slots, on a thread, in the order in which units come.
//
// Units come in passes only. Outside of one, and without this object, the use of a parameter is an
// exception that says so.
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

// Where units come from, and the slots that they come into.
class UnitSource {
 public:
  virtual ~UnitSource() = default;

  // The bytes from `data` on.
  struct Memory {
    std::byte* data;
    std::shared_ptr<const void> owner;
    std::optional<std::size_t> slot = {};  // Its number, if it is one.
  };

  virtual Memory slot(std::size_t number) const = 0;

  // A job that fills memory with a unit, once operators that were enqueued before this call are
  // done with what was there. It runs on another thread.
  virtual std::function<void()> filling(std::size_t unit, const Memory& to) = 0;

  // The job is done: operators that are enqueued after this call find the unit.
  virtual void after_filling(std::size_t unit) = 0;
};

// The reason of a store that ends while units come.
constexpr std::string_view destroyed_in_a_pass =
    "FullyShardedDataParallel was destroyed during a pass";

class TouchedUnits {
 public:
  struct Member {
    std::string name;
    at::Tensor parameter;
    std::size_t offset;         // In bytes from the beginning of the unit.
    c10::Storage storage = {};  // The parameter's, as expected.
    std::uint32_t version = 0;  // As expected, too.
  };

  struct Unit {
    std::string name;
    std::vector<Member> members = {};
    std::size_t bytes = 0;
    std::uint64_t job = 0;     // The last one that filled a slot with it.
    bool is_attached = false;  // To that slot.
    bool is_lent = false;      // Has memory of its own, in lend().
  };

  // Parameters become watched tensors on `device`, without memory; they have some during edit().
  // `source` outlives this.
  TouchedUnits(std::vector<Unit> units, std::size_t slots, c10::Device device, UnitSource& source);
  ~TouchedUnits();
  TouchedUnits(const TouchedUnits&) = delete;
  TouchedUnits& operator=(const TouchedUnits&) = delete;

  const std::vector<Unit>& units() const { return units_; }

  // Errors: misuse, by name, for a parameter that has other memory, or was written to.
  void require_intact() const;
  void note_written();

  // A pass with gradients lasts until backward() has ended, one without until end_evaluation().
  // Both wait for a unit that is coming early.
  void begin_pass(bool with_gradients);
  void end_evaluation() noexcept;
  void end_pass() noexcept;

  // All units leave, and the pass ends.
  void forget();

  // Whether a slot is being filled.
  bool busy() const { return jobs_.busy(); }

  // Runs `use` while the units of these parameters are in the memory that `make` returns for so
  // many bytes. All ranks lend the same ones. Errors: misuse for a tensor that is not one of the
  // parameters, and if `use` has written to one.
  void lend(const std::vector<at::Tensor>& parameters,
            const std::function<UnitSource::Memory(std::size_t bytes)>& make,
            const std::function<void()>& use);

  // Runs `change` while the parameters lie in `values`, one for each in the order of units and
  // members. Where it has given a parameter other memory, `values` has that afterwards.
  // Errors: those of `change`; misuse if a parameter has another type or shape than before.
  void edit(std::vector<at::Tensor>& values, const std::function<void()>& change);

 private:
  class Watcher;

  void touched(const std::vector<std::size_t>& units);
  void start(const ResidentUnits::Arrival& arrival);
  void watch(Member& member, std::size_t unit, const at::Tensor& form) const;
  void attach(const Unit& unit, const UnitSource::Memory& memory);
  void detach(const Unit& unit);
  std::size_t unit_of(const at::Tensor& parameter) const;

  std::vector<Unit> units_;
  const c10::Device device_;
  UnitSource& source_;
  const std::shared_ptr<TouchWatcher> watcher_;
  ResidentUnits resident_;
  std::vector<std::size_t> last_touched_;  // All of them are attached.
  bool in_pass_ = false;
  bool is_evaluating_ = false;
  bool is_editing_ = false;
  mutable OrderedJobs jobs_;  // Last, as its thread uses the others.
};

}  // namespace lockstep::parallel

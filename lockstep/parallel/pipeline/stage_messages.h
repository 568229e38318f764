// Messages between stages: outputs to the next one, gradients back.
//
// Ranks that share memory, as those of one host: tensors lie in slots that all have mapped. The
// sender copies them there; the receiver's tensors are the slot itself, which is in use while one
// of them lives. A header of 1 KiB tells the receiver slot, shapes and structure. There are as many
// slots as can be in use at once, see slots_of(), so a sender always finds a free one. Slots have
// the size of the largest values so far. Values that do not fit, and those for other hosts, follow
// as messages, which do not wait for the receiver.
//
// Thread safety: none. Errors: as ProcessGroup's messages.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/base/memory.h"
#include "lockstep/comm/process_group.h"
#include "lockstep/parallel/pipeline/pipeline_order.h"

namespace lockstep::parallel {

enum class Way { output, gradient };

// The message of a microbatch over the boundary between `boundary` and the stage after it.
struct Route {
  Way way = Way::output;
  int boundary = 0;
  int microbatch = 0;

  auto operator<=>(const Route&) const = default;
};

struct Parcel {
  std::vector<at::Tensor> tensors;  // Some may be undefined.
  std::vector<bool> needs_gradient;
  std::string structure;
};

// One rank's report to all others at the end of a step.
struct StepReport {
  double loss = 0;           // Its part of the sum.
  std::int64_t rows = 0;     // Of the batch that it was given,
  std::uint64_t digest = 0;  // and of its values; 0 in most steps.
};

class StageMessages {
 public:
  // Collective over `group`.
  StageMessages(const ProcessGroup& group, const PipelineOrder& order);

  // Returns before the receiver has it. Without `in_slots`, by messages alone.
  void send(const Route& route, const Parcel& parcel, bool in_slots = true);

  // Blocking: until it is there.
  Parcel receive(const Route& route);

  int rank_from(const Route& route) const;

  // Collective: ends a step; all ranks have received all. Slots then have room for all values of
  // this step. Returns the reports of all ranks.
  std::vector<StepReport> end_step(const StepReport& report);

  // Where this rank is in its order; and where another one was last, if it is on this host.
  void set_place(int action);
  std::optional<int> place_of(int rank) const;

  std::size_t bytes() const { return block_ ? block_->bytes() : 0; }

 private:
  // Slots of one way over one boundary.
  struct Slots {
    int count = 0;
    std::size_t bytes = 0;  // Of each.
    std::size_t begin = 0;  // In the block.
    std::size_t wanted = 0;

    // A word that tells whether the slot is in use, and its elements.
    std::size_t place(int slot) const {
      return begin + static_cast<std::size_t>(slot) * (cache_line + bytes);
    }
    std::size_t elements(int slot) const { return place(slot) + cache_line; }
  };

  Slots& slots(const Route& route);
  std::optional<int> take_slot(Slots& line, std::size_t bytes) const;
  void send_header(const Route& route, const std::string& header);
  std::string receive_header(const Route& route);
  void allocate();
  int rank_to(const Route& route) const;
  std::int64_t tag(const Route& route, int part) const;

  const ProcessGroup group_;
  const int microbatches_;
  const std::vector<int> rank_of_stage_;
  std::vector<int> hosts_;  // By rank: the first of those with which it shares memory.
  std::map<std::pair<Way, int>, Slots> slots_;
  std::optional<RegisteredMemory> block_;
  std::map<Route, Parcel> own_;  // From this rank to itself.
  std::vector<Work> sent_;
};

}  // namespace lockstep::parallel

// Sends outputs to the next stage and gradients back, through slots of shared memory or as messages
// (docs/internals/pipeline.md). A slot is in use from send() until all received tensors, views of
// it, are destroyed.
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

// Between stage `boundary` and the next.
struct Route {
  Way way = Way::output;
  int boundary = 0;
  int microbatch = 0;

  auto operator<=>(const Route&) const = default;
};

struct Parcel {
  std::vector<at::Tensor> tensors;  // May be undefined.
  std::vector<bool> needs_gradient;
  std::string structure;
};

// Sent at the end of a step.
struct StepReport {
  double loss = 0;           // This rank's part.
  std::int64_t rows = 0;     // In this rank's batch.
  std::uint64_t digest = 0;  // Digest of values; 0 in most steps.
};

class StageMessages {
 public:
  // Collective over `group`.
  StageMessages(const ProcessGroup& group, const PipelineOrder& order);

  // Not blocking. Without `in_slots`, uses messages only.
  void send(const Route& route, const Parcel& parcel, bool in_slots = true);

  // Blocking.
  Parcel receive(const Route& route);

  int rank_from(const Route& route) const;

  // Collective: ends a step, after all receives. Enlarges slots that were too small for this step.
  // Returns all ranks' reports.
  std::vector<StepReport> end_step(const StepReport& report);

  // A rank's position in its order: this rank's, and another's on this host.
  void set_place(int action);
  std::optional<int> place_of(int rank) const;

  std::size_t bytes() const { return block_ ? block_->bytes() : 0; }

 private:
  // For one direction over one boundary.
  struct Slots {
    int count = 0;
    std::size_t bytes = 0;  // Per slot.
    std::size_t begin = 0;  // In the block.
    std::size_t wanted = 0;

    // A word, set while in use, then elements.
    std::size_t place(int slot) const {
      return begin + static_cast<std::size_t>(slot) * (cache_line + bytes);
    }
    std::size_t elements(int slot) const { return place(slot) + cache_line; }
  };

  Slots& slots(const Route& route);
  std::optional<int> take_slot(Slots& slots, std::size_t bytes) const;
  void send_header(const Route& route, const std::string& header);
  std::string receive_header(const Route& route);
  void allocate();
  int rank_to(const Route& route) const;
  std::int64_t tag(const Route& route, int part) const;

  const ProcessGroup group_;
  const int microbatches_;
  const std::vector<int> rank_of_stage_;
  std::vector<int> hosts_;  // By rank: the first one that shares its memory.
  std::map<std::pair<Way, int>, Slots> slots_;
  std::optional<RegisteredMemory> block_;
  std::map<Route, Parcel> own_;  // From this rank to itself.
  std::vector<Work> sent_;
};

}  // namespace lockstep::parallel

// The order of each rank's actions in a pipeline: plain data, checked before it runs.
//
//   auto order = lockstep::make_pipeline_order(lockstep::PipelineSchedule::one_f_one_b,
//                                              {.ranks = 4, .microbatches = 8});
//   std::cout << to_string(order);         // A line for each rank: 0F0 0F1 0F2 0F3 0B0 0F4 0B1 ...
//
// The notation is that of torch.distributed.pipelining: stage along the model, kind, microbatch.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <iosfwd>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/base/api.h"

namespace lockstep {

enum class PipelineSchedule {
  gpipe,        // All forwards, then all backwards.
  one_f_one_b,  // Each backward as early as possible: fewer activations.
  interleaved,  // 1F1B, several stages per rank: a smaller bubble, more messages.
  looped_bfs,   // Several stages per rank; each stage does all microbatches before the next.
  zero_bubble,  // ZB1P: weight gradients fill idle time.
  zbv,          // Two stages per rank, in a V; weight gradients as in ZB1P.
};

// Work on one microbatch in one stage.
enum class PipelineActionKind : char {
  forward = 'F',
  backward = 'B',         // Gradients of the stage's input and weights.
  backward_input = 'I',   // Only the input's, for which the stage before waits.
  backward_weight = 'W',  // Only the weights'.
};

struct PipelineAction {
  int stage = 0;
  PipelineActionKind kind = PipelineActionKind::forward;
  int microbatch = 0;

  bool operator==(const PipelineAction&) const = default;
};

struct PipelineOrder {
  int microbatches = 0;
  std::vector<int> rank_of_stage;                    // By stage.
  std::vector<std::vector<PipelineAction>> actions;  // By rank.

  int stages() const { return static_cast<int>(rank_of_stage.size()); }
  int ranks() const { return static_cast<int>(actions.size()); }
  bool operator==(const PipelineOrder&) const = default;
};

struct PipelineShape {
  int ranks = 1;
  int microbatches = 1;
  int stages_per_rank = 0;  // 0: 2 for interleaved, looped_bfs and zbv, else 1. gpipe and
                            // one_f_one_b always have 1, zbv 2.
};

// PyTorch's orders (torch/distributed/pipelining/schedules.py), but 1F1B may have fewer
// microbatches than stages. interleaved and zero_bubble divide microbatches into
// max(1, microbatches / ranks) equal rounds.
// Errors: misuse for a shape that the schedule does not support.
LOCKSTEP_API PipelineOrder make_pipeline_order(PipelineSchedule schedule,
                                               const PipelineShape& shape);

// "gpipe", "1f1b", "interleaved", "looped_bfs", "zb1p", "zbv". Errors: misuse, with all names.
LOCKSTEP_API PipelineSchedule parse_pipeline_schedule(std::string_view name);
LOCKSTEP_API std::string_view name_of(PipelineSchedule schedule);

// "2F5". Errors: misuse for anything else.
LOCKSTEP_API PipelineAction parse_pipeline_action(std::string_view text);
LOCKSTEP_API std::string to_string(const PipelineAction& action);

// PyTorch's CSV of computations: a line per rank, with empty fields for idle time, which
// write_pipeline_order() omits. A stage is on the rank of its first action, or on rank -1 without
// actions. Reading does not check that the order can be run.
// Errors: misuse, with file and line, or a system's error.
LOCKSTEP_API PipelineOrder read_pipeline_order(const std::string& file);
LOCKSTEP_API void write_pipeline_order(const PipelineOrder& order, const std::string& file);

// A line per rank.
LOCKSTEP_API std::string to_string(const PipelineOrder& order);

// Checks that each stage has one rank, each rank a stage, that actions occur once, and that ranks
// do not deadlock. An action must follow those of its rank that it needs.
// Errors: misuse with up to ten missing, repeated and impossible actions, or the cycle.
LOCKSTEP_API void check_pipeline_order(const PipelineOrder& order);

}  // namespace lockstep

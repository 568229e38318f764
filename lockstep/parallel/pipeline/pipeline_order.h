// The actions of each rank of a pipeline, in their order: data, which is checked and simulated
// before it runs.
//
//   auto order = lockstep::make_pipeline_order(lockstep::PipelineSchedule::one_f_one_b,
//                                              {.ranks = 4, .microbatches = 8});
//   std::cout << to_string(order);         // A line for each rank: 0F0 0F1 0F2 0F3 0B0 0F4 0B1 ...
//   lockstep::check_pipeline_order(order); // Throws an Error that names all that is wrong.
//
// Stages are numbered along the model. A rank may have several. The notation is that of PyTorch's
// torch.distributed.pipelining: stage, kind, microbatch.
//
// Thread safety: plain data.

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
  one_f_one_b,  // A backward as soon as there is one: fewer activations at once.
  interleaved,  // 1F1B with several stages on each rank: a smaller bubble, more messages.
  looped_bfs,   // Several stages on each rank, each with all microbatches in turn.
  zero_bubble,  // ZB1P: weights' gradients are computed when a rank would wait.
  zbv,          // Two stages on each rank, in a V, and weights' gradients as in ZB1P.
};

// Work on one microbatch in one stage.
enum class PipelineActionKind : char {
  forward = 'F',
  backward = 'B',         // Gradients of the stage's input and of its weights.
  backward_input = 'I',   // The first alone: what the stage before waits for.
  backward_weight = 'W',  // The second alone.
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
  int stages_per_rank = 0;  // 0: 2 for interleaved, looped_bfs and zbv, otherwise 1. gpipe and
                            // one_f_one_b have 1 always, and zbv 2.
};

// The orders of PyTorch's schedules (torch/distributed/pipelining/schedules.py), without the
// places at which a rank waits. Unlike there, 1F1B may have fewer microbatches than stages.
// interleaved and zero_bubble deal microbatches in max(1, microbatches / ranks) rounds of equal
// size. Errors: misuse for a shape that the schedule does not have.
LOCKSTEP_API PipelineOrder make_pipeline_order(PipelineSchedule schedule,
                                               const PipelineShape& shape);

// "gpipe", "1f1b", "interleaved", "looped_bfs", "zb1p", "zbv". Errors: misuse, with all names.
LOCKSTEP_API PipelineSchedule parse_pipeline_schedule(std::string_view name);
LOCKSTEP_API std::string_view name_of(PipelineSchedule schedule);

// "2F5". Errors: misuse for anything else.
LOCKSTEP_API PipelineAction parse_pipeline_action(std::string_view text);
LOCKSTEP_API std::string to_string(const PipelineAction& action);

// PyTorch's CSV of computations: a line for each rank, empty fields where it waits. The second
// writes no empty fields. A stage is on the rank that its first action is on; a stage without
// actions on rank -1. Only check_pipeline_order() tells whether the order makes sense.
// Errors: misuse, with file and line, or a system's error.
LOCKSTEP_API PipelineOrder read_pipeline_order(const std::string& file);
LOCKSTEP_API void write_pipeline_order(const PipelineOrder& order, const std::string& file);

// A line for each rank.
LOCKSTEP_API std::string to_string(const PipelineOrder& order);

// Each stage has one rank, each of its actions comes once and after what it needs on its own rank,
// and no ranks wait for each other in a circle.
// Errors: misuse, with all that is wrong: missing, repeated, impossible actions, or the circle.
LOCKSTEP_API void check_pipeline_order(const PipelineOrder& order);

}  // namespace lockstep

// Simulates and draws a pipeline's order: time, bubble, memory and slots.
//
// Thread safety: pure functions.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "lockstep/base/api.h"
#include "lockstep/parallel/pipeline/pipeline_order.h"

namespace lockstep {

// Cost of a microbatch in one stage. Times are in any unit.
struct PipelineStageCost {
  double forward = 1;
  double backward_input = 1;
  double backward_weight = 1;
  double whole_backward = 0;  // 0: the sum of both. One pass may take less.
  double send = 0;  // Time to send the output to the next stage, or its gradient back; ignored if
                    // one rank has both stages.
  double activation_bytes = 1;  // From forward until backward or backward_input ends.
  double weight_bytes = 0;      // Then until backward_weight ends; may exceed activation_bytes.
};

struct TimedPipelineAction {
  PipelineAction action;
  double begin = 0;
  double end = 0;
};

struct SimulatedPipeline {
  double time = 0;
  double bubble = 0;                                      // Idle share of all ranks' time, 0 to 1.
  std::vector<std::vector<TimedPipelineAction>> actions;  // By rank.
  std::vector<double> peak_bytes;                         // By rank: most activation bytes at once.
  std::vector<int> peak_microbatches;                     // By rank: most activations at once.
};

// A rank starts an action when its previous one is done and dependencies have arrived. Sending does
// not block computation. `costs` has one element, or one per stage.
// Errors: as check_pipeline_order(); misuse for negative costs and a wrong number of elements.
LOCKSTEP_API SimulatedPipeline simulate(const PipelineOrder& order,
                                        const std::vector<PipelineStageCost>& costs = {{}});

// Element b: the most outputs, or gradients, in use at once between stages b and b + 1, for any
// durations. It is 0 if one rank has both stages. An output is in use from the start of its forward
// until stage b + 1 has done its backward (or backward_weight, if separate). A gradient is in use
// from the start of stage b + 1's backward (or backward_input) until stage b has done its backward
// (or backward_weight).
// Errors: as check_pipeline_order().
struct PipelineSlots {
  std::vector<int> outputs;
  std::vector<int> gradients;
};
LOCKSTEP_API PipelineSlots slots_of(const PipelineOrder& order);

// Draw a line per rank, and an axis. Text is at most `columns` wide, unless ranks' names need more.
// An action is its stage (if a rank has several), kind and microbatch, such as F5, then '-' for its
// duration; '.' is idle. Narrow pictures omit the stage, then the microbatch.
LOCKSTEP_API std::string draw_text(const SimulatedPipeline& simulated, int columns = 100);
LOCKSTEP_API std::string draw_svg(const SimulatedPipeline& simulated);

}  // namespace lockstep

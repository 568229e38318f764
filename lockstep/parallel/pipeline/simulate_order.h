// Simulates an order of a pipeline: time, bubble, memory and message slots; and draws it.
//
// Thread safety: pure functions.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "lockstep/base/api.h"
#include "lockstep/parallel/pipeline/pipeline_order.h"

namespace lockstep {

// Cost of a microbatch in one stage. Times are in any unit, such as seconds.
struct PipelineStageCost {
  double forward = 1;
  double backward_input = 1;
  double backward_weight = 1;
  double whole_backward = 0;  // 0: the sum of both. One pass may take less.
  double send = 0;  // Time to send the output to the next stage, or its gradient back; ignored on
                    // one rank.
  double activation_bytes = 1;  // From forward to the end of backward.
  double weight_bytes = 0;      // From backward_input to backward_weight; may exceed activations.
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

// A rank starts an action when its previous actions are done and all dependencies have arrived.
// Sending does not block computation. `costs` has one element, or one per stage.
// Errors: as check_pipeline_order(); misuse for negative costs and a wrong number of elements.
LOCKSTEP_API SimulatedPipeline simulate(const PipelineOrder& order,
                                        const std::vector<PipelineStageCost>& costs = {{}});

// The most outputs, and gradients, that can be in use at once between stages b and b + 1, for any
// duration of actions. Both are 0 if the stages are on one rank. An output is in use from the start
// of its forward until the next stage has done its backward (or backward_weight, if separate). A
// gradient is in use until the previous stage has done the same.
// Errors: as check_pipeline_order().
struct PipelineSlots {
  std::vector<int> outputs;
  std::vector<int> gradients;
};
LOCKSTEP_API PipelineSlots slots_of(const PipelineOrder& order);

// These draw a line for each rank, and an axis. Text is at most `columns` wide, unless ranks' names
// need more. An action is its kind and microbatch, such as F5, then '-' for its duration; '.' is an
// idle rank. A narrow picture shows kinds only.
LOCKSTEP_API std::string draw_text(const SimulatedPipeline& simulated, int columns = 100);
LOCKSTEP_API std::string draw_svg(const SimulatedPipeline& simulated);

}  // namespace lockstep

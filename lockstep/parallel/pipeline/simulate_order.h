// Simulates an order of a pipeline: time, bubble, memory, slots; and draws it.
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
  double whole_backward = 0;    // 0: the sum of both; it may be less, as one pass shares work.
  double send = 0;              // To move its output to the next stage, or the output's gradient
                                // back; nothing if both stages are on one rank.
  double activation_bytes = 1;  // Kept from forward to the end of backward.
  double weight_bytes = 0;      // Kept from backward_input until backward_weight: inputs of layers,
                                // and gradients of their outputs; perhaps more than activations.
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
  std::vector<double> peak_bytes;                         // By rank: activations at once.
  std::vector<int> peak_microbatches;  // By rank: activations at once, as counts.
};

// Each rank begins an action when it has done those before it and all that it needs is there.
// Sending does not keep a rank from computing. `costs` has one element, or one for each stage.
// Errors: as check_pipeline_order(); misuse for costs that are negative or not of all stages.
LOCKSTEP_API SimulatedPipeline simulate(const PipelineOrder& order,
                                        const std::vector<PipelineStageCost>& costs = {{}});

// By boundary (that between stages b and b + 1): how many outputs, and how many gradients, can be
// in use at once, however long actions take; 0 if both stages are on one rank. With as many slots
// no rank ever waits for one, if it takes any that is free: they are not freed in turn. A forward's
// output is in use from its begin until the next stage has done its backward (its backward_weight,
// if this is separate); a gradient until the stage before has done the same.
// Errors: as check_pipeline_order().
struct PipelineSlots {
  std::vector<int> outputs;
  std::vector<int> gradients;
};
LOCKSTEP_API PipelineSlots slots_of(const PipelineOrder& order);

// A picture of time: a line of text for each rank and an axis, at most `columns` wide (or as the
// ranks' names need); or an SVG image. In text, an action is its kind and microbatch, such as F5,
// with '-' for as long as it goes on, and '.' is an idle rank; a narrow picture has kinds alone.
LOCKSTEP_API std::string draw_text(const SimulatedPipeline& simulated, int columns = 100);
LOCKSTEP_API std::string draw_svg(const SimulatedPipeline& simulated);

}  // namespace lockstep

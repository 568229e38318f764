// The measurements of `lockstep plan`: costs of each kind of layer, and of communication on this
// host. A program writes it as JSON; the command reads it without LibTorch. Times are in seconds.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "lockstep/base/api.h"

namespace lockstep {

// One microbatch in one layer on one rank.
struct LayerSample {
  int rows = 0;
  double forward = 0;
  double backward = 0;
  double backward_input = 0;   // First part of a split backward.
  double backward_weight = 0;  // Second part; near zero without trained parameters.
  double kept_bytes = 0;    // Activations from the end of forward until backward, with the output.
  double weight_bytes = 0;  // Kept between the parts of a split backward.
  double peak_bytes = 0;    // Without gradients of parameters.
  double split_peak_bytes = 0;  // The same with a split backward.
  double held_input_bytes = 0;  // Input of the loss that its backward needs.
  double output_bytes = 0;      // Passed to the next layer.
};

// One rank's part of a layer that is cut over `tp` ranks.
struct LayerPart {
  int tp = 1;
  std::string refusal = {};  // Why it cannot be cut; the fields below are then invalid.
  double parameter_bytes = 0;
  double gradient_bytes = 0;              // For trained parameters.
  double large_gradient_bytes = 0;        // Averaged in place.
  double state_bytes = 0;                 // Kept by the optimizer.
  double optimizer = 0;                   // Time of its step.
  std::vector<LayerSample> samples = {};  // Rows increase.
};

// Layers of one kind (PlanOptions::kind_of).
struct LayerKind {
  std::string name = {};  // The first layer's.
  std::vector<LayerPart> parts = {};
};

// A reduction among `ranks` ranks, while the other ranks of the host do the same in such groups.
struct ReduceSample {
  int ranks = 0;
  double bytes = 0;
  double all_reduce = 0;
  double reduce_scatter = 0;
};

// Layers that share a weight.
struct TiedLayers {
  int layer = 0;
  int same_as = 0;
  double bytes = 0;  // The whole weight's.
};

struct ModelProfile {
  int ranks = 1;  // Measured at the same time.
  int rows = 0;   // In a whole step.
  double parameters = 0;
  std::vector<std::string> layers = {};  // Names, in order.
  std::vector<int> kind_of_layer = {};
  std::vector<LayerKind> kinds = {};
  LayerKind loss = {};
  std::vector<TiedLayers> ties = {};
  std::vector<ReduceSample> reduces = {};  // By ranks, then by bytes.
  double copy_bandwidth = 0;               // For one rank's copies, in bytes per second.
  double library_bytes = 0;                // Shared by all processes of a host.
  double process_bytes = 0;                // For a rank without a model.
  bool has_context_parallel = false;       // Features of the program.
  bool has_fully_sharded = false;
  bool has_pipeline = true;
};

LOCKSTEP_API std::string to_json(const ModelProfile& profile);

// Errors: corrupt for input that to_json() does not write, or that contradicts itself. Examples are
// an undefined kind, and rows of samples that do not increase.
LOCKSTEP_API ModelProfile parse_model_profile(std::string_view json);

}  // namespace lockstep

// Predicts memory and time of a training step for every way to divide a model among ranks. A layout
// is a mesh {pp, dp, cp, tp}, whose last axis varies fastest: tensor parallel ranks are adjacent.
// The predictions use measurements of one layer of each kind (model_profile.h). Thread safety:
// full.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "lockstep/parallel/pipeline/pipeline_order.h"
#include "lockstep/parallel/pipeline/simulate_order.h"
#include "lockstep/toolkit/plan/model_profile.h"

namespace lockstep::tools {

struct Machine {
  int ranks = 1;  // On all hosts; a multiple of `hosts`.
  int hosts = 1;
  double host_bytes = 0;        // Memory of a host.
  double link_bandwidth = 0;    // Bytes per second of a host in each direction, full duplex.
  double link_latency = 50e-6;  // Seconds until a message arrives.

  int ranks_per_host() const { return ranks / hosts; }
};

struct Layout {
  int dp = 1;
  int tp = 1;
  int pp = 1;
  int cp = 1;
  bool fsdp = false;  // The ranks of dp and cp share the weights and optimizer state.
  int microbatches = 1;
};

struct PredictedLayout {
  Layout layout = {};
  std::string impossible = {};  // Why it is impossible; then nothing below is set.
  bool fits = false;

  // Maximum bytes of tensors that a rank has or has mapped, and of a host, where shared memory
  // counts once.
  double rank_bytes = 0;
  double activation_bytes = 0;  // Part of rank_bytes, including temporary gradients.
  double host_bytes = 0;

  double link_bytes = 0;  // Maximum that a host sends to others in a step.
  double bubble = 0;      // Idle share of a pipeline's ranks while it computes, 0 to 1.
  double step = 0;        // Seconds, including:
  double compute = 0;
  double reduce = 0;  // Gradients over the ranks of dp and cp, of tied weights; gathered weights.
  double optimizer = 0;

  // For a pipeline: the fastest schedule that fits, and the first layers of all stages but the
  // first.
  std::optional<PipelineSchedule> schedule = {};
  std::vector<int> cut = {};
};

// First those that fit, fastest first; then those that do not fit, smallest first; then impossible
// ones.
std::vector<PredictedLayout> predict_layouts(const ModelProfile& profile, const Machine& machine);

// In milliseconds.
SimulatedPipeline simulate_layout(const ModelProfile& profile, const Machine& machine,
                                  const PredictedLayout& predicted);

// Interpolated linearly between samples.
LayerSample sample_at(const LayerPart& part, double rows);

}  // namespace lockstep::tools

// Predicts memory and time of a training step for every way to divide a model among ranks.
//
// A layout is a mesh {pp, dp, cp, tp}: the last axis varies fastest, so tensor parallel ranks are
// neighbours and stages of a pipeline are the farthest apart. Numbers follow from what was measured
// for one layer of each kind (model_profile.h); the space is small enough to try all of it.
//
// Thread safety: pure functions.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "lockstep/parallel/pipeline/pipeline_order.h"
#include "lockstep/parallel/pipeline/simulate_order.h"
#include "lockstep/parallel/plan/model_profile.h"

namespace lockstep::tools {

struct Machine {
  int ranks = 1;  // Of all hosts, a multiple of `hosts`.
  int hosts = 1;
  double host_bytes = 0;        // Memory of a host.
  double link_bandwidth = 0;    // Bytes a second that a host sends, and receives at the same time.
  double link_latency = 50e-6;  // Seconds until a message arrives.

  int ranks_per_host() const { return ranks / hosts; }
};

struct Layout {
  int dp = 1;
  int tp = 1;
  int pp = 1;
  int cp = 1;
  bool fsdp = false;  // The ranks of dp and cp share one copy of weights and optimizer state.
  int microbatches = 1;
};

struct PredictedLayout {
  Layout layout = {};
  std::string impossible = {};  // Why it cannot be; then nothing below is set.
  bool fits = false;

  // Bytes of tensors that the fullest rank has or has mapped, and of all processes of the fullest
  // host: there, memory that several ranks share counts once.
  double rank_bytes = 0;
  double activation_bytes = 0;  // Of these, with gradients that are there for a while only.
  double host_bytes = 0;

  double link_bytes = 0;  // What the busiest host sends to others in a step.
  double bubble = 0;      // Idle share of a pipeline's ranks while it computes, 0 to 1.
  double step = 0;        // Seconds, of which:
  double compute = 0;
  double reduce = 0;  // Gradients over the ranks of dp and cp, of tied weights; gathered weights.
  double optimizer = 0;

  // Of a pipeline: the fastest schedule that fits, and the first layer of each stage but the first.
  std::optional<PipelineSchedule> schedule = {};
  std::vector<int> cut = {};
};

// All layouts of machine.ranks: first those that fit, the fastest first; then those that do not
// fit, the smallest first; then those that are impossible.
std::vector<PredictedLayout> predict_layouts(const ModelProfile& profile, const Machine& machine);

// The simulation of a pipeline that was predicted, for a picture: in milliseconds.
SimulatedPipeline simulate_layout(const ModelProfile& profile, const Machine& machine,
                                  const PredictedLayout& predicted);

// What a layer costs for microbatches of `rows` rows: on the line between the samples next to it.
LayerSample sample_at(const LayerPart& part, double rows);

}  // namespace lockstep::tools

// A model that a layout divides among ranks: costs of its stages and of a pipeline's ranks. Knows
// nothing of hosts.
//
// Thread safety: pure functions.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <vector>

#include "lockstep/parallel/pipeline/pipeline_order.h"
#include "lockstep/parallel/plan/model_profile.h"
#include "tools/plan/layouts.h"

namespace lockstep::tools {

constexpr std::size_t as_index(int value) { return static_cast<std::size_t>(value); }

// Of a stage, for one microbatch, or of all stages of a rank. Seconds and bytes.
struct StageCosts {
  double forward = 0;
  double backward = 0;
  double backward_input = 0;
  double backward_weight = 0;
  double optimizer = 0;
  double kept = 0;          // Activations from forward until backward.
  double weight_bytes = 0;  // Of a split backward: what stays until its second part.
  double peak = 0;          // While a microbatch goes through.
  double split_peak = 0;    // The same with a split backward.
  double growing_peak = 0;  // The same as `peak` if gradients come, too, which are not there yet.
  double output = 0;        // Passed to the next stage.
  double parameters = 0;
  double gradients = 0;
  double state = 0;
  double large_gradients = 0;  // That are averaged in place.
  double largest_unit = 0;     // Of these, the most that one layer has.
  double largest_layer = 0;    // Parameters.
  int reductions = 0;          // Layers with gradients.
};

class DividedModel {
 public:
  DividedModel(const ModelProfile& profile, const Layout& layout);

  int layers() const { return static_cast<int>(layers_.size()) - 1; }

  // First layers of `stages` stages but the first. The last stage has the loss, too.
  std::vector<int> cut_into(int stages) const;

  // A weight that two layers of a rank share is there once.
  std::vector<StageCosts> stages(const PipelineOrder& order, const std::vector<int>& cut) const;

  // By rank: what its stages have together. No times but the optimizer's.
  std::vector<StageCosts> ranks(const PipelineOrder& order,
                                const std::vector<StageCosts>& stages) const;

  // By rank: activations, and gradients that are not there all the time, at most.
  std::vector<double> peaks(const PipelineOrder& order,
                            const std::vector<StageCosts>& stages) const;

  // What a rank alone has all the time, and what it shares with all ranks of its host that have the
  // same part of the model: with one copy on one host the parameters, on several `hosts` two
  // gathered units.
  double own_bytes(const StageCosts& rank, int hosts) const;
  double shared_bytes(const StageCosts& rank, int hosts) const;

  // A weight of two ranks, as one of them has it.
  double bytes_of(const TiedLayers& tie) const;

 private:
  struct Layer {
    LayerSample sample;
    const LayerPart* part;
  };

  void add_layer(const LayerKind& kind);
  void add(StageCosts& costs, int layer, double tied) const;
  double tied_away(int layer, const PipelineOrder& order, const std::vector<int>& cut) const;
  double growth_of_gradients() const;
  double pool_bytes() const;
  int replicas() const { return layout_.dp * layout_.cp; }

  const ModelProfile& profile_;
  const Layout layout_;
  std::vector<Layer> layers_;  // The loss is the last.
};

// The stage of a layer.
int stage_of(int layer, const std::vector<int>& cut);

// Null if the kind was not measured so.
const LayerPart* part_of(const LayerKind& kind, int tp);

}  // namespace lockstep::tools

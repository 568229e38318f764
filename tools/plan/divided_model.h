// Costs of a divided model by stage and by rank. Thread safety: full.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <vector>

#include "lockstep/parallel/pipeline/pipeline_order.h"
#include "lockstep/toolkit/plan/model_profile.h"
#include "tools/plan/layouts.h"

namespace lockstep::tools {

constexpr std::size_t as_index(int value) { return static_cast<std::size_t>(value); }

// Costs of a stage for one microbatch, or of all stages of a rank. Seconds and bytes.
struct StageCosts {
  double forward = 0;
  double backward = 0;
  double backward_input = 0;
  double backward_weight = 0;
  double optimizer = 0;
  double kept = 0;          // Activations between forward and backward.
  double weight_bytes = 0;  // For a split backward: kept until its second part.
  double peak = 0;          // During a microbatch.
  double split_peak = 0;    // As `peak`, with a split backward.
  double growing_peak = 0;  // As `peak`, if gradients are allocated meanwhile.
  double output = 0;        // Sent to the next stage.
  double parameters = 0;
  double gradients = 0;
  double state = 0;
  double large_gradients = 0;  // Averaged in place.
  double largest_unit = 0;     // One layer's maximum of these.
  double largest_layer = 0;    // One layer's maximum of parameters.
  int reductions = 0;          // Layers with gradients.
};

class DividedModel {
 public:
  DividedModel(const ModelProfile& profile, const Layout& layout);

  int layers() const { return static_cast<int>(layers_.size()) - 1; }

  // The first layers of all stages but the first. The last stage includes the loss.
  std::vector<int> cut_into(int stages) const;

  // By stage. A weight that two layers of a rank share counts once.
  std::vector<StageCosts> stages(const PipelineOrder& order, const std::vector<int>& cut) const;

  // Sums of stages. The only time is the optimizer's.
  std::vector<StageCosts> ranks(const PipelineOrder& order,
                                const std::vector<StageCosts>& stages) const;

  // Maximum of activations and temporary gradients.
  std::vector<double> peaks(const PipelineOrder& order,
                            const std::vector<StageCosts>& stages) const;

  // Permanent bytes of a rank alone, and those shared by ranks of its host with the same part of
  // the model. With share_parameters, these are the parameters on one host, and two gathered units
  // on several `hosts`.
  double own_bytes(const StageCosts& rank, int hosts) const;
  double shared_bytes(const StageCosts& rank, int hosts) const;

  // Bytes of a weight that two ranks share, on one of them.
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
  std::vector<Layer> layers_;  // The loss is last.
};

int stage_of(int layer, const std::vector<int>& cut);

// Null if the kind was not measured with this `tp`.
const LayerPart* part_of(const LayerKind& kind, int tp);

}  // namespace lockstep::tools

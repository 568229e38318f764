// SPDX-License-Identifier: Apache-2.0
#include "tools/plan/divided_model.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>

#include "lockstep/base/error.h"
#include "lockstep/parallel/pipeline/cut_by_costs.h"

namespace lockstep::tools {
namespace {

constexpr std::array measures{&LayerSample::forward,          &LayerSample::backward,
                              &LayerSample::backward_input,   &LayerSample::backward_weight,
                              &LayerSample::kept_bytes,       &LayerSample::weight_bytes,
                              &LayerSample::peak_bytes,       &LayerSample::split_peak_bytes,
                              &LayerSample::held_input_bytes, &LayerSample::output_bytes};

LayerSample scaled(LayerSample sample, double factor) {
  for (const auto measure : measures) sample.*measure *= factor;
  return sample;
}

struct Added {
  double most = 0;   // While it runs.
  double after = 0;  // After its end; negative if it frees more.
};

Added added_by(PipelineActionKind kind, const StageCosts& stage, double gradients) {
  switch (kind) {
    case PipelineActionKind::forward:
      return {stage.kept, stage.kept};
    case PipelineActionKind::backward:
      return {(gradients > 0 ? stage.growing_peak : stage.peak) - stage.kept,
              gradients - stage.kept};
    case PipelineActionKind::backward_input:
      return {stage.split_peak - stage.kept, stage.weight_bytes - stage.kept};
    case PipelineActionKind::backward_weight:
      break;
  }
  return {gradients, gradients - stage.weight_bytes};
}

double time_of(const LayerSample& sample) { return sample.forward + sample.backward; }

}  // namespace

LayerSample sample_at(const LayerPart& part, double rows) {
  const auto& samples = part.samples;
  check(!samples.empty(), "a layer's profile has no sample");
  if (samples.size() == 1) return scaled(samples.front(), rows / samples.front().rows);
  const auto high = std::find_if(samples.begin() + 1, samples.end() - 1,
                                 [&](const LayerSample& each) { return each.rows >= rows; });
  const auto low = high - 1;
  const double share = (rows - low->rows) / (high->rows - low->rows);
  LayerSample sample{.rows = static_cast<int>(std::lround(rows))};
  for (const auto measure : measures)
    sample.*measure = std::max(0., (*low).*measure + share * ((*high).*measure - (*low).*measure));
  return sample;
}

int stage_of(int layer, const std::vector<int>& cut) {
  return static_cast<int>(std::upper_bound(cut.begin(), cut.end(), layer) - cut.begin());
}

const LayerPart* part_of(const LayerKind& kind, int tp) {
  for (const LayerPart& part : kind.parts)
    if (part.tp == tp) return &part;
  return nullptr;
}

DividedModel::DividedModel(const ModelProfile& profile, const Layout& layout)
    : profile_(profile), layout_(layout) {
  for (const int kind : profile.kind_of_layer) add_layer(profile.kinds[as_index(kind)]);
  add_layer(profile.loss);
  // A pipeline frees the model's output after the loss, unless backward() needs it.
  if (layout.pp == 1) return;
  const LayerSample& last = layers_[layers_.size() - 2].sample;
  LayerSample& loss = layers_.back().sample;
  loss.kept_bytes += loss.held_input_bytes - std::min(last.output_bytes, last.kept_bytes);
}

// A rank with a part of each sequence does that part of the work.
void DividedModel::add_layer(const LayerKind& kind) {
  const LayerPart* const part = part_of(kind, layout_.tp);
  const double rows = static_cast<double>(profile_.rows) / layout_.dp / layout_.microbatches;
  layers_.push_back({scaled(sample_at(*part, rows), 1. / layout_.cp), part});
}

std::vector<int> DividedModel::cut_into(int stages) const {
  std::vector<double> costs;
  for (int layer = 0; layer < layers(); ++layer)
    costs.push_back(time_of(layers_[as_index(layer)].sample));
  costs.back() += time_of(layers_.back().sample);
  std::vector<int> cut = cut_by_costs(costs, stages);
  cut.erase(cut.begin());
  return cut;
}

double DividedModel::bytes_of(const TiedLayers& tie) const {
  const LayerKind& kind = profile_.kinds[as_index(profile_.kind_of_layer[as_index(tie.layer)])];
  const LayerPart* const whole = part_of(kind, 1);
  if (whole == nullptr || whole->parameter_bytes == 0) return tie.bytes;
  return tie.bytes * part_of(kind, layout_.tp)->parameter_bytes / whole->parameter_bytes;
}

// Bytes of weights shared with a later layer on the same rank.
double DividedModel::tied_away(int layer, const PipelineOrder& order,
                               const std::vector<int>& cut) const {
  const auto rank_of = [&](int each) { return order.rank_of_stage[as_index(stage_of(each, cut))]; };
  double bytes = 0;
  for (const TiedLayers& tie : profile_.ties)
    if (std::min(tie.layer, tie.same_as) == layer && rank_of(tie.layer) == rank_of(tie.same_as))
      bytes += bytes_of(tie);
  return bytes;
}

// `layer` is layers() for the loss. `tied`: bytes of its parameters that another layer counts.
void DividedModel::add(StageCosts& costs, int layer, double tied) const {
  const auto& [sample, part] = layers_[as_index(layer)];
  // A frozen tied weight may be larger than the layer's gradients.
  const double left = part->gradient_bytes > 0 ? std::max(0., 1 - tied / part->gradient_bytes) : 1;
  const double gradients = part->gradient_bytes * left;
  costs.forward += sample.forward;
  costs.backward += sample.backward;
  costs.backward_input += sample.backward_input;
  costs.backward_weight += sample.backward_weight;
  costs.optimizer += part->optimizer * left;
  costs.peak = std::max(costs.peak, costs.kept + sample.peak_bytes);
  costs.growing_peak = std::max(costs.growing_peak, costs.kept + sample.peak_bytes) +
                       growth_of_gradients() * gradients;
  // A split backward's first part frees nothing until it has passed the whole stage.
  costs.split_peak += sample.split_peak_bytes;
  costs.kept += sample.kept_bytes;
  costs.weight_bytes += sample.weight_bytes;
  if (layer < layers()) costs.output = sample.output_bytes;
  costs.parameters += part->parameter_bytes - tied;
  costs.gradients += gradients;
  costs.state += part->state_bytes * left;
  costs.large_gradients += part->large_gradient_bytes;
  costs.largest_unit = std::max(costs.largest_unit, part->large_gradient_bytes);
  costs.largest_layer = std::max(costs.largest_layer, part->parameter_bytes);
  if (part->gradient_bytes > 0) costs.reductions += 1;
}

std::vector<StageCosts> DividedModel::stages(const PipelineOrder& order,
                                             const std::vector<int>& cut) const {
  std::vector<StageCosts> stages(as_index(order.stages()));
  for (int layer = 0; layer < layers(); ++layer)
    add(stages[as_index(stage_of(layer, cut))], layer, tied_away(layer, order, cut));
  add(stages.back(), layers(), 0);
  for (StageCosts& stage : stages) stage.weight_bytes = std::min(stage.weight_bytes, stage.kept);
  return stages;
}

std::vector<StageCosts> DividedModel::ranks(const PipelineOrder& order,
                                            const std::vector<StageCosts>& stages) const {
  std::vector<StageCosts> ranks(as_index(order.ranks()));
  for (std::size_t i = 0; i < stages.size(); ++i) {
    StageCosts& rank = ranks[as_index(order.rank_of_stage[i])];
    rank.optimizer += stages[i].optimizer;
    rank.parameters += stages[i].parameters;
    rank.gradients += stages[i].gradients;
    rank.state += stages[i].state;
    rank.large_gradients += stages[i].large_gradients;
    rank.largest_unit = std::max(rank.largest_unit, stages[i].largest_unit);
    rank.largest_layer = std::max(rank.largest_layer, stages[i].largest_layer);
    rank.reductions += stages[i].reductions;
  }
  return ranks;
}

// A stage's first backward allocates gradients. A pipeline adds further microbatches'.
std::vector<double> DividedModel::peaks(const PipelineOrder& order,
                                        const std::vector<StageCosts>& stages) const {
  std::vector<double> peaks;
  for (const auto& actions : order.actions) {
    std::vector<double> to_come;  // Gradients not yet allocated, by stage.
    for (const StageCosts& stage : stages)
      to_come.push_back(growth_of_gradients() * stage.gradients);
    double live = 0, peak = 0;
    for (const auto& [stage, kind, microbatch] : actions) {
      double& gradients = to_come[as_index(stage)];
      const Added added = added_by(kind, stages[as_index(stage)], gradients);
      peak = std::max(peak, live + added.most);
      live += added.after;
      if (kind == PipelineActionKind::backward || kind == PipelineActionKind::backward_weight)
        gradients = 0;
    }
    peaks.push_back(peak);
  }
  return peaks;
}

// The part of a layer's gradients that exists only from its backward on. Replicas have memory for
// all gradients from the start. In a pipeline, that memory holds averages; microbatches are summed
// elsewhere.
double DividedModel::growth_of_gradients() const {
  if (layout_.pp > 1) return 1;
  if (replicas() > 1 && !layout_.fsdp) return 0;
  return 1. / replicas();
}

// Memory where tensor parallel ranks sum activations (tensor/registered_pool.h). The last layer's
// output is split, not summed.
double DividedModel::pool_bytes() const {
  if (layout_.tp == 1) return 0;
  double largest = 1;
  for (int layer = 0; layer + 1 < layers(); ++layer)
    largest = std::max(largest, layers_[as_index(layer)].sample.output_bytes);
  constexpr double least = 1 << 20, most = 256 << 20;
  return std::clamp(2 * std::exp2(std::ceil(std::log2(largest))), least, most);
}

double DividedModel::own_bytes(const StageCosts& rank, int hosts) const {
  if (layout_.fsdp) {
    const double slices = (hosts > 1 ? rank.parameters : 0) + rank.state;
    const double rooms = std::min(2 * rank.largest_unit, rank.large_gradients);
    return slices / replicas() + rooms + pool_bytes();
  }
  const double averaged = replicas() > 1 ? rank.gradients : 0;
  // Small gradients outside the buckets replace activations in backward(): the peak excludes
  // them.
  return rank.parameters + rank.state + averaged + pool_bytes();
}

double DividedModel::shared_bytes(const StageCosts& rank, int hosts) const {
  if (!layout_.fsdp) return 0;
  return hosts > 1 ? std::min(2 * rank.largest_layer, rank.parameters) : rank.parameters;
}

}  // namespace lockstep::tools

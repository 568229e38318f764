// SPDX-License-Identifier: Apache-2.0
#include "lockstep/toolkit/plan/model_profile.h"

#include <cstddef>
#include <nlohmann/json.hpp>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"

namespace lockstep {

namespace {

[[noreturn]] void refuse(const std::string& complaint) {
  throw Error(Fault::corrupt, "the profile of a model: " + complaint);
}

// Unknown fields and wrong types are missing or differ in `written`.
void check_fields(const nlohmann::json& read, const nlohmann::json& written) {
  if (read != written) refuse("it has fields or values that are never written");
  constexpr double largest = 1e18;  // Keeps sums and products finite.
  const nlohmann::json leaves = written.flatten();
  for (const auto& [path, value] : leaves.items())
    if (value.is_number() && (value < 0 || value > largest)) refuse(path + " is out of range");
}

void check_part(const LayerPart& part, const std::string& name) {
  if (part.samples.empty() && part.refusal.empty()) refuse(name + " was not measured");
  int rows = 0;
  for (const LayerSample& sample : part.samples) {
    if (sample.rows <= rows) refuse("rows of " + name + " do not increase");
    rows = sample.rows;
  }
}

void check_kind(const LayerKind& kind) {
  const std::string name = clean_text(kind.name, 60);
  if (kind.parts.empty() || kind.parts.front().tp != 1 || !kind.parts.front().refusal.empty())
    refuse(name + " was not measured whole");
  int tp = 0;
  for (const LayerPart& part : kind.parts) {
    if (part.tp <= tp) refuse("tensor parallel ranks of " + name + " do not increase");
    tp = part.tp;
    check_part(part, name);
  }
}

void check_layers(const ModelProfile& profile) {
  if (profile.layers.empty()) refuse("there are no layers");
  if (profile.kind_of_layer.size() != profile.layers.size())
    refuse("kinds are not those of its layers");
  for (const int kind : profile.kind_of_layer)
    if (std::cmp_greater_equal(kind, profile.kinds.size()))
      refuse("there is no kind " + std::to_string(kind));
  for (const LayerKind& kind : profile.kinds) check_kind(kind);
  check_kind(profile.loss);
}

void check_tie(const ModelProfile& profile, const TiedLayers& tie) {
  for (const int layer : {tie.layer, tie.same_as}) {
    if (std::cmp_greater_equal(layer, profile.layers.size()))
      refuse("there is no layer " + std::to_string(layer));
    const auto kind = profile.kind_of_layer[static_cast<std::size_t>(layer)];
    const LayerPart& whole = profile.kinds[static_cast<std::size_t>(kind)].parts.front();
    if (tie.bytes > whole.parameter_bytes)
      refuse("a tied weight is larger than layer " + std::to_string(layer));
  }
}

}  // namespace

NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(LayerSample, rows, forward, backward, backward_input,
                                   backward_weight, kept_bytes, weight_bytes, peak_bytes,
                                   split_peak_bytes, held_input_bytes, output_bytes)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(LayerPart, tp, refusal, parameter_bytes, gradient_bytes,
                                   large_gradient_bytes, state_bytes, optimizer, samples)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(LayerKind, name, parts)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(ReduceSample, ranks, bytes, all_reduce, reduce_scatter)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(TiedLayers, layer, same_as, bytes)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(ModelProfile, ranks, rows, parameters, layers, kind_of_layer,
                                   kinds, loss, ties, reduces, copy_bandwidth, library_bytes,
                                   process_bytes, has_context_parallel, has_fully_sharded,
                                   has_pipeline)

std::string to_json(const ModelProfile& profile) {
  constexpr int indentation = 1;
  return nlohmann::json(profile).dump(indentation);
}

ModelProfile parse_model_profile(std::string_view json) {
  ModelProfile profile;
  try {
    const auto read = nlohmann::json::parse(json);
    profile = read.get<ModelProfile>();
    check_fields(read, profile);
  } catch (const nlohmann::json::exception& error) {
    refuse(error.what());
  }
  if (profile.ranks < 1 || profile.rows < 1) refuse("it has no ranks or no rows");
  check_layers(profile);
  for (const TiedLayers& tie : profile.ties) check_tie(profile, tie);
  for (const ReduceSample& sample : profile.reduces)
    if (sample.bytes < 1) refuse("a reduction of no bytes");
  return profile;
}

}  // namespace lockstep

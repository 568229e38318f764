// SPDX-License-Identifier: Apache-2.0
#include "lockstep/parallel/plan/model_profile.h"

#include <nlohmann/json.hpp>

#include "lockstep/base/error.h"

namespace lockstep {

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
  try {
    return nlohmann::json::parse(json).get<ModelProfile>();
  } catch (const nlohmann::json::exception& error) {
    throw Error(Fault::corrupt, std::string("the profile of a model: ") + error.what());
  }
}

}  // namespace lockstep

// F9: the profile of a model, as `lockstep plan --profile` reads it. The first byte selects: the
// rest is read unchanged, or replaces values of a valid profile. A prediction must succeed for
// every profile that is accepted.

// SPDX-License-Identifier: Apache-2.0
#include <climits>
#include <cmath>
#include <iterator>
#include <nlohmann/json.hpp>
#include <span>

#include "lockstep/base/error.h"
#include "lockstep/toolkit/plan/model_profile.h"
#include "tests/fuzz/target.h"
#include "tools/plan/layouts.h"

namespace lockstep::fuzz {
namespace {

LayerKind kind(const char* name, double bytes) {
  LayerKind kind{.name = name};
  for (const int tp : {1, 2}) {
    LayerPart part{.tp = tp,
                   .parameter_bytes = bytes,
                   .gradient_bytes = bytes,
                   .large_gradient_bytes = bytes,
                   .state_bytes = 2 * bytes,
                   .optimizer = 0.1};
    for (const int rows : {1, 4})
      part.samples.push_back({.rows = rows,
                              .forward = 0.1 * rows,
                              .backward = 0.2 * rows,
                              .backward_input = 0.1 * rows,
                              .backward_weight = 0.1 * rows,
                              .kept_bytes = 64. * rows,
                              .peak_bytes = 128. * rows,
                              .output_bytes = 16. * rows});
    kind.parts.push_back(part);
  }
  return kind;
}

ModelProfile example() {
  return {.ranks = 2,
          .rows = 8,
          .parameters = 500,
          .layers = {"in", "h", "out"},
          .kind_of_layer = {0, 1, 0},
          .kinds = {kind("in", 1000), kind("h", 2000)},
          .loss = kind("loss", 0),
          .ties = {{.layer = 2, .same_as = 0, .bytes = 800}},
          .reduces = {{.ranks = 2, .bytes = 1e3, .all_reduce = 0.1, .reduce_scatter = 0.1},
                      {.ranks = 2, .bytes = 1e6, .all_reduce = 0.5, .reduce_scatter = 0.4}},
          .copy_bandwidth = 1e9,
          .process_bytes = 1e6,
          .has_context_parallel = true,
          .has_fully_sharded = true};
}

// An edit has two bytes: the position and the value.
std::string edited(std::span<const std::uint8_t> edits) {
  static const nlohmann::json values{0,    1,       2,    3,         -1,      0.5,  1e-300, 100.,
                                     1e18, INT_MAX, 1e19, 1LL << 32, nullptr, true, "no"};
  auto profile = nlohmann::json::parse(to_json(example()));
  for (; edits.size() > 1; edits = edits.subspan(2)) {
    const nlohmann::json leaves = profile.flatten();
    const auto leaf = std::next(leaves.begin(), edits[0] % static_cast<int>(leaves.size()));
    const nlohmann::json::json_pointer place(leaf.key());
    if (edits[1] < values.size())
      profile[place] = values[edits[1]];
    else if (!place.empty())
      profile[place.parent_pointer()] = nlohmann::json::array();
  }
  return profile.dump();
}

void predict(const ModelProfile& profile, int hosts) {
  const tools::Machine machine{
      .ranks = 2 * hosts, .hosts = hosts, .host_bytes = 1e7, .link_bandwidth = 1e6};
  for (const tools::PredictedLayout& each : predict_layouts(profile, machine)) {
    if (!each.impossible.empty()) continue;
    for (const double value : {each.step, each.rank_bytes, each.host_bytes, each.link_bytes})
      expect(std::isfinite(value) && value >= 0);
    if (each.schedule) simulate_layout(profile, machine, each);
  }
}

}  // namespace

std::vector<std::string> seeds() {
  ModelProfile one_layer = example();
  one_layer.layers = {"h"};
  one_layer.kind_of_layer = {1};
  one_layer.ties = {};
  return {'\0' + to_json(example()), '\0' + to_json(one_layer), "\1\7\1", "\1\50\3\50\5\70\7"};
}

}  // namespace lockstep::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace lockstep;
  if (size == 0) return 0;
  const std::span rest(data + 1, size - 1);
  const std::string json =
      data[0] % 2 == 1 ? fuzz::edited(rest) : std::string(rest.begin(), rest.end());
  ModelProfile profile;
  try {
    profile = parse_model_profile(json);
  } catch (const Error& error) {
    fuzz::expect(error.fault() == Fault::corrupt);
    return 0;
  }
  fuzz::expect(to_json(parse_model_profile(to_json(profile))) == to_json(profile));
  for (const int hosts : {1, 2}) fuzz::predict(profile, hosts);
  return 0;
}

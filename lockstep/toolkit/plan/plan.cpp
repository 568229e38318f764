// SPDX-License-Identifier: Apache-2.0
#include "lockstep/toolkit/plan/plan.h"

#include <algorithm>
#include <cstddef>
#include <cstdlib>
#include <string>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/base/text_file.h"
#include "lockstep/base/variables.h"
#include "lockstep/comm/values.h"
#include "lockstep/toolkit/plan/model_profile.h"
#include "lockstep/toolkit/plan/profile_host.h"
#include "lockstep/toolkit/plan/profile_layers.h"

namespace lockstep::plan {
namespace {

constexpr const char* variable = "LOCKSTEP_PLAN";

// Empty unless `lockstep plan` started this process.
std::string asked_file() {
  const char* const file = read_variable(variable);
  return file != nullptr ? file : "";
}

void take_slower(LayerKind& kind, const LayerKind& other) {
  for (std::size_t p = 0; p < kind.parts.size(); ++p) {
    kind.parts[p].optimizer = std::max(kind.parts[p].optimizer, other.parts[p].optimizer);
    for (std::size_t s = 0; s < kind.parts[p].samples.size(); ++s) {
      LayerSample& one = kind.parts[p].samples[s];
      const LayerSample& theirs = other.parts[p].samples[s];
      for (const auto time : {&LayerSample::forward, &LayerSample::backward,
                              &LayerSample::backward_input, &LayerSample::backward_weight})
        one.*time = std::max(one.*time, theirs.*time);
    }
  }
}

bool have_same_parts(const LayerKind& one, const LayerKind& other) {
  return std::ranges::equal(one.parts, other.parts, [](const LayerPart& a, const LayerPart& b) {
    return a.tp == b.tp &&
           std::ranges::equal(a.samples, b.samples, {}, &LayerSample::rows, &LayerSample::rows);
  });
}

bool are_alike(const ModelProfile& one, const ModelProfile& other) {
  return one.rows == other.rows && one.layers == other.layers &&
         one.kind_of_layer == other.kind_of_layer && have_same_parts(one.loss, other.loss) &&
         std::ranges::equal(one.kinds, other.kinds, have_same_parts);
}

// The slowest rank determines a training's time.
ModelProfile combined(const ModelProfile& mine, const ProcessGroup& world) {
  const std::vector<std::string> gathered = all_gather_bytes(to_json(mine), world);
  ModelProfile all = parse_model_profile(gathered.front());
  for (std::size_t rank = 1; rank < gathered.size(); ++rank) {
    const ModelProfile theirs = parse_model_profile(gathered[rank]);
    if (!are_alike(all, theirs))
      throw Error(Fault::mismatch, "plan_if_asked: rank " + std::to_string(rank) +
                                       " measured other layers or rows than rank 0");
    for (std::size_t i = 0; i < all.kinds.size(); ++i) take_slower(all.kinds[i], theirs.kinds[i]);
    take_slower(all.loss, theirs.loss);
    for (std::size_t i = 0; i < all.reduces.size(); ++i) {
      ReduceSample& one = all.reduces[i];
      one.all_reduce = std::max(one.all_reduce, theirs.reduces[i].all_reduce);
      one.reduce_scatter = std::max(one.reduce_scatter, theirs.reduces[i].reduce_scatter);
    }
    all.copy_bandwidth = std::min(all.copy_bandwidth, theirs.copy_bandwidth);
    all.process_bytes = std::max(all.process_bytes, theirs.process_bytes);
  }
  return all;
}

}  // namespace

bool is_asked() { return !asked_file().empty(); }

void measure(const LayerList& layers, const pipeline::PassedValue& batch, const CutLossOf& loss_of,
             const PlanOptions& options) {
  const std::string file = asked_file();
  require(!file.empty(), "plan::measure: `lockstep plan` did not start this process");
  ::unsetenv(variable);  // init_process_group() refuses to start with it.
  ProcessGroup world = init_process_group();
  const plan::ProcessBytes process = plan::resident_bytes();
  ModelProfile profile = plan::profile_layers(layers, batch, loss_of, options, world);
  profile.reduces = plan::measure_reductions(world);
  profile.copy_bandwidth = plan::measure_copies(world);
  profile.process_bytes = process.own;
  profile.library_bytes = process.shared;
  profile.has_context_parallel = options.context_parallel;
  profile.has_fully_sharded = options.fully_sharded;
  profile.has_pipeline = options.pipeline;
  profile = combined(profile, world);
  if (world.rank() == 0) write_file(file, to_json(profile));
  destroy_process_group(world);
}

}  // namespace lockstep::plan

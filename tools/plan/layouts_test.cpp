// SPDX-License-Identifier: Apache-2.0
#include "tools/plan/layouts.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>
#include <tuple>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/parallel/pipeline/cut_by_costs.h"
#include "lockstep/toolkit/plan/model_profile.h"
#include "tests/fault_of.h"

namespace lockstep::tools::layouts_test {
namespace {

using test::fault_of;

LayerPart part(int tp) {
  const double share = 1. / tp;
  return {.tp = tp,
          .parameter_bytes = 100 * share,
          .gradient_bytes = 100 * share,
          .large_gradient_bytes = 100 * share,
          .state_bytes = 200 * share,
          .optimizer = 0.5 * share,
          .samples = {{.rows = 1,
                       .forward = share,
                       .backward = 2 * share,
                       .backward_input = share,
                       .backward_weight = share,
                       .kept_bytes = 10,
                       .weight_bytes = 5,
                       .peak_bytes = 16,
                       .split_peak_bytes = 18,
                       .output_bytes = 4}}};
}

LayerPart loss(int tp) {
  return {.tp = tp,
          .samples = {{.rows = 1,
                       .forward = 0.1,
                       .backward = 0.1,
                       .backward_input = 0.1,
                       .kept_bytes = 1,
                       .peak_bytes = 3}}};
}

ModelProfile profile_of(int layers, int rows) {
  ModelProfile profile{
      .rows = rows,
      .kinds = {{.name = "h.0", .parts = {part(1), part(2)}}},
      .loss = {.name = "loss", .parts = {loss(1), loss(2)}},
      .reduces = {{.ranks = 2, .bytes = 1, .all_reduce = 0.01, .reduce_scatter = 0.005},
                  {.ranks = 2, .bytes = 1000, .all_reduce = 1, .reduce_scatter = 0.5}},
      .process_bytes = 1000,
      .has_context_parallel = true,
      .has_fully_sharded = true};
  for (int layer = 0; layer < layers; ++layer) {
    profile.layers.push_back("h." + std::to_string(layer));
    profile.kind_of_layer.push_back(0);
  }
  return profile;
}

Machine machine_of(int ranks, int hosts = 1) {
  return {.ranks = ranks,
          .hosts = hosts,
          .host_bytes = 1e8,
          .link_bandwidth = 100,
          .link_latency = 0.001};
}

bool is(const Layout& one, const Layout& other) {
  return one.dp == other.dp && one.tp == other.tp && one.pp == other.pp && one.cp == other.cp &&
         one.fsdp == other.fsdp && one.microbatches == other.microbatches;
}

PredictedLayout find(const std::vector<PredictedLayout>& all, const Layout& layout) {
  const auto found = std::find_if(all.begin(), all.end(),
                                  [&](const auto& each) { return is(each.layout, layout); });
  if (found == all.end()) {
    ADD_FAILURE() << "there is no such layout";
    return {};
  }
  return *found;
}

PredictedLayout predicted(const ModelProfile& profile, const Machine& machine,
                          const Layout& layout) {
  return find(predict_layouts(profile, machine), layout);
}

TEST(Layouts, ReplicasHaveEverythingAndAverageGradients) {
  const auto dp = predicted(profile_of(4, 8), machine_of(2), {.dp = 2});
  // Four rows: three seconds each in four layers, and 0.2 for the loss.
  EXPECT_NEAR(dp.compute, 4 * (4 * 3 + 0.2), 1e-9);
  // Four small reductions, and a millisecond per byte.
  EXPECT_NEAR(dp.reduce, 4 * 0.01 + 400 * 0.001, 1e-9);
  EXPECT_NEAR(dp.optimizer, 4 * 0.5, 1e-9);
  EXPECT_NEAR(dp.step, dp.compute + dp.reduce + dp.optimizer, 1e-9);
  // The last layer is at its peak.
  EXPECT_NEAR(dp.activation_bytes, 4 * (3 * 10 + 16), 1e-9);
  EXPECT_NEAR(dp.rank_bytes, 4 * (100 + 100 + 200) + 184, 1e-9);
  EXPECT_NEAR(dp.host_bytes, 2 * (1784 + 1000), 1e-9);
  EXPECT_EQ(dp.link_bytes, 0);
  EXPECT_EQ(dp.bubble, 0);
  EXPECT_TRUE(dp.fits);
  EXPECT_FALSE(dp.schedule);
}

TEST(Layouts, FullyShardedRanksHaveOneCopyAndTwoUnitsOfGradients) {
  const auto fsdp = predicted(profile_of(4, 8), machine_of(2), {.dp = 2, .fsdp = true});
  EXPECT_NEAR(fsdp.reduce, 4 * 0.005 + 400 * 0.0005, 1e-9);
  EXPECT_NEAR(fsdp.optimizer, 4 * 0.5 / 2, 1e-9);
  // In the first layer's backward, the averages of all other layers exist.
  const double activations = 4 * 16 + 400 / 2.;
  EXPECT_NEAR(fsdp.activation_bytes, activations, 1e-9);
  EXPECT_NEAR(fsdp.rank_bytes, 400 + 800 / 2. + 2 * 100 + activations, 1e-9);
  EXPECT_NEAR(fsdp.host_bytes, 400 + 2 * (400 + 200 + activations + 1000), 1e-9);
}

TEST(Layouts, OnSeveralHostsFullyShardedRanksHaveSlicesAndGatherTwice) {
  const auto fsdp = predicted(profile_of(4, 8), machine_of(2, 2), {.dp = 2, .fsdp = true});
  // Slices of weights and state, two units of weights and of gradients.
  const double activations = 4 * 16 + 400 / 2.;
  EXPECT_NEAR(fsdp.rank_bytes, (400 + 800) / 2. + 2 * 100 + 2 * 100 + activations, 1e-9);
  EXPECT_NEAR(fsdp.host_bytes, fsdp.rank_bytes + 1000, 1e-9);
  EXPECT_NEAR(fsdp.link_bytes, 3 * 400 / 2., 1e-9);
  const auto four = predicted(profile_of(4, 8), machine_of(4, 2), {.dp = 4, .fsdp = true});
  EXPECT_NEAR(four.link_bytes, 3 * 400 / 2., 1e-9);
  const double own = (400 + 800) / 4. + 2 * 100 + 2 * 16 + 400 / 4.;
  EXPECT_NEAR(four.host_bytes, 2 * (own + 1000) + 2 * 100, 1e-9);
}

TEST(Layouts, TensorParallelRanksHaveWhatWasMeasuredOfThem) {
  const auto tp = predicted(profile_of(4, 8), machine_of(2), {.tp = 2});
  EXPECT_NEAR(tp.compute, 8 * (4 * 1.5 + 0.2), 1e-9);
  EXPECT_EQ(tp.reduce, 0);
  const double pool = 1 << 20;  // The minimum for summing activations.
  // In the last layer's backward.
  EXPECT_NEAR(tp.rank_bytes, 4 * 150 + 8 * (3 * 10 + 16) + 50 + pool, 1e-9);
}

TEST(Layouts, ContextParallelRanksHaveAPartOfEachSequenceAndAllWeights) {
  const auto cp = predicted(profile_of(4, 8), machine_of(2), {.cp = 2});
  EXPECT_NEAR(cp.compute, 8 / 2. * (4 * 3 + 0.2), 1e-9);
  EXPECT_NEAR(cp.activation_bytes, 8 / 2. * (3 * 10 + 16), 1e-9);
  EXPECT_NEAR(cp.reduce, 4 * 0.01 + 400 * 0.001, 1e-9);
}

TEST(Layouts, APipelineIsSimulated) {
  const ModelProfile profile = profile_of(4, 8);
  const auto pp = predicted(profile, machine_of(2), {.pp = 2, .microbatches = 2});
  ASSERT_TRUE(pp.schedule);
  const SimulatedPipeline simulated = simulate_layout(profile, machine_of(2), pp);
  EXPECT_NEAR(pp.compute * 1000, simulated.time, 1e-6);
  EXPECT_GT(pp.bubble, 0);
  // A lower bound for all schedules: half of the work, and one microbatch's way.
  EXPECT_GT(pp.compute, 8 * (4 * 3 + 0.2) / 2);
  EXPECT_LT(pp.compute, 8 * (4 * 3 + 0.2) * 0.8);
  // Weights of two layers, or of four halves.
  EXPECT_NEAR(pp.optimizer, 2 * 0.5, 1e-9);
  EXPECT_EQ(pp.link_bytes, 0);
}

TEST(Layouts, OneStageForEachLayerIsTheMost) {
  const auto all = predict_layouts(profile_of(2, 8), machine_of(4));
  EXPECT_EQ(find(all, {.pp = 4, .microbatches = 4}).impossible,
            "pp 4 needs as many layers, but there are 2");
  const auto two = find(all, {.tp = 2, .pp = 2, .microbatches = 4});
  EXPECT_TRUE(two.impossible.empty());
  EXPECT_EQ(two.cut, std::vector<int>{1});  // No schedule with two stages per rank is possible.
}

TEST(Layouts, GradientsCrossALinkOnceForEachHost) {
  const auto dp = predicted(profile_of(4, 8), machine_of(4, 2), {.dp = 4});
  EXPECT_NEAR(dp.link_bytes, 400, 1e-9);  // 2 (H - 1) / H of the gradients.
  EXPECT_NEAR(dp.reduce, 4 * 0.01 + 400 * 0.001 + 400 / 100. + 0.002, 1e-9);
  const auto tp = predicted(profile_of(4, 8), machine_of(4, 2), {.dp = 2, .tp = 2});
  EXPECT_NEAR(tp.link_bytes, 400, 1e-9);  // Two ranks, each with half of the weights.
}

// Between ranks.
int boundaries_of(const PredictedLayout& predicted) {
  const PipelineOrder order = make_pipeline_order(
      predicted.schedule.value(),
      {.ranks = predicted.layout.pp, .microbatches = predicted.layout.microbatches});
  int boundaries = 0;
  for (std::size_t stage = 1; stage < order.rank_of_stage.size(); ++stage)
    boundaries += order.rank_of_stage[stage] != order.rank_of_stage[stage - 1] ? 1 : 0;
  return boundaries;
}

TEST(Layouts, APipelineBetweenHostsSendsActivationsAlone) {
  const auto pp = predicted(profile_of(4, 8), machine_of(2, 2), {.pp = 2, .microbatches = 4});
  EXPECT_NEAR(pp.link_bytes, boundaries_of(pp) * 4 * (2 * 4), 1e-9);
  EXPECT_EQ(pp.reduce, 0);
  const auto both =
      predicted(profile_of(4, 8), machine_of(4, 2), {.dp = 2, .pp = 2, .microbatches = 4});
  EXPECT_NEAR(both.link_bytes, boundaries_of(both) * 2 * 4 * (1 * 4), 1e-9);
}

TEST(Layouts, SlotsOfMessagesCountOnceForAPipeline) {
  ModelProfile profile = profile_of(2, 2);
  const auto without = predicted(profile, machine_of(2), {.pp = 2, .microbatches = 2});
  for (LayerPart& each : profile.kinds[0].parts) {
    each.samples[0].output_bytes += 1000;
    each.samples[0].kept_bytes += 1000;
  }
  const auto with = predicted(profile, machine_of(2), {.pp = 2, .microbatches = 2});
  ASSERT_EQ(with.schedule, without.schedule);
  EXPECT_EQ(with.rank_bytes - without.rank_bytes, with.host_bytes - without.host_bytes);
  EXPECT_GE(with.rank_bytes - without.rank_bytes, 2 * 1000);
}

TEST(Layouts, ATiedWeightIsThereOnceUnlessTwoRanksHaveIt) {
  ModelProfile profile = profile_of(4, 8);
  profile.ties = {{.layer = 3, .same_as = 0, .bytes = 100}};
  EXPECT_NEAR(predicted(profile, machine_of(2), {.dp = 2}).rank_bytes, 3 * 400 + 184, 1e-9);
  EXPECT_NEAR(predicted(profile, machine_of(2), {.tp = 2}).optimizer, 3 * 0.25, 1e-9);
  // Each of two hosts sends the weight's gradient.
  profile = profile_of(2, 8);
  const Layout pp{.pp = 2, .microbatches = 2};
  const auto untied = predicted(profile, machine_of(2, 2), pp);
  profile.ties = {{.layer = 1, .same_as = 0, .bytes = 100}};
  const auto apart = predicted(profile, machine_of(2, 2), pp);
  EXPECT_EQ(apart.cut, std::vector<int>{1});
  EXPECT_NEAR(apart.rank_bytes, untied.rank_bytes, 1e-9);
  EXPECT_NEAR(apart.link_bytes, untied.link_bytes + 100, 1e-9);
  EXPECT_NEAR(apart.step, untied.step + 100 / 100. + 0.002, 1e-9);
}

TEST(Layouts, ATiedWeightMayBeFrozen) {
  ModelProfile profile = profile_of(4, 8);
  profile.kinds[0].parts[0].gradient_bytes = 10;
  profile.ties = {{.layer = 3, .same_as = 0, .bytes = 100}};
  EXPECT_NEAR(predicted(profile, machine_of(2), {.dp = 2}).optimizer, 3 * 0.5, 1e-9);
}

TEST(Layouts, ABatchMayHaveAnyNumberOfRows) {
  const ModelProfile profile = profile_of(4, std::numeric_limits<int>::max());
  EXPECT_TRUE(predicted(profile, machine_of(2), {.pp = 2}).impossible.empty());
}

TEST(Layouts, TheCostliestStageIsCheap) {
  EXPECT_EQ(cut_by_costs({1, 1, 1, 1}, 2), (std::vector<int>{0, 2}));
  EXPECT_EQ(cut_by_costs({5, 1, 1, 1}, 2), (std::vector<int>{0, 1}));
  EXPECT_EQ(cut_by_costs({1, 1, 4, 1, 1}, 3), (std::vector<int>{0, 2, 3}));
}

TEST(Layouts, ReportWhyTheyAreImpossible) {
  ModelProfile profile = profile_of(4, 8);
  profile.has_context_parallel = profile.has_fully_sharded = false;
  profile.kinds[0].parts.push_back({.tp = 4, .refusal = "3 heads cannot be divided by 4"});
  profile.loss.parts.push_back(loss(4));
  const auto all = predict_layouts(profile, machine_of(4));
  EXPECT_EQ(find(all, {.tp = 4}).impossible, "tp 4: 3 heads cannot be divided by 4");
  EXPECT_EQ(find(all, {.cp = 4}).impossible, "the program does not cut sequences (cp)");
  EXPECT_EQ(find(all, {.dp = 4, .fsdp = true}).impossible,
            "the program is not fully sharded (fsdp)");
  EXPECT_EQ(find(predict_layouts(profile, machine_of(3)), {.dp = 3}).impossible,
            "dp 3 does not divide a batch of 8 rows");
  EXPECT_EQ(find(predict_layouts(profile, machine_of(3)), {.tp = 3}).impossible,
            "tp 3 was not measured");
  profile.kinds[0].parts.resize(1);
  profile.loss.parts.resize(1);
  EXPECT_EQ(find(predict_layouts(profile, machine_of(2)), {.tp = 2}).impossible,
            "the program does not cut layers (tp)");
  const auto hosts = predict_layouts(profile_of(4, 8), machine_of(2, 2));
  EXPECT_EQ(find(hosts, {.tp = 2}).impossible,
            "tp 2 does not divide the 1 ranks of a host, and layers that are cut over hosts would "
            "communicate between them");
  EXPECT_EQ(
      find(predict_layouts(profile_of(4, 8), machine_of(4)), {.pp = 2, .cp = 2, .microbatches = 2})
          .impossible,
      "cp is not for pipelines: their sequences are whole");
  EXPECT_EQ(find(predict_layouts(profile_of(6, 12), machine_of(12, 3)),
                 {.dp = 6, .pp = 2, .microbatches = 2})
                .impossible,
            "the 6 ranks of a stage lie on parts of hosts of 4 ranks");
}

TEST(Layouts, TheFastestThatFitsComesFirstAndTheImpossibleLast) {
  Machine machine = machine_of(4);
  for (const double bytes : {1e8, 6000., 1000.}) {
    machine.host_bytes = bytes;
    const auto all = predict_layouts(profile_of(4, 8), machine);
    for (std::size_t i = 1; i < all.size(); ++i) {
      const auto &one = all[i - 1], &next = all[i];
      EXPECT_LE(one.impossible.empty() ? 0 : 1, next.impossible.empty() ? 0 : 1);
      if (!next.impossible.empty()) continue;
      EXPECT_GE(one.fits, next.fits);
      if (one.fits && next.fits) {
        EXPECT_LE(one.step, next.step);
      } else if (!one.fits) {
        EXPECT_LE(one.host_bytes, next.host_bytes);
      }
    }
    EXPECT_EQ(all.front().fits, bytes > 5000);
  }
}

TEST(Layouts, MoreMemoryFitsMoreAndASlowerLinkTakesLonger) {
  const ModelProfile profile = profile_of(8, 16);
  Machine machine = machine_of(8, 2);
  const auto fitting = [&] {
    const auto all = predict_layouts(profile, machine);
    return std::count_if(all.begin(), all.end(), [](const auto& each) { return each.fits; });
  };
  std::ptrdiff_t before = 0;
  for (machine.host_bytes = 4000; machine.host_bytes < 1e8; machine.host_bytes *= 1.5) {
    EXPECT_GE(fitting(), before);
    before = fitting();
  }
  EXPECT_GT(before, 0);
  const auto fast = predict_layouts(profile, machine);
  machine.link_bandwidth /= 10;
  const auto slow = predict_layouts(profile, machine);
  for (const PredictedLayout& each : fast)
    if (each.impossible.empty()) {
      EXPECT_LE(each.step, find(slow, each.layout).step + 1e-9);
      EXPECT_EQ(each.host_bytes <= machine.host_bytes, each.fits);
    }
}

TEST(Layouts, SharedParametersAreNeverLargerThanReplicas) {
  const auto all = predict_layouts(profile_of(8, 16), machine_of(2));
  for (PredictedLayout each : all)
    if (each.impossible.empty() && each.layout.fsdp) {
      each.layout.fsdp = false;
      EXPECT_LT(each.host_bytes, find(all, each.layout).host_bytes);
    }
}

TEST(Layouts, CostsLieOnTheLineBetweenSamples) {
  const LayerPart between{.samples = {{.rows = 1, .forward = 2, .kept_bytes = 10},
                                      {.rows = 3, .forward = 4, .kept_bytes = 30},
                                      {.rows = 5, .forward = 10, .kept_bytes = 50}}};
  EXPECT_NEAR(sample_at(between, 1).forward, 2, 1e-9);
  EXPECT_NEAR(sample_at(between, 2).forward, 3, 1e-9);
  EXPECT_NEAR(sample_at(between, 4).forward, 7, 1e-9);
  EXPECT_NEAR(sample_at(between, 7).forward, 16, 1e-9);
  EXPECT_NEAR(sample_at(between, 7).kept_bytes, 70, 1e-9);
}

TEST(ModelProfile, IsTheSameAfterItWasWrittenAndRead) {
  ModelProfile profile = profile_of(3, 8);
  profile.ties = {{.layer = 2, .same_as = 0, .bytes = 12}};
  profile.kinds[0].parts.push_back({.tp = 4, .refusal = "heads \"3\""});
  const std::string json = to_json(profile);
  EXPECT_EQ(to_json(parse_model_profile(json)), json);
  EXPECT_EQ(parse_model_profile(json).kinds[0].parts[2].refusal, "heads \"3\"");
  EXPECT_EQ(fault_of([&] { parse_model_profile(json.substr(0, json.size() / 2)); }),
            Fault::corrupt);
}

TEST(ModelProfile, IsReadOnlyIfItCanBeWritten) {
  ModelProfile whole = profile_of(3, 8);
  whole.ties = {{.layer = 2, .same_as = 0, .bytes = 12}};
  whole.kinds[0].parts[0].samples.push_back({.rows = 2});
  const auto json = nlohmann::json::parse(to_json(whole));
  EXPECT_NO_THROW(parse_model_profile(json.dump()));
  const auto complaint = [&](const char* place, const nlohmann::json& value) {
    auto broken = json;
    broken[nlohmann::json::json_pointer(place)] = value;
    std::string text;
    EXPECT_EQ(fault_of([&] { parse_model_profile(broken.dump()); }, &text), Fault::corrupt);
    return text;
  };
  const auto none = nlohmann::json::array();
  for (const auto& [place, value, text] :
       std::vector<std::tuple<const char*, nlohmann::json, std::string>>{
           {"/ranks", 0, "no ranks"},
           {"/rows", 0, "no rows"},
           {"/rows", 1.5, "never written"},
           {"/rows", std::int64_t{1} << 32 | 8, "never written"},
           {"/seed", 1, "never written"},
           {"/layers", none, "no layers"},
           {"/layers/3", "h.3", "kinds are not those of its layers"},
           {"/kind_of_layer/1", 7, "no kind 7"},
           {"/kind_of_layer/1", -1, "/kind_of_layer/1 is out of range"},
           {"/kinds", none, "no kind 0"},
           {"/kinds/0/parts", none, "h.0 was not measured whole"},
           {"/kinds/0/parts/0/tp", 2, "h.0 was not measured whole"},
           {"/kinds/0/parts/0/refusal", "no", "h.0 was not measured whole"},
           {"/kinds/0/parts/1/tp", 1, "tensor parallel ranks of h.0"},
           {"/kinds/0/parts/1/samples", none, "h.0 was not measured"},
           {"/kinds/0/parts/0/samples/0/rows", 0, "rows of h.0"},
           {"/kinds/0/parts/0/samples/1/rows", 1, "rows of h.0"},
           {"/kinds/0/parts/0/samples/0/forward", -1, "/forward is out of range"},
           {"/kinds/0/parts/0/optimizer", 1e300, "/optimizer is out of range"},
           {"/loss/parts", none, "loss was not measured whole"},
           {"/ties/0/same_as", 3, "no layer 3"},
           {"/ties/0/layer", -1, "/ties/0/layer is out of range"},
           {"/ties/0/bytes", 101, "a tied weight is larger than layer 2"},
           {"/reduces/0/bytes", 0, "a reduction of no bytes"}})
    EXPECT_NE(complaint(place, value).find(text), std::string::npos) << place << " " << value;
}

}  // namespace
}  // namespace lockstep::tools::layouts_test

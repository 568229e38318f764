// Trains the GPT of the examples on meshes of ranks: losses equal those of one rank, and each mesh
// loads all checkpoints.

// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>
#include <torch/types.h>

#include <cstdlib>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "examples/models/gpt.h"
#include "lockstep/checkpoint/checkpointer.h"
#include "lockstep/comm/device_mesh.h"
#include "lockstep/comm/process_group.h"
#include "lockstep/nn/attention.h"
#include "lockstep/nn/cross_entropy.h"
#include "lockstep/optim/clip_grad_norm.h"
#include "lockstep/optim/optimizers.h"
#include "lockstep/parallel/replicate/distributed_data_parallel.h"
#include "lockstep/tensor/collectives.h"
#include "lockstep/tensor/named_tensors.h"
#include "lockstep/train/training_state.h"
#include "tests/ranks.h"

namespace lockstep::examples::model_parallel_test {
namespace {

// --- A rank's training, which the environment describes ------------------------------------------

const char* variable(const char* name) {
  const char* const value = std::getenv(name);
  return value == nullptr ? "" : value;
}

at::Tensor tokens_of(int step) {
  const at::Tensor all = torch::arange(4 * 13, torch::kLong).view({4, 13});
  return (all * 7 + 3 * step).remainder(51);  // Each token is its predecessor plus 7.
}

// Four sequences per step. Each replica takes its part of them, and each rank of a replica its part
// of each sequence.
const test::Ranks train("a GPT on a mesh", [](const test::Rank& /*rank*/) {
  auto world = init_process_group();
  const int cp = std::atoi(variable("GPT_CP")), tp = std::atoi(variable("GPT_TP"));
  const DeviceMesh mesh(world, {{"dp", -1}, {"cp", cp}, {"tp", tp}});
  const auto replicas = mesh[{"dp", "cp"}];
  torch::manual_seed(1);
  const auto gpt =
      std::make_shared<Gpt>(GptOptions{.vocabulary = 51,
                                       .block_size = 12,
                                       .layers = 2,
                                       .heads = 4,
                                       .width = 32,
                                       .recompute = *variable("GPT_RECOMPUTE") == '1'});
  gpt->to(torch::kDouble);
  parallelize_module(*gpt, mesh["tp"], gpt_plan());
  if (cp > 1)
    gpt->share_sequences(mesh["cp"], static_cast<nn::ContextMethod>(std::atoi(variable("GPT_BY"))));
  DistributedDataParallel ddp(gpt, replicas);
  AdamW adamw(gpt->parameters(), torch::optim::AdamWOptions(1e-2));
  int step = 0;
  TrainingState state;
  state.add("model", ddp);
  state.add("optimizer", adamw, *gpt);
  state.add("step", step);
  Checkpointer checkpoints(variable("GPT_FOLDER"), world);
  checkpoints.resume(state);

  std::ofstream results(world.rank() == 0 ? variable("GPT_RESULTS") : "/dev/null");
  results.precision(17);
  results << sha256(*gpt) << '\n';
  for (const int end = step + std::atoi(variable("GPT_STEPS")); step < end;) {
    adamw.zero_grad();
    const at::Tensor batch =
        tokens_of(step).chunk(mesh.size("dp"), 0)[static_cast<std::size_t>(mesh.rank("dp"))];
    const auto of_rank = [&](const at::Tensor& tokens) {
      return nn::sequence_part(tokens, 1, mesh["cp"], Gpt::order);
    };
    const at::Tensor logits = ddp(of_rank(batch.slice(1, 0, 12)));
    const at::Tensor loss =
        cross_entropy(logits.flatten(0, 1), of_rank(batch.slice(1, 1)).flatten(), mesh["tp"]);
    loss.backward();
    const double norm = clip_grad_norm_(*gpt, 1.0).item<double>();
    adamw.step();
    const at::Tensor mean = loss.detach().clone();
    all_reduce(mean, replicas, ReduceOp::average);
    results << mean.item<double>() << ' ' << norm << '\n';
    ++step;
  }
  results << sha256(*gpt) << '\n';
  if (*variable("GPT_SAVE") == '1') {
    checkpoints.save(step, state);
    checkpoints.wait();
  }
  destroy_process_group(world);
});

// --- Several trainings ---------------------------------------------------------------------------

struct Mesh {
  std::string name;
  int ranks, tp, cp = 1;
  nn::ContextMethod method = nn::ContextMethod::ring;
};
const std::vector<Mesh> meshes = {
    {"1", 1, 1}, {"dp2", 2, 1}, {"tp2", 2, 2}, {"tp4", 4, 4}, {"dp2tp2", 4, 2}};
const std::vector<Mesh> of_sequences = {{"cp2tp2", 4, 2, 2},
                                        {"dp2cp2", 4, 1, 2},
                                        {"cp3", 3, 1, 3},
                                        {"ulysses", 2, 1, 2, nn::ContextMethod::ulysses}};

struct Training {
  std::string first, last;      // Digests of the whole model.
  std::vector<double> numbers;  // Each step's loss and norm of gradients.
};

Training train_on(const Mesh& mesh, const std::string& folder, int steps, bool saves,
                  bool recompute = false) {
  const test::ScratchDirectory scratch;
  const std::string results = scratch.path() / "results";
  ::setenv("GPT_CP", std::to_string(mesh.cp).c_str(), 1);
  ::setenv("GPT_BY", std::to_string(static_cast<int>(mesh.method)).c_str(), 1);
  ::setenv("GPT_TP", std::to_string(mesh.tp).c_str(), 1);
  ::setenv("GPT_STEPS", std::to_string(steps).c_str(), 1);
  ::setenv("GPT_FOLDER", folder.c_str(), 1);
  ::setenv("GPT_RESULTS", results.c_str(), 1);
  ::setenv("GPT_SAVE", saves ? "1" : "0", 1);
  ::setenv("GPT_RECOMPUTE", recompute ? "1" : "0", 1);
  EXPECT_TRUE(test::all_succeeded(train.run(mesh.ranks))) << mesh.name;
  std::ifstream file(results);
  Training result;
  file >> result.first;
  for (int i = 0; i < 2 * steps; ++i) file >> result.numbers.emplace_back();
  file >> result.last;
  EXPECT_TRUE(file) << mesh.name;
  return result;
}

void expect_near(const Training& run, const Training& expected, const std::string& what) {
  ASSERT_EQ(run.numbers.size(), expected.numbers.size());
  for (std::size_t i = 0; i < run.numbers.size(); ++i)
    EXPECT_NEAR(run.numbers[i], expected.numbers[i], 1e-6) << what << ", number " << i;
}

TEST(GptOnAMesh, LosesWhatItDoesOnOneRank) {
  const test::ScratchDirectory scratch;
  const Training expected = train_on(meshes[0], scratch.path() / "none", 20, false);
  EXPECT_LT(expected.numbers[38], 0.8 * expected.numbers[0]) << "it learns";
  auto all = meshes;
  all.insert(all.end(), of_sequences.begin(), of_sequences.end());
  for (const Mesh& mesh : all) {
    const Training ours = train_on(mesh, scratch.path() / "none", 20, false);
    EXPECT_EQ(ours.first, expected.first) << mesh.name << ": the first weights are those of one";
    expect_near(ours, expected, mesh.name);
    const Training recomputed = train_on(mesh, scratch.path() / "none", 3, false, true);
    EXPECT_EQ(recomputed.numbers[4], ours.numbers[4]) << mesh.name << ": recomputed, the same bits";
  }
}

void expect_loaded(const Mesh& from, const std::vector<Mesh>& others) {
  const test::ScratchDirectory scratch;
  const std::string folder = scratch.path() / from.name;
  const Training saved = train_on(from, folder, 3, true);
  const Training expected = train_on(from, folder, 5, false);
  EXPECT_EQ(expected.first, saved.last) << from.name;
  for (const Mesh& to : others) {
    if (to.name == from.name) continue;
    const Training loaded = train_on(to, folder, 5, false);
    EXPECT_EQ(loaded.first, saved.last) << from.name << " to " << to.name;
    expect_near(loaded, expected, from.name + " to " + to.name);
  }
}

TEST(GptOnAMesh, IsSavedOnOneAndLoadedOnEveryOther) {
  for (const Mesh& from : meshes) expect_loaded(from, meshes);
  expect_loaded(of_sequences[0], {meshes[0], of_sequences[1]});
}

}  // namespace
}  // namespace lockstep::examples::model_parallel_test

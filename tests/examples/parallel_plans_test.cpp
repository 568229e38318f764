// Cuts the LLaMA and the ViT of the examples by their plans: 20 steps equal those of one rank.
// Tests the Errors for a model that cannot be cut.

// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>
#include <torch/nn/functional/loss.h>
#include <torch/types.h>

#include <memory>
#include <string>
#include <vector>

#include "examples/models/gpt.h"
#include "examples/models/llama.h"
#include "examples/models/vit.h"
#include "lockstep/checkpoint/checkpointer.h"
#include "lockstep/checkpoint/safetensors.h"
#include "lockstep/comm/in_process.h"
#include "lockstep/comm/process_group.h"
#include "lockstep/nn/cross_entropy.h"
#include "lockstep/optim/clip_grad_norm.h"
#include "lockstep/optim/optimizers.h"
#include "lockstep/tensor/named_tensors.h"
#include "lockstep/tensor/sharded_module.h"
#include "lockstep/train/training_state.h"
#include "tests/fault_of.h"
#include "tests/ranks.h"

namespace lockstep::examples::parallel_plans_test {
namespace {

using test::fault_of;

// Gives all parameters values that depend only on their positions, because ranks are threads and
// share the default generator.
template <class Model>
std::shared_ptr<Model> filled(std::shared_ptr<Model> model) {
  model->to(torch::kDouble);
  const torch::NoGradGuard no_grad;
  double seed = 1;
  for (auto& item : model->named_parameters()) {
    const auto numbers = torch::arange(item.value().numel(), torch::kDouble) * 0.37 + ++seed;
    item.value().copy_(numbers.sin().view(item.value().sizes()) * 0.1);
    if (item.value().dim() == 1 && item.key().ends_with("weight")) item.value().add_(1);
  }
  return model;
}

torch::Tensor loss_of(Llama& llama, std::int64_t step, const ProcessGroup& group) {
  const auto text =
      (torch::arange(4 * 13, torch::kLong).view({4, 13}) * 7 + 3 * step).remainder(51);
  const auto logits = llama.forward(text.slice(1, 0, 12)).flatten(0, 1);
  return cross_entropy(logits, text.slice(1, 1).flatten(), group);
}

torch::Tensor loss_of(Vit& vit, std::int64_t step, const ProcessGroup& /*group*/) {
  const auto targets = (torch::arange(6, torch::kLong) + step).remainder(5);
  const auto noise =
      (torch::arange(6 * 3 * 16 * 16, torch::kDouble) * 0.7 + static_cast<double>(step)).sin();
  const auto images = noise.view({6, 3, 16, 16}) + targets.view({6, 1, 1, 1}) / 3;
  return torch::nn::functional::cross_entropy(vit.forward(images), targets);
}

struct Training {
  std::vector<double> numbers;  // Each step's loss and norm of gradients.
  NamedTensors weights;         // Whole, at the end.
};

template <class Model, class Options>
Training train(const Options& options, const ParallelPlan& plan, int ranks) {
  Training result;
  run_in_process(ranks, [&](ProcessGroup& group) {
    const auto model = filled(std::make_shared<Model>(options));
    parallelize_module(*model, group, plan);
    AdamW adamw(model->parameters(), torch::optim::AdamWOptions(1e-2));
    Training training;
    for (int step = 0; step < 20; ++step) {
      adamw.zero_grad();
      const auto loss = loss_of(*model, step, group);
      loss.backward();
      training.numbers.push_back(loss.template item<double>());
      training.numbers.push_back(clip_grad_norm_(*model, 1.0).template item<double>());
      adamw.step();
    }
    training.weights = whole_parameters(*model);
    if (group.rank() == 0) result = training;
  });
  return result;
}

template <class Model, class Options>
void expect_to_train_as_one(const Options& options, const ParallelPlan& plan,
                            const std::vector<int>& sizes) {
  const Training expected = train<Model>(options, plan, 1);
  EXPECT_LT(expected.numbers[38], 0.8 * expected.numbers[0]) << "it learns";
  for (const int ranks : sizes) {
    const Training ours = train<Model>(options, plan, ranks);
    for (std::size_t i = 0; i < expected.numbers.size(); ++i)
      EXPECT_NEAR(ours.numbers[i], expected.numbers[i], 1e-6) << ranks << " ranks, number " << i;
    ASSERT_EQ(ours.weights.size(), expected.weights.size());
    for (std::size_t i = 0; i < expected.weights.size(); ++i)
      EXPECT_LT((ours.weights[i].second - expected.weights[i].second).abs().max().item<double>(),
                1e-6)
          << ranks << " ranks, " << expected.weights[i].first;
  }
}

const LlamaOptions llama{
    .vocabulary = 51, .layers = 2, .heads = 8, .kv_heads = 4, .width = 32, .hidden = 48};
const VitOptions vit{
    .image = 16, .patch = 4, .layers = 2, .heads = 4, .width = 32, .hidden = 64, .classes = 5};

TEST(ParallelLlama, TrainsAsOnOneRank) {
  expect_to_train_as_one<Llama>(llama, llama_plan(llama), {2, 4});
}

TEST(ParallelLlama, TrainsAsOnOneRankWithAnOutputLayerAndRecomputation) {
  LlamaOptions options = llama;
  options.tied = false;
  options.recompute = true;
  expect_to_train_as_one<Llama>(options, llama_plan(options), {2});
}

TEST(ParallelVit, TrainsAsOnOneRank) { expect_to_train_as_one<Vit>(vit, vit_plan(vit), {2, 4}); }

TEST(ParallelVit, TrainsAsOnOneRankWithRecomputation) {
  VitOptions options = vit;
  options.recompute = true;
  expect_to_train_as_one<Vit>(options, vit_plan(options), {2});
}

TEST(ParallelPlans, HeadsStayWhole) {
  run_in_process(3, [](ProcessGroup& group) {
    LlamaOptions options = llama;  // Columns that 3 ranks could share.
    options.heads = options.kv_heads = 4;
    options.width = options.hidden = 48;
    const auto model = filled(std::make_shared<Llama>(options));
    const std::string digest = sha256(*model);
    std::string text;
    EXPECT_EQ(fault_of([&] { parallelize_module(*model, group, llama_plan(options)); }, &text),
              Fault::misuse);
    for (const char* name : {"0.self_attn.q_proj", "0.self_attn.k_proj", "1.self_attn.v_proj"})
      EXPECT_NE(
          text.find(std::string(name) + ": heads 4 cannot be cut evenly over 3 ranks: 3 or 6 can"),
          text.npos)
          << text;
    EXPECT_EQ(sha256(*model), digest);
  });
}

TEST(ParallelPlans, APartIsNotSavedAsIfItWereAll) {
  const test::ScratchDirectory scratch;
  run_in_process(2, [&](ProcessGroup& group) {
    const auto whole = filled(std::make_shared<Vit>(vit)), cut = filled(std::make_shared<Vit>(vit));
    parallelize_module(*cut, group, vit_plan(vit));
    const auto file = scratch.path() / std::to_string(group.rank());
    std::string text;
    EXPECT_EQ(fault_of([&] { save_weights(*cut, file); }, &text), Fault::misuse);
    EXPECT_NE(text.find("parts of 12 parameters, such as encoder.layers.encoder_layer_0."),
              text.npos)
        << text;
    save_safetensors(file, whole_parameters(*cut), {{"format", "pt"}});
    {
      const torch::NoGradGuard no_grad;
      whole->class_token.zero_();
    }
    load_weights(*whole, file);
    EXPECT_EQ(sha256(*whole), sha256(*cut));
  });
}

TEST(ParallelPlans, ACheckpointOfAnotherModelIsRefusedWithAllMismatches) {
  const test::ScratchDirectory scratch;
  run_in_process(2, [&](ProcessGroup& group) {
    const GptOptions saved{.vocabulary = 51, .block_size = 12, .layers = 1, .heads = 2, .width = 8};
    const auto gpt = filled(std::make_shared<Gpt>(saved));
    parallelize_module(*gpt, group, gpt_plan());
    const std::string digest = sha256(*gpt);
    Checkpointer checkpoints(scratch.path() / "gpt", group);
    TrainingState state;
    state.add("model", *gpt);
    checkpoints.save(1, state);
    checkpoints.wait();

    const auto refusal_of = [&](GptOptions options) {
      const auto other = filled(std::make_shared<Gpt>(options));
      parallelize_module(*other, group, gpt_plan());
      const std::string before = sha256(*other);
      TrainingState its_state;
      its_state.add("model", *other);
      std::string text;
      EXPECT_EQ(fault_of([&] { checkpoints.resume(its_state); }, &text), Fault::misuse);
      EXPECT_EQ(sha256(*other), before);
      return text;
    };
    GptOptions other = saved;
    other.vocabulary = 60;
    std::string text = refusal_of(other);
    EXPECT_NE(text.find("transformer.wte.weight is Double [60, 8] here and was saved as Double "
                        "[51, 8]"),
              text.npos)
        << text;
    other = saved;
    other.layers = 2;
    text = refusal_of(other);
    EXPECT_NE(text.find("transformer.h.1.ln_1.bias was not saved"), text.npos) << text;
    EXPECT_NE(text.find("and 7 more"), text.npos) << text;
    other = {.vocabulary = 60, .block_size = 12, .layers = 2, .heads = 2, .width = 16};
    text = refusal_of(other);
    EXPECT_NE(text.find("[48, 16] here and was saved as"), text.npos) << text;
    EXPECT_NE(text.find("more"), text.npos) << text;

    EXPECT_TRUE(checkpoints.resume(state));
    EXPECT_EQ(sha256(*gpt), digest);
  });
}

}  // namespace
}  // namespace lockstep::examples::parallel_plans_test

// With a process for each rank: threads share LibTorch's default generator.

// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>
#include <torch/nn/modules/linear.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/comm/process_group.h"
#include "lockstep/comm/values.h"
#include "lockstep/parallel/pipeline/pipeline.h"
#include "tests/ranks.h"
#include "tests/rigs/pipeline_layers.h"

namespace lockstep::pipeline_random_test {
namespace {

using test::small_layers::rows;
using test::small_layers::width;

struct DropImpl : torch::nn::Module {
  explicit DropImpl(std::function<void(std::string)> note) : note_(std::move(note)) {
    register_module("linear", linear);
  }
  torch::Tensor forward(const torch::Tensor& x) {
    const torch::Tensor mask = torch::dropout(torch::ones_like(x), 0.5, is_training());
    std::string text;
    for (std::int64_t i = 0; i < mask.numel(); ++i)
      text += mask.flatten()[i].item<float>() > 0 ? '1' : '0';
    note_(text);
    return linear(x) * mask;
  }
  torch::nn::Linear linear{width, width};

 private:
  const std::function<void(std::string)> note_;
};
TORCH_MODULE(Drop);

const test::Ranks two_stages("random numbers of stages", [](const test::Rank& /*rank*/) {
  torch::set_num_threads(1);
  auto world = init_process_group();
  torch::manual_seed(7);
  std::vector<std::string> masks;
  const auto add = [&](LayerList& layers, const char* name) {
    layers.add(name, [&] { return Drop([&](std::string mask) { masks.push_back(mask); }); });
  };
  LayerList layers;
  add(layers, "first");
  add(layers, "second");
  Pipeline pipeline(layers, world, {.microbatches = 2});
  const auto loss_of = [](const torch::Tensor& output, const Microbatch&) {
    torch::rand({3});  // A loss may draw as well.
    return output.sum();
  };
  for (int step = 0; step < 2; ++step) pipeline.step(rows(8), loss_of);
  pipeline.eval();
  pipeline.evaluate(rows(8), loss_of);
  masks.resize(4);

  // All have different masks.
  std::vector<std::string> all;
  for (const std::string& mask : masks)
    for (const std::string& of_rank : all_gather_bytes(mask, world)) all.push_back(of_rank);
  for (std::size_t i = 0; i < all.size(); ++i)
    for (std::size_t j = 0; j < i; ++j) EXPECT_NE(all[i], all[j]) << i << " and " << j;

  const auto next = all_gather_value(torch::rand({1}).item<float>(), world);
  EXPECT_EQ(next[0], next[1]) << "the default generators are no longer in step";
  destroy_process_group(world);
});

TEST(PipelineRandom, StagesDrawOtherNumbersAndGeneratorsStayInStep) {
  EXPECT_TRUE(all_succeeded(two_stages.run(2)));
}

}  // namespace
}  // namespace lockstep::pipeline_random_test

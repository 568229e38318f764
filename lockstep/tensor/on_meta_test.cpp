// SPDX-License-Identifier: Apache-2.0
#include "lockstep/tensor/on_meta.h"

#include <gtest/gtest.h>
#include <torch/nn/init.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>
#include <torch/nn/modules/rnn.h>
#include <torch/nn/modules/transformerlayer.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <stdexcept>
#include <string>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/base/thread.h"
#include "lockstep/tensor/generator_states.h"
#include "lockstep/tensor/make_in_place.h"
#include "lockstep/tensor/module_state.h"
#include "lockstep/tensor/named_tensors.h"
#include "tests/fault_of.h"
#include "tests/memory_limit.h"

namespace lockstep::tensor::on_meta_test {
namespace {

using test::fault_of;

// Its order of construction is not that of registration.
struct Net : torch::nn::Module {
  Net() {
    register_module("conv", conv);
    register_module("norm", norm);
    register_module("out", out);
    register_module("embedding", embedding);
    tied = register_parameter("tied", embedding->weight);
    scale = register_parameter("scale", torch::randn({7, 3}) * 0.02);
    const torch::Tensor both = torch::rand({2, 5});
    first = register_parameter("first", both[0]);
    second = register_parameter("second", both[1]);
    mask = register_buffer("mask", torch::tril(torch::ones({6, 6})));
    given = register_buffer("given", torch::tensor({0.5, 1.5, 2.5}));
    empty = register_parameter("empty", torch::empty({0, 4}));
    const torch::NoGradGuard no_grad;
    for (auto& parameter : out->parameters()) parameter.normal_(0, 1 / std::sqrt(2.0 * 3));
    torch::nn::init::orthogonal_(conv->weight.view({4, -1}));
    torch::randn({3});  // Nobody has it.
  }

  torch::nn::Linear out{9, 4};
  torch::nn::BatchNorm2d norm{4};
  torch::nn::Embedding embedding{torch::nn::EmbeddingOptions(11, 6).padding_idx(2)};
  torch::nn::Conv2d conv{torch::nn::Conv2dOptions(3, 4, 3)};
  torch::Tensor tied, scale, first, second, mask, given, empty;
};

std::shared_ptr<Net> make() { return std::make_shared<Net>(); }

bool generator_is(const at::Tensor& state) {
  return torch::equal(default_generator_state(), state);
}

TEST(OnMeta, MakesAModuleWithoutMemoryAndDrawsNothing) {
  const at::Tensor before = default_generator_state();
  const auto net = on_meta(make);
  EXPECT_TRUE(generator_is(before));
  const auto real = make();
  EXPECT_FALSE(generator_is(before));
  const NamedTensors tensors = named_tensors(*net), expected = named_tensors(*real);
  ASSERT_EQ(tensors.size(), expected.size());
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const auto& [name, tensor] = tensors[i];
    EXPECT_EQ(name, expected[i].first);
    EXPECT_EQ(tensor.sizes(), expected[i].second.sizes()) << name;
    EXPECT_EQ(tensor.scalar_type(), expected[i].second.scalar_type()) << name;
    EXPECT_EQ(tensor.requires_grad(), expected[i].second.requires_grad()) << name;
    const bool is_given = name == "given" || name == "norm.num_batches_tracked";
    EXPECT_EQ(tensor.is_meta(), !is_given) << name;
  }
  EXPECT_TRUE(torch::equal(net->given, torch::tensor({0.5, 1.5, 2.5})));
}

TEST(OnMeta, TakesLibTorchsLayersAndTheirTypes) {
  const auto net = on_meta([] {
    torch::nn::Sequential layers(
        torch::nn::LSTM(torch::nn::LSTMOptions(5, 6).num_layers(2).bidirectional(true)),
        torch::nn::LayerNorm(torch::nn::LayerNormOptions({4})), torch::nn::GRU(3, 4),
        torch::nn::TransformerEncoderLayer(8, 2), torch::nn::ConvTranspose2d(3, 4, 2),
        torch::nn::GroupNorm(2, 4), torch::nn::Bilinear(2, 3, 4));
    layers->to(torch::kBFloat16);
    return layers;
  });
  ASSERT_FALSE(net->parameters().empty());
  for (const torch::Tensor& parameter : net->parameters()) {
    EXPECT_TRUE(parameter.is_meta());
    EXPECT_EQ(parameter.scalar_type(), torch::kBFloat16);
  }
}

TEST(OnMeta, NeedsNoMemoryHoweverLargeTheModule) {
  const auto net = on_meta([] { return torch::nn::Linear(1 << 25, 1 << 25); });
  EXPECT_EQ(net->weight.nbytes(), std::size_t{1} << 52);
}

TEST(OnMeta, LeavesTensorsAloneWhoseDeviceOrInputsAreGiven) {
  const at::Tensor real = torch::ones({3});
  on_meta([&] {
    EXPECT_FALSE(torch::zeros({2}, torch::kCPU).is_meta());
    EXPECT_FALSE(torch::zeros_like(real).is_meta());
    EXPECT_FALSE(real.new_zeros({4}).is_meta());
    EXPECT_FALSE((real + 1).is_meta());
    EXPECT_FALSE(real.to(torch::kDouble).is_meta());
    EXPECT_FALSE(torch::cat({real, real}).is_meta());
    EXPECT_EQ(torch::tensor(1.5).item<double>(), 1.5);
    EXPECT_TRUE(torch::arange(5).is_meta());
    return 0;
  });
}

TEST(OnMeta, EndsWithItsFunctionAlsoByAnExceptionAndMayBeNested) {
  const auto throws = [] {
    return on_meta([]() -> torch::Tensor { throw std::runtime_error("no"); });
  };
  EXPECT_THROW(throws(), std::runtime_error);
  EXPECT_FALSE(torch::zeros({2}).is_meta());
  on_meta([&] {
    EXPECT_THROW(throws(), std::runtime_error);
    EXPECT_TRUE(torch::zeros({2}).is_meta());
    EXPECT_TRUE(on_meta([] { return torch::zeros({2}); }).is_meta());
    EXPECT_TRUE(torch::zeros({2}).is_meta());
    bool is_meta_elsewhere = true;
    Thread([&] { is_meta_elsewhere = torch::zeros({2}).is_meta(); }).join();
    EXPECT_FALSE(is_meta_elsewhere);
    return 0;
  });
  EXPECT_FALSE(torch::zeros({2}).is_meta());
}

TEST(OnMeta, ValuesThatAreReadInTheMeantimeAreLibTorchsError) {
  EXPECT_THROW(on_meta([] { return torch::ones({1}).item<float>(); }), c10::Error);
  EXPECT_THROW(on_meta([] { return at::tensor({1, 2}); }), c10::Error);
}

// --- Who refuses it ------------------------------------------------------------------------------

TEST(OnMeta, StateAndDigestOfSuchAModuleAreRefusedByName) {
  auto net = on_meta([] { return torch::nn::Linear(3, 2); });
  const auto expect_refused = [](auto call) {
    std::string text;
    EXPECT_EQ(fault_of(call, &text), Fault::misuse);
    EXPECT_NE(text.find("weight is on the meta device"), text.npos) << text;
  };
  expect_refused([&] { state_of(*net)->state_dict(); });
  expect_refused([&] { state_of(*net)->wanted({}); });
  expect_refused([&] { sha256(*net); });
}

// --- The same module, made in place --------------------------------------------------------------

NamedTensors places_for(const torch::nn::Module& module) {
  NamedTensors places;
  for (const auto& [name, tensor] : named_tensors(module))
    places.emplace_back(name, torch::full_like(tensor, 77, torch::kCPU).detach());
  return places;
}

void expect_equal(const NamedTensors& places, const torch::nn::Module& module) {
  const NamedTensors expected = named_tensors(module);
  ASSERT_EQ(places.size(), expected.size());
  for (std::size_t i = 0; i < places.size(); ++i)
    EXPECT_TRUE(torch::equal(places[i].second, expected[i].second)) << places[i].first;
}

TEST(MakeInPlace, GivesTheValuesOfOrdinaryConstruction) {
  torch::manual_seed(3);
  const auto expected = make();
  const at::Tensor generator = default_generator_state();
  torch::manual_seed(3);
  const NamedTensors places = places_for(*on_meta(make));
  make_in_place(make, places);
  expect_equal(places, *expected);
  EXPECT_TRUE(generator_is(generator));
}

TEST(MakeInPlace, MakesTheTensorsAtTheirPlaces) {
  torch::manual_seed(3);
  const NamedTensors places = places_for(*on_meta(make));
  std::shared_ptr<Net> made;
  make_in_place([&] { return made = make(); }, places);
  std::map<std::string, at::Tensor> by_name(places.begin(), places.end());
  const std::set<std::string> copied{"first", "second", "empty", "embedding.weight"};
  for (const auto& [name, tensor] : named_tensors(*made))
    if (!copied.contains(name)) {
      EXPECT_EQ(tensor.data_ptr(), by_name.at(name).data_ptr()) << name;
    }
}

std::size_t resident_megabytes() { return test::status_bytes("RssAnon") >> 20; }

// Small objects between its tensors keep malloc() from trimming.
TEST(MakeInPlace, LeavesNoCopyOfComputedTensorsInTheProcess) {
  struct Computed : torch::nn::Module {
    Computed() {
      for (int i = 0; i < 24; ++i)
        layers
            .emplace_back(
                register_module("layer" + std::to_string(i), std::make_shared<torch::nn::Module>()))
            ->register_parameter("weight", torch::randn({1024, 1024}) * 0.02);
    }
    std::vector<std::shared_ptr<torch::nn::Module>> layers;
  };
  const auto make_computed = [] { return std::make_shared<Computed>(); };
  const torch::Tensor memory = torch::zeros({24, 1024, 1024}) + 1;
  NamedTensors places;
  for (const auto& [name, tensor] : named_tensors(*on_meta(make_computed)))
    places.emplace_back(name, memory[static_cast<std::int64_t>(places.size())]);
  const std::size_t before = resident_megabytes();
  make_in_place(make_computed, places);
  EXPECT_LE(resident_megabytes(), before + 16);
  EXPECT_NEAR(memory.std().item<float>(), 0.02, 1e-4);
}

// Tensors of two types may have the same offset in elements, but at different addresses.
TEST(MakeInPlace, PlacesOfSeveralTypesMayShareAStorage) {
  struct Mixed : torch::nn::Module {
    Mixed() {
      const auto parts = torch::randn({2, 8}, torch::kDouble).unbind();  // Not at its place.
      register_parameter("a", parts[1]);
      register_parameter("b", torch::randn({8}));
    }
  };
  const auto make_mixed = [] { return std::make_shared<Mixed>(); };
  torch::manual_seed(3);
  const auto expected = make_mixed();
  const torch::Tensor floats = torch::zeros({32});
  const torch::Tensor doubles =
      torch::empty({0}, torch::kDouble).set_(floats.storage(), 8, {8}, {1});
  const NamedTensors places{{"a", doubles}, {"b", floats.slice(0, 8, 16)}};
  torch::manual_seed(3);
  make_in_place(make_mixed, places);
  expect_equal(places, *expected);
}

TEST(MakeInPlace, TheMemoryOutlivesItsTensors) {
  std::shared_ptr<Net> made;
  {
    const NamedTensors places = places_for(*on_meta(make));
    make_in_place([&] { return made = make(); }, places);
  }
  EXPECT_TRUE(torch::equal(made->tied, made->embedding->weight));
  EXPECT_TRUE(made->out->weight.abs().sum().item<float>() > 0);
}

TEST(MakeInPlace, AnotherModuleIsRefusedAndNamed) {
  const NamedTensors places = places_for(*on_meta([] { return torch::nn::Linear(3, 2); }));
  const auto refusal = [&](const MakeModule& other) {
    std::string text;
    EXPECT_EQ(fault_of([&] { make_in_place(other, places); }, &text), Fault::misuse);
    return text;
  };
  const auto has = [](const std::string& text, const std::string& part) {
    EXPECT_NE(text.find(part), text.npos) << text;
  };
  has(refusal([] { return torch::nn::Linear(3, 4).ptr(); }),
      "bias is Float [2] in the module and is made as Float [4]");
  has(refusal([] { return torch::nn::Linear(torch::nn::LinearOptions(3, 2).bias(false)).ptr(); }),
      "bias is not made");
  has(refusal([] { return torch::nn::BatchNorm1d(2).ptr(); }), "running_mean is made");
  has(refusal([] { return on_meta([] { return torch::nn::Linear(3, 2).ptr(); }); }),
      "weight is made on the meta device");
  has(refusal([] { return std::shared_ptr<torch::nn::Module>(); }), "makes no module");
}

TEST(MakeInPlace, AFunctionThatMakesItInAnotherWayEachTimeIsRefused) {
  struct Two : torch::nn::Module {
    explicit Two(bool turned) {
      const torch::Tensor one = torch::randn({3}), other = torch::randn({3});
      register_parameter("a", turned ? one : other);
      register_parameter("b", turned ? other : one);
    }
  };
  int calls = 0;
  const auto turn = [&] { return std::make_shared<Two>(++calls % 2 == 0); };
  const NamedTensors places = places_for(*on_meta(turn));
  std::string text;
  EXPECT_EQ(fault_of([&] { make_in_place(turn, places); }, &text), Fault::misuse);
  EXPECT_NE(text.find("in another way when it is called again"), text.npos) << text;
}

}  // namespace
}  // namespace lockstep::tensor::on_meta_test

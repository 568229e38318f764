// SPDX-License-Identifier: Apache-2.0
#include "lockstep/tensor/activation_checkpoint.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/autocast_mode.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/utils/lambda_post_hook.h>
#include <torch/library.h>
#include <torch/torch.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <unordered_map>
#include <vector>

#include "lockstep/base/error.h"
#include "tests/fault_of.h"
#include "tests/rigs/counting_allocator.h"

namespace lockstep::tensor::activation_checkpoint_test {
namespace {

using test::fault_of;
using torch::Tensor;
using Tensors = std::vector<Tensor>;

struct Mlp : torch::nn::Module {
  explicit Mlp(int width, double p = 0.3) : dropout(p) {
    register_module("in", in = torch::nn::Linear(width, 4 * width));
    register_module("dropout", dropout);
    register_module("out", out = torch::nn::Linear(4 * width, width));
  }
  Tensor forward(const Tensor& x) {
    ++calls;
    return x + out(dropout(torch::gelu(in(x))));
  }

  torch::nn::Linear in{nullptr}, out{nullptr};
  torch::nn::Dropout dropout;
  int calls = 0;
};

struct Chain : torch::nn::Module {
  Chain(int blocks, int width, double p = 0.3) {
    torch::manual_seed(1);
    for (int i = 0; i < blocks; ++i)
      layers.push_back(
          register_module("block" + std::to_string(i), std::make_shared<Mlp>(width, p)));
  }
  Tensor forward(Tensor x, bool checkpoints, const ActivationCheckpointOptions& options = {}) {
    for (auto& layer : layers)
      x = checkpoints ? activation_checkpoint(options, *layer, x) : layer->forward(x);
    return x;
  }

  std::vector<std::shared_ptr<Mlp>> layers;
};

struct Pass {
  Tensor result, of_input;
  Tensors gradients;
  Tensor next_random;
};

Tensors gradients_of(const torch::nn::Module& module) {
  Tensors gradients;
  for (const Tensor& parameter : module.parameters()) gradients.push_back(parameter.grad().clone());
  return gradients;
}

template <class Module, class Forward>
Pass pass(Module& module, at::IntArrayRef shape, bool needs_gradient, const Forward& forward) {
  module.zero_grad();
  torch::manual_seed(7);
  const Tensor x = torch::randn(shape).set_requires_grad(needs_gradient);
  const Tensor y = forward(x);
  y.pow(2).sum().backward();
  return {y.detach(), x.grad(), gradients_of(module), torch::rand({3})};
}

bool same(const Tensor& a, const Tensor& b) {
  return a.defined() == b.defined() && (!a.defined() || torch::equal(a, b));
}

void expect_same(const Pass& ours, const Pass& expected) {
  EXPECT_TRUE(same(ours.result, expected.result));
  EXPECT_TRUE(same(ours.of_input, expected.of_input));
  EXPECT_TRUE(same(ours.next_random, expected.next_random));
  ASSERT_EQ(ours.gradients.size(), expected.gradients.size());
  for (std::size_t i = 0; i < ours.gradients.size(); ++i)
    EXPECT_TRUE(same(ours.gradients[i], expected.gradients[i])) << "parameter " << i;
}

TEST(ActivationCheckpoint, ResultsGradientsAndGeneratorsAreEqualBitForBit) {
  Chain chain(3, 8);
  for (const bool needs_gradient : {false, true}) {
    const auto run = [&](bool checkpoints) {
      return pass(chain, {2, 5, 8}, needs_gradient,
                  [&](const Tensor& x) { return chain.forward(x, checkpoints); });
    };
    const Pass expected = run(false);
    const int before = chain.layers[0]->calls;
    expect_same(run(true), expected);
    EXPECT_EQ(chain.layers[0]->calls, before + 2);
  }
}

TEST(ActivationCheckpoint, WithoutGradientsTheBlockRunsAloneAndNothingIsRecorded) {
  Mlp block(4);
  const Tensor x = torch::randn({2, 4});
  {
    const torch::NoGradGuard no_grad;
    EXPECT_FALSE(activation_checkpoint(block, x).requires_grad());
  }
  for (const Tensor& parameter : block.parameters()) parameter.set_requires_grad(false);
  const Tensor y = activation_checkpoint(block, x);
  EXPECT_FALSE(y.requires_grad());
  EXPECT_EQ(y.grad_fn(), nullptr);
  EXPECT_EQ(block.calls, 2);
}

TEST(ActivationCheckpoint, FrozenParametersGetNoGradient) {
  Chain chain(2, 4);
  chain.layers[0]->in->weight.set_requires_grad(false);
  chain.forward(torch::randn({3, 4}), true).sum().backward();
  EXPECT_FALSE(chain.layers[0]->in->weight.grad().defined());
  EXPECT_TRUE(chain.layers[0]->in->bias.grad().defined());
}

TEST(ActivationCheckpoint, ParametersMayBeTiedInsideABlockAndBetweenBlocks) {
  struct Tied : torch::nn::Module {
    Tied() {
      register_module("a", a);
      register_module("b", b);
      b->weight = b->register_parameter("weight2", a->weight);
    }
    Tensor forward(const Tensor& x) { return b(a(x).tanh()); }
    torch::nn::Linear a{4, 4}, b{4, 4};
  };
  const auto block = std::make_shared<Tied>();
  const auto run = [&](bool checkpoints) {
    return pass(*block->a, {3, 4}, true, [&](const Tensor& x) {
      if (!checkpoints) return block->forward(block->forward(x));
      return activation_checkpoint(*block, activation_checkpoint(*block, x));
    });
  };
  const Pass expected = run(false), ours = run(true);
  // Sums of more than two terms have another order.
  EXPECT_TRUE(torch::allclose(ours.gradients[0], expected.gradients[0], 1e-5, 1e-6));
  EXPECT_TRUE(same(ours.gradients[1], expected.gradients[1]));
  EXPECT_TRUE(same(ours.of_input, expected.of_input));
}

TEST(ActivationCheckpoint, BlocksMayBeNested) {
  Chain chain(3, 4);
  const auto nested = [&](const Tensor& x) { return chain.forward(x, true); };
  const Pass expected =
      pass(chain, {3, 4}, true, [&](const Tensor& x) { return chain.forward(x, false); });
  expect_same(
      pass(chain, {3, 4}, true,
           [&](const Tensor& x) { return activation_checkpoint(nested, chain.parameters(), x); }),
      expected);
}

TEST(ActivationCheckpoint, FunctionsTakeAndReturnAnyStructureOfTensors) {
  const Tensor weight = torch::randn({4, 4}).set_requires_grad(true);
  const auto function = [&](const std::tuple<Tensor, Tensor>& pair, double scale,
                            const std::optional<Tensor>& mask, const Tensor& undefined) {
    const auto& [a, b] = pair;
    Tensor y = a.mm(weight) * scale + b;
    if (mask) y = y.masked_fill(*mask, 0.);
    EXPECT_FALSE(undefined.defined());
    return std::tuple(y, Tensors{y.argmax(1), y.sin(), b.detach()}, Tensor(), std::string("text"));
  };
  const auto run = [&](bool checkpoints) {
    torch::manual_seed(3);
    weight.mutable_grad() = Tensor();
    const Tensor a = torch::randn({2, 4}).set_requires_grad(true), b = torch::randn({2, 4});
    const std::tuple pair(a, b);
    const std::optional mask(torch::rand({2, 4}) > 0.5);
    auto [y, list, none, text] =
        checkpoints ? activation_checkpoint(function, {weight}, pair, 0.5, mask, Tensor())
                    : function(pair, 0.5, mask, Tensor());
    EXPECT_FALSE(none.defined());
    EXPECT_EQ(text, "text");
    EXPECT_FALSE(list[0].requires_grad());
    EXPECT_FALSE(list[2].requires_grad());
    list[1].sum().backward();
    return Tensors{y.detach(), list[0], list[1].detach(), a.grad(), weight.grad()};
  };
  const Tensors expected = run(false), ours = run(true);
  for (std::size_t i = 0; i < ours.size(); ++i) EXPECT_TRUE(same(ours[i], expected[i])) << i;
}

TEST(ActivationCheckpoint, ResultsThatAreInputsOrAppearTwiceAreResults) {
  const Tensor x = torch::randn({3}).set_requires_grad(true);
  const auto twice = [](const Tensor& a) {
    const Tensor b = a * 2;
    return std::tuple(a, b, b);
  };
  const auto [a, b, c] = activation_checkpoint(twice, {}, x * 1);
  (a + b + c * 3).sum().backward();
  EXPECT_TRUE(torch::equal(x.grad(), torch::full({3}, 9.)));
}

TEST(ActivationCheckpoint, AutocastIsThatOfTheFirstForward) {
  Chain chain(2, 8);
  const auto run = [&](bool checkpoints) {
    return pass(chain, {3, 8}, true, [&](const Tensor& x) {
      at::autocast::set_autocast_enabled(at::kCPU, true);
      at::autocast::set_autocast_dtype(at::kCPU, at::kBFloat16);
      at::autocast::increment_nesting();
      const Tensor y = chain.forward(x, checkpoints);
      if (at::autocast::decrement_nesting() == 0) at::autocast::clear_cache();
      at::autocast::set_autocast_enabled(at::kCPU, false);
      return y.to(at::kFloat);
    });
  };
  const Pass expected = run(false);
  expect_same(run(true), expected);
  EXPECT_FALSE(at::autocast::is_autocast_enabled(at::kCPU));
  chain.to(torch::kFloat);
  const Pass plain =
      pass(chain, {3, 8}, true, [&](const Tensor& x) { return chain.forward(x, true); });
  EXPECT_FALSE(same(plain.result, expected.result));  // Autocast had an effect.
}

TEST(ActivationCheckpoint, HooksOfParametersRunOnceWithTheWholeGradient) {
  Chain chain(2, 4, 0);
  const Tensor weight = chain.layers[0]->in->weight;
  int hooks = 0, posts = 0;
  weight.register_hook([&](const Tensor& gradient) {
    ++hooks;
    return gradient * 2;
  });
  const auto accumulator = torch::autograd::impl::grad_accumulator(weight);
  accumulator->add_post_hook(std::make_unique<torch::autograd::utils::LambdaPostHook>(
      [&](const torch::autograd::variable_list& outputs, const torch::autograd::variable_list&) {
        ++posts;
        return outputs;
      }));
  const auto run = [&](bool checkpoints) {
    return pass(chain, {3, 4}, true,
                [&](const Tensor& x) { return chain.forward(x, checkpoints); });
  };
  const Pass expected = run(false);
  expect_same(run(true), expected);
  EXPECT_EQ(hooks, 2);
  EXPECT_EQ(posts, 2);
}

TEST(ActivationCheckpoint, BuffersAreUpdatedOnce) {
  const auto make = [] {
    torch::manual_seed(1);
    return torch::nn::Sequential(torch::nn::Linear(4, 4), torch::nn::BatchNorm1d(4));
  };
  auto plain = make(), checkpointed = make();
  torch::manual_seed(2);
  const Tensor x = torch::randn({5, 4});
  plain->forward(x).pow(3).sum().backward();
  activation_checkpoint(*checkpointed, x).pow(3).sum().backward();
  for (const auto& buffer : plain->named_buffers())
    EXPECT_TRUE(torch::equal(buffer.value(), checkpointed->named_buffers()[buffer.key()]))
        << buffer.key();
  EXPECT_TRUE(same(plain[0]->as<torch::nn::Linear>()->weight.grad(),
                   checkpointed[0]->as<torch::nn::Linear>()->weight.grad()));
}

TEST(ActivationCheckpoint, BackwardMayRunTwiceAndForOneInputAlone) {
  Mlp block(4);
  const Tensor x = torch::randn({2, 4}).set_requires_grad(true);
  const Tensor loss = activation_checkpoint(block, x).sum();
  const Tensor first = torch::autograd::grad({loss}, {x}, {}, /*retain_graph=*/true)[0];
  const Tensor second = torch::autograd::grad({loss}, {x}, {}, /*retain_graph=*/true)[0];
  EXPECT_TRUE(torch::equal(first, second));
  loss.backward();
  EXPECT_TRUE(torch::equal(x.grad(), first));
  EXPECT_TRUE(block.in->weight.grad().defined());
}

TEST(ActivationCheckpoint, AParameterThatAPassDoesNotUseGetsNoGradient) {
  Mlp block(4);
  block.register_parameter("unused", torch::ones({2}));
  activation_checkpoint(block, torch::randn({2, 4})).sum().backward();
  EXPECT_FALSE(block.named_parameters()["unused"].grad().defined());
  EXPECT_TRUE(block.in->weight.grad().defined());
}

TEST(ActivationCheckpoint, GeneratorsOfTheBlockAreRestoredWhenNamed) {
  at::Generator generator = at::make_generator<at::CPUGeneratorImpl>(5);
  const Tensor x = torch::ones({64}).set_requires_grad(true);
  const auto mask = [&](const Tensor& a) {
    return a * torch::empty_like(a).bernoulli_(0.5, generator);
  };
  const Tensor y = activation_checkpoint({.generators = {generator}}, mask, {}, x);
  const Tensor drawn_between = torch::empty({3}).uniform_(0, 1, generator);
  y.sum().backward();
  EXPECT_TRUE(torch::equal(x.grad(), y.detach()));
}

// --- Errors --------------------------------------------------------------------------------------

TEST(ActivationCheckpoint, LeavesThatWereNotNamedAreRefusedInForward) {
  const Tensor weight = torch::randn({2, 3}).set_requires_grad(true);
  const Tensor x = torch::randn({4, 2});
  std::string text;
  const auto function = [&](const Tensor& a) { return a.mm(weight); };
  const Tensor input = x.clone().set_requires_grad(true);
  EXPECT_EQ(fault_of([&] { activation_checkpoint({.name = "h.0"}, function, {}, input); }, &text),
            Fault::misuse);
  EXPECT_NE(text.find("h.0: the block uses a tensor Float 2 3 that requires a gradient"), text.npos)
      << text;
  EXPECT_EQ(fault_of([&] { activation_checkpoint(function, {weight * 2}, input); }, &text),
            Fault::misuse);
  EXPECT_NE(text.find("the parameter Float 2 3 is no leaf"), text.npos) << text;
}

TEST(ActivationCheckpoint, ChangesInPlaceAndGradientsOfGradientsAreRefused) {
  Mlp block(4);
  const Tensor weight = torch::ones({2}).set_requires_grad(true);
  const auto adds = [&](Tensor a) { return a.add_(1) * weight; };
  std::string text;
  const Tensor x = torch::ones({2});
  EXPECT_EQ(fault_of([&] { activation_checkpoint(adds, {weight}, x); }, &text), Fault::misuse);
  EXPECT_NE(text.find("changes its input Float 2 in place"), text.npos) << text;

  const Tensor loss = activation_checkpoint(block, torch::randn({2, 4})).sum();
  const Tensors parameters = block.parameters();
  EXPECT_EQ(fault_of([&] { torch::autograd::grad({loss}, parameters, {}, true, true); }, &text),
            Fault::unsupported);
  EXPECT_NE(text.find("Mlp"), text.npos) << text;
  {
    const torch::NoGradGuard no_grad;
    block.in->weight.add_(1);
  }
  EXPECT_THROW(loss.backward(), c10::Error);  // As without a checkpoint.
}

TEST(ActivationCheckpoint, ASecondForwardWithOtherShapesIsRefused) {
  int calls = 0;
  const auto grows = [&](const Tensor& a) { return a.expand({++calls, 3}); };
  const Tensor x = torch::ones({1, 3}).set_requires_grad(true);
  const Tensor loss = activation_checkpoint(grows, {}, x).sum();
  std::string text;
  EXPECT_EQ(fault_of([&] { loss.backward(); }, &text), Fault::misuse);
  EXPECT_NE(text.find("returns Float 2 3, the first one returned Float 1 3"), text.npos) << text;
}

// --- Kept results --------------------------------------------------------------------------------

std::atomic<int> counted_calls = 0;

Tensor counted(const Tensor& x) {
  ++counted_calls;
  return x * 2;
}

TORCH_LIBRARY(lockstep_checkpoint_test, library) {
  library.def("counted(Tensor x) -> Tensor");
  library.impl("counted", torch::dispatch(c10::DispatchKey::CPU, torch::CppFunction(&counted)));
}

Tensor call_counted(const Tensor& x) {
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("lockstep_checkpoint_test::counted", "")
                             .typed<Tensor(const Tensor&)>();
  return op.call(x);
}

TEST(ActivationCheckpoint, ChosenOperatorsDoNotRunAgain) {
  const Tensor x = torch::randn({4}).set_requires_grad(true);
  const auto function = [](const Tensor& a) { return a.sin() * call_counted(a.detach()); };
  function(x).sum().backward();
  const Tensor expected = x.grad().clone();
  for (const bool keeps : {false, true}) {
    x.mutable_grad() = Tensor();
    counted_calls = 0;
    ActivationCheckpointOptions options;
    if (keeps)
      options.keep = [](std::string_view name) {
        return name == "lockstep_checkpoint_test::counted";
      };
    activation_checkpoint(options, function, {}, x).sum().backward();
    EXPECT_EQ(counted_calls, keeps ? 1 : 2);
    EXPECT_TRUE(torch::equal(x.grad(), expected));
  }
}

bool is_product(std::string_view name) { return name == "aten::mm" || name == "aten::addmm"; }

// For three dims, LibTorch's Linear adds its bias in place.
TEST(ActivationCheckpoint, KeptResultsGiveEqualBitsWhenTheBlockChangesThemToo) {
  Chain chain(2, 8);
  for (const auto& shape : {std::vector<std::int64_t>{5, 8}, {2, 5, 8}}) {
    const auto run = [&](bool checkpoints, const ActivationCheckpointOptions& options) {
      return pass(chain, shape, true,
                  [&](const Tensor& x) { return chain.forward(x, checkpoints, options); });
    };
    const Pass expected = run(false, {});
    expect_same(run(true, {.keep = is_product}), expected);
    expect_same(run(true, {.keep = [](std::string_view) { return true; }}), expected);
  }
  const Tensor x = torch::randn({2, 5, 8}).set_requires_grad(true);
  const Tensor loss = chain.forward(x, true, {.keep = is_product}).sum();
  const Tensor first = torch::autograd::grad({loss}, {x}, {}, true)[0];
  EXPECT_TRUE(torch::equal(torch::autograd::grad({loss}, {x})[0], first));
}

TEST(ActivationCheckpoint, KeptRandomResultsLeaveTheNextOnesAsTheyWere) {
  const auto noise = [](const Tensor& a) {
    return a * torch::rand_like(a) + a * torch::randn({8});
  };
  const Tensor x = torch::ones({8}).set_requires_grad(true);
  const auto keeps_first = [](std::string_view name) { return name == "aten::rand_like"; };
  const Tensor y = activation_checkpoint({.keep = keeps_first}, noise, {}, x);
  y.sum().backward();
  EXPECT_TRUE(torch::equal(x.grad(), y.detach()));
}

TEST(ActivationCheckpoint, KeptResultsWorkInNestedBlocks) {
  Chain chain(2, 4);
  const ActivationCheckpointOptions keeps{.keep = is_product};
  const auto inner = [&](const Tensor& x) { return chain.forward(x, true, keeps); };
  const auto run = [&](const auto& forward) { return pass(chain, {3, 4}, true, forward); };
  const Pass expected = run([&](const Tensor& x) { return chain.forward(x, false); });
  expect_same(run([&](const Tensor& x) {
                return activation_checkpoint(keeps, inner, chain.parameters(), x);
              }),
              expected);
  expect_same(
      run([&](const Tensor& x) { return activation_checkpoint(inner, chain.parameters(), x); }),
      expected);
}

TEST(ActivationCheckpoint, ASecondForwardWithOtherKeptOperatorsIsRefused) {
  int calls = 0;
  const auto changes = [&](const Tensor& a) { return ++calls == 1 ? a.sin() : a.cos(); };
  const Tensor x = torch::ones({3}).set_requires_grad(true);
  const auto keep = [](std::string_view name) {
    return name == "aten::sin" || name == "aten::cos";
  };
  const Tensor loss = activation_checkpoint({.keep = keep}, changes, {}, x).sum();
  std::string text;
  EXPECT_EQ(fault_of([&] { loss.backward(); }, &text), Fault::misuse);
  EXPECT_NE(text.find("calls aten::cos where the first one called aten::sin"), text.npos) << text;
}

// --- Memory --------------------------------------------------------------------------------------

// docs/guide/model-parallel.md cites the figures that this test prints.
TEST(ActivationCheckpoint, AChainOfBlocksHoldsTheirInputsAndTheActivationsOfOneBlock) {
  test::CountingAllocator counting;
  constexpr int blocks = 12, width = 64, rows = 2048;
  Chain chain(blocks, width);
  const Tensor x = torch::randn({rows, width});
  chain.forward(x, false).sum().backward();
  const auto peak = [&](bool checkpoints, const ActivationCheckpointOptions& options) {
    return static_cast<double>(test::CountingAllocator::peak_of(
        [&] { chain.forward(x, checkpoints, options).sum().backward(); }));
  };
  const double all = peak(false, {}), none = peak(true, {}),
               some = peak(true, {.keep = is_product});
  const double input = 4.0 * rows * width;
  std::cout << "peak of " << blocks << " blocks over weights and gradients: " << all / 1e6
            << " MB, with checkpoints " << none / 1e6 << " MB, with products kept " << some / 1e6
            << " MB; a block's input has " << input / 1e6 << " MB\n";
  EXPECT_LT(none, all / 4);
  EXPECT_LT(some, all * 0.6);
  EXPECT_GT(some, none);
  EXPECT_LT(none, blocks * input + 1.5 * all / blocks + 8 * input);
}

}  // namespace
}  // namespace lockstep::tensor::activation_checkpoint_test

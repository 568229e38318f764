// SPDX-License-Identifier: Apache-2.0
#include "lockstep/nn/layers.h"

#include <ATen/autocast_mode.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/nn/functional/loss.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>
#include <torch/types.h>

#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/comm/in_process.h"
#include "lockstep/comm/process_group.h"
#include "lockstep/nn/cross_entropy.h"
#include "lockstep/tensor/activation_checkpoint.h"
#include "lockstep/tensor/collectives.h"
#include "lockstep/tensor/differentiable.h"
#include "lockstep/tensor/named_tensors.h"
#include "tests/fault_of.h"
#include "tests/ranks.h"
#include "tests/rigs/known_numbers.h"

namespace lockstep::nn::layers_test {
namespace {

using test::expect_near;
using test::fault_of;
using test::fill;
using test::numbers;
using Tensors = std::vector<at::Tensor>;

at::Tensor longs(const std::vector<std::int64_t>& values) { return at::tensor(values); }

// Fills all parameters with values that depend only on their names, in double precision.
template <class Holder>
Holder filled(Holder layer) {
  fill(*layer);
  return layer;
}

at::Tensor part(const at::Tensor& x, std::int64_t dim, const ProcessGroup& group) {
  return x.split_with_sizes(chunk_sizes(x.size(dim), group.size()),
                            dim)[static_cast<std::size_t>(group.rank())];
}

// Compares the gradients of a cut layer with those of the whole one.
void expect_gradients(const torch::nn::Module& cut, const torch::nn::Module& whole,
                      const std::string& what) {
  const Layouts layouts = layouts_of(cut);
  const auto expected = whole.named_parameters();
  for (const auto& item : cut.named_parameters()) {
    const auto layout = layouts.find(item.key());
    const at::Tensor gradient = layout == layouts.end()
                                    ? item.value().grad()
                                    : gather_whole(item.value().grad(), layout->second);
    expect_near(gradient, expected[item.key()].grad(), what + ' ' + item.key());
  }
}

// A layer, its style, and its input and output in the style's placements.
struct Case {
  std::string name;
  ParallelStyle style;
  std::vector<std::int64_t> shape;  // Shape of the whole input.
  Placement input, output;
};

// `whole` and `make()` are layers with equal parameters.
template <class Whole, class Make>
void expect_equal_to_whole(const Case& c, Whole whole, const Make& make, int ranks) {
  const at::Tensor x = numbers(c.shape, 0.5).set_requires_grad(true);
  const at::Tensor y = whole->forward(x);
  const at::Tensor weight = numbers(y.sizes(), 7).cos();
  (y * weight).sum().backward();
  run_in_process(ranks, [&](ProcessGroup& group) {
    const std::string what =
        c.name + " on rank " + std::to_string(group.rank()) + " of " + std::to_string(ranks) + ":";
    auto layer = make();
    ASSERT_EQ(layer->mismatch(c.style, ranks), "") << what;
    layer->parallelize({c.style, group, c.name});
    const auto placed = [&](const at::Tensor& tensor, Placement placement) {
      if (placement.is_whole()) return tensor.detach();
      return part(tensor.detach(),
                  *placement.dim < 0 ? tensor.dim() + *placement.dim : *placement.dim, group);
    };
    const at::Tensor mine = placed(x, c.input).clone().set_requires_grad(true);
    const at::Tensor result = layer->forward(mine);
    expect_near(result.detach(), placed(y, c.output), what + " result");
    (result * placed(weight, c.output)).sum().backward();
    expect_near(mine.grad(), placed(x.grad(), c.input), what + " gradient of the input");
    expect_gradients(*layer, *whole, what);
  });
}

class Layers : public testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Ranks, Layers, testing::Values(1, 2, 3, 4));

TEST_P(Layers, LinearEqualsTheWholeOneInEveryStyle) {
  for (const bool bias : {true, false}) {
    const auto make = [&] { return filled(Linear(torch::nn::LinearOptions(12, 24).bias(bias))); };
    const auto check = [&](const Case& c) {
      auto whole = filled(torch::nn::Linear(torch::nn::LinearOptions(12, 24).bias(bias)));
      expect_equal_to_whole(c, whole, make, GetParam());
    };
    const std::vector<std::int64_t> shape{2, 5, 12};
    check({"colwise", ColwiseParallel(), shape, replicated, sharded(-1)});
    check({"colwise, gathered", ColwiseParallel({.output = replicated}), shape, replicated,
           replicated});
    check({"colwise of a sequence", ColwiseParallel({.input = sharded(1)}), shape, sharded(1),
           sharded(-1)});
    check({"rowwise", RowwiseParallel(), shape, sharded(-1), replicated});
    check({"rowwise of a whole", RowwiseParallel({.input = replicated}), shape, replicated,
           replicated});
    check({"rowwise to a sequence", RowwiseParallel({.output = sharded(1)}), shape, sharded(-1),
           sharded(1)});
    check({"uneven", ColwiseParallel({.uneven = true}), shape, replicated, sharded(-1)});
  }
}

// --- Products are made where they are summed -----------------------------------------------------

// Computes a cut Linear by functions of LibTorch and tensor/differentiable.h.
at::Tensor composed(const LinearImpl& linear, const at::Tensor& x) {
  const ProcessGroup& group = linear.cut()->group;
  if (std::holds_alternative<ColwiseParallel>(linear.cut()->style))
    return at::linear(copy_to_parallel_region(x, group), linear.weight, linear.bias);
  const at::Tensor sum = reduce_from_parallel_region(at::linear(x, linear.weight), group);
  return linear.bias.defined() ? sum + linear.bias : sum;
}

using Forward = std::function<at::Tensor(LinearImpl&, const at::Tensor&)>;

// Returns the result of forward(), and gradients of input and parameters. With `twice`, also the
// gradients of the gradients' squares.
Tensors results_of(const Forward& forward, LinearImpl& linear, const at::Tensor& input,
                   bool twice) {
  linear.zero_grad();
  const at::Tensor x = input.detach().set_requires_grad(true);
  const at::Tensor y = forward(linear, x);
  at::Tensor loss = (y * y.detach().cos()).sum();
  if (twice) {
    Tensors leaves = linear.parameters();
    leaves.push_back(x);
    loss = y.pow(3).sum();
    for (const at::Tensor& one : torch::autograd::grad({loss}, leaves, {}, true, true))
      loss = loss + one.pow(2).sum();
  }
  loss.backward();
  Tensors results{y.detach(), x.grad().clone()};
  for (const at::Tensor& parameter : linear.parameters())
    results.push_back(parameter.grad().clone());
  return results;
}

void expect_same_bits(const Tensors& ours, const Tensors& expected, const std::string& what) {
  ASSERT_EQ(ours.size(), expected.size()) << what;
  for (std::size_t i = 0; i < ours.size(); ++i) {
    EXPECT_EQ(ours[i].scalar_type(), expected[i].scalar_type()) << what << ' ' << i;
    EXPECT_TRUE(at::equal(ours[i], expected[i])) << what << ' ' << i;
  }
}

// Calls test(linear, x) with cut Linears of several kinds, on two and three ranks. Sums are large
// enough for registered memory.
void for_cut_linears(const std::function<void(LinearImpl&, const at::Tensor&)>& test) {
  for (const int ranks : {2, 3})
    run_in_process(ranks, [&](ProcessGroup& group) {
      for (const auto type : {at::kFloat, at::kDouble, at::kBFloat16})
        for (const bool bias : {true, false})
          for (const ParallelStyle& style :
               {ParallelStyle(ColwiseParallel()), ParallelStyle(RowwiseParallel())}) {
            Linear linear = filled(Linear(torch::nn::LinearOptions(48, 96).bias(bias)));
            linear->to(type);
            linear->parallelize({style, group, "fc"});
            const std::int64_t width = linear->weight.size(1);
            const at::Tensor x = (numbers({4, 33, width}, 2) * 0.1).to(type);
            test(*linear, style.index() == 0 ? x : x + group.rank());
          }
    });
}

at::Tensor forward(LinearImpl& linear, const at::Tensor& x) { return linear.forward(x); }

TEST(CutLinear, HasTheBitsOfTheFunctionsItIsMadeOf) {
  for_cut_linears([](LinearImpl& linear, const at::Tensor& x) {
    for (const at::Tensor& input : {x, x[0], x.transpose(0, 1), x.narrow(1, 0, 0)})
      expect_same_bits(results_of(forward, linear, input, false),
                       results_of(composed, linear, input, false), "");
  });
}

TEST(CutLinear, HasTheirGradientsOfGradients) {
  for_cut_linears([](LinearImpl& linear, const at::Tensor& x) {
    if (x.scalar_type() != at::kDouble) return;
    const auto ours = results_of(forward, linear, x, true);
    const auto expected = results_of(composed, linear, x, true);
    ASSERT_EQ(ours.size(), expected.size());
    for (std::size_t i = 0; i < ours.size(); ++i)
      EXPECT_TRUE(at::allclose(ours[i], expected[i], 1e-11, 1e-11)) << i;
  });
}

TEST(CutLinear, WorksWithoutGradientsUnderAutocastAndInACheckpoint) {
  for_cut_linears([](LinearImpl& linear, const at::Tensor& x) {
    const at::Tensor expected = composed(linear, x).detach();
    {
      const at::NoGradGuard no_grad;
      EXPECT_TRUE(at::equal(linear.forward(x), expected));
    }
    {
      const c10::InferenceMode inference;
      EXPECT_TRUE(at::equal(linear.forward(x), expected));
    }
    const auto checkpointed = [](LinearImpl& layer, const at::Tensor& input) {
      return activation_checkpoint(layer, input);
    };
    const auto keeping = [](LinearImpl& layer, const at::Tensor& input) {
      return activation_checkpoint(
          {.keep = [](std::string_view op) { return op == "aten::mm" || op == "aten::addmm"; }},
          layer, input);
    };
    const auto results = results_of(composed, linear, x, false);
    expect_same_bits(results_of(checkpointed, linear, x, false), results, "checkpoint");
    expect_same_bits(results_of(keeping, linear, x, false), results, "with all kept");
    if (x.scalar_type() != at::kFloat) return;
    at::autocast::set_autocast_enabled(at::kCPU, true);
    expect_same_bits(results_of(forward, linear, x, false), results_of(composed, linear, x, false),
                     "autocast");
    at::autocast::set_autocast_enabled(at::kCPU, false);
    at::autocast::clear_cache();
  });
}

TEST(CutLinear, DoesNotSumTheGradientOfAnInputThatNeedsNone) {
  run_in_process(2, [](ProcessGroup& group) {
    auto linear = filled(Linear(4, 6));
    linear->parallelize({ColwiseParallel(), group, "fc"});
    linear->weight.set_requires_grad(group.rank() == 0);  // Only one rank runs backward.
    linear->bias.set_requires_grad(false);
    const at::Tensor y = linear->forward(at::ones({3, 4}, at::kDouble));
    EXPECT_EQ(y.requires_grad(), group.rank() == 0);
    if (group.rank() == 0) y.sum().backward();
    EXPECT_EQ(linear->weight.grad().defined(), group.rank() == 0);
    EXPECT_FALSE(linear->bias.grad().defined());
  });
}

// q | k | v: each rank has a part of all three.
TEST_P(Layers, LinearCutsEachSegment) {
  auto whole = filled(torch::nn::Linear(4, 36));
  run_in_process(GetParam(), [&](ProcessGroup& group) {
    auto linear = filled(Linear(4, 36));
    linear->parallelize({ColwiseParallel({.segments = 3}), group, "qkv"});
    const at::Tensor x = numbers({2, 4}, 3);
    const auto mine = linear->forward(x).chunk(3, -1), all = whole->forward(x).chunk(3, -1);
    for (std::size_t i = 0; i < 3; ++i)
      expect_near(mine[i].detach(), part(all[i].detach(), 1, group),
                  "segment " + std::to_string(i));
    const Layouts layouts = linear->layouts();
    expect_near(gather_whole(linear->weight, layouts.at("weight")), whole->weight.detach(),
                "weight");
    expect_near(gather_whole(linear->bias, layouts.at("bias")), whole->bias.detach(), "bias");
  });
}

TEST_P(Layers, NormsOfASequenceSumTheirGradients) {
  const std::vector<std::int64_t> shape{2, 7, 6};
  expect_equal_to_whole(
      {"layer norm", SequenceParallel(), shape, sharded(1), sharded(1)},
      filled(torch::nn::LayerNorm(torch::nn::LayerNormOptions({6}))),
      [] { return filled(LayerNorm(torch::nn::LayerNormOptions({6}))); }, GetParam());
  expect_equal_to_whole(
      {"RMS norm", SequenceParallel(), shape, sharded(1), sharded(1)},
      filled(RMSNorm(RMSNormOptions({6}))), [] { return filled(RMSNorm(RMSNormOptions({6}))); },
      GetParam());
}

// A vocabulary of 11: 3 ranks have 4, 4 and 3 rows; 4 ranks 3, 3, 3 and 2. A vocabulary of 2 leaves
// ranks without rows.
TEST_P(Layers, EmbeddingAndItsLogitsEqualTheWholeOnes) {
  for (const std::int64_t vocabulary : {11, 2})
    for (const bool padded : {false, true}) {
      auto options = torch::nn::EmbeddingOptions(vocabulary, 12);
      if (padded) options.padding_idx(-1);
      auto whole = filled(torch::nn::Embedding(options));
      const at::Tensor tokens = longs({0, 5, 10, 4, 5, 1}).remainder(vocabulary).view({2, 3});
      const at::Tensor target = longs({3, 0, -100, 7, 10, 1}).fmod(vocabulary);
      const at::Tensor targets = target.masked_fill(target < 0, -100);
      const at::Tensor y = whole->forward(tokens);
      const at::Tensor logits = at::linear(y.tanh(), whole->weight).flatten(0, 1);
      const at::Tensor loss = at::cross_entropy_loss(logits, targets);
      loss.backward();
      run_in_process(GetParam(), [&](ProcessGroup& group) {
        auto embedding = filled(Embedding(options));
        embedding->parallelize({RowwiseParallel(), group, "wte"});
        const at::Tensor z = embedding->forward(tokens);
        expect_near(z.detach(), y.detach(), "rows");
        const at::Tensor own = embedding->as_linear(z.tanh()).flatten(0, 1);
        expect_near(own.detach(), part(logits.detach(), 1, group), "logits");
        const at::Tensor ours = lockstep::cross_entropy(own, targets, group);
        expect_near(ours.detach(), loss.detach(), "loss");
        ours.backward();
        expect_gradients(*embedding, *whole, "tied embedding");
      });
    }
}

TEST_P(Layers, EmbeddingCutByFeatures) {
  auto whole = filled(torch::nn::Embedding(5, 12));
  const at::Tensor tokens = longs({0, 4, 4, 1});
  const at::Tensor y = whole->forward(tokens);
  y.pow(2).sum().backward();
  run_in_process(GetParam(), [&](ProcessGroup& group) {
    auto embedding = filled(Embedding(5, 12));
    embedding->parallelize({ColwiseParallel(), group, "wte"});
    const at::Tensor z = embedding->forward(tokens);
    expect_near(z.detach(), part(y.detach(), 1, group), "features");
    z.pow(2).sum().backward();
    expect_gradients(*embedding, *whole, "embedding");
  });
}

// Between any two placements, and back with the gradient.
TEST_P(Layers, RedistributeChangesThePlacement) {
  const at::Tensor x = numbers({7, 5, 6}, 0.4), weight = numbers({7, 5, 6}, 3).cos();
  const std::vector<Placement> placements = {replicated, sharded(0), sharded(1), sharded(-1)};
  run_in_process(GetParam(), [&](ProcessGroup& group) {
    const auto placed = [&](const at::Tensor& tensor, Placement placement) {
      return placement.is_whole() ? tensor : part(tensor, (*placement.dim + 3) % 3, group);
    };
    for (const Placement from : placements)
      for (const Placement to : placements) {
        Redistribute layer;
        const at::Tensor mine = placed(x, from).clone().set_requires_grad(true);
        EXPECT_TRUE(layer->forward(mine).is_same(mine)) << "before it is cut";
        layer->parallelize({Redistribution{from, to}, group, "prepare"});
        const at::Tensor y = layer->forward(mine);
        expect_near(y.detach(), placed(x, to), "result");
        (y * placed(weight, to)).sum().backward();
        expect_near(mine.grad(), placed(weight, from), "gradient");
      }
  });
}

TEST(WholeLayers, AnIndexOutsideOfTheVocabularyIsAnErrorOnAllRanks) {
  run_in_process(2, [](ProcessGroup& group) {
    auto embedding = filled(Embedding(5, 4));
    embedding->parallelize({RowwiseParallel(), group, "wte"});
    std::string text;
    EXPECT_EQ(fault_of([&] { embedding->forward(longs({0, 5})); }, &text), Fault::misuse);
    EXPECT_NE(text.find("wte: indices 0 to 5 are not all in a vocabulary of 5"), text.npos) << text;
    embedding->forward(longs({0, 4}));
  });
}

// --- Cross entropy -------------------------------------------------------------------------------

TEST_P(Layers, CrossEntropyEqualsTheWholeOne) {
  using namespace at::Reduction;
  for (const auto reduction : {Mean, Sum, None})
    for (const std::int64_t classes : {9, 2})
      for (const std::int64_t ignored : {-100, 1}) {
        at::Tensor x = (numbers({6, classes}, 2) * 40).set_requires_grad(true);
        const at::Tensor target = longs({0, 1, 1, 0, 8, 3}).remainder(classes);
        if (ignored < 0) target[2] = ignored;
        const at::Tensor loss = at::cross_entropy_loss(x, target, {}, reduction, ignored);
        (loss * 3).sum().backward();
        run_in_process(GetParam(), [&](ProcessGroup& group) {
          const at::Tensor mine = part(x.detach(), 1, group).clone().set_requires_grad(true);
          const at::Tensor ours = lockstep::cross_entropy(
              mine, target, group, {.ignore_index = ignored, .reduction = reduction});
          expect_near(ours.detach(), loss.detach(), "loss");
          (ours * 3).sum().backward();
          expect_near(mine.grad(), part(x.grad(), 1, group), "gradient");
        });
      }
}

TEST(CrossEntropy, RefusesGradientsOfItsGradient) {
  run_in_process(2, [&](ProcessGroup& group) {
    at::Tensor x = part(numbers({3, 6}, 2), 1, group).clone().set_requires_grad(true);
    const at::Tensor loss = lockstep::cross_entropy(x, longs({0, 5, 2}), group);
    EXPECT_EQ(fault_of([&] { torch::autograd::grad({loss}, {x}, {}, {}, /*create_graph=*/true); }),
              Fault::unsupported);
  });
}

// As with a padded vocabulary: some ranks have only logits of minus infinity.
TEST(CrossEntropy, IsCorrectForPartsOfOnlyMinusInfinity) {
  constexpr double infinity = std::numeric_limits<double>::infinity();
  at::Tensor x = numbers({3, 6}, 2);
  x.narrow(1, 3, 3).fill_(-infinity);
  x[1].narrow(0, 0, 4).fill_(-infinity);
  x[1][5] = 2;
  x.set_requires_grad(true);
  const at::Tensor target = longs({0, 5, 2});
  const at::Tensor loss = at::cross_entropy_loss(x, target);
  loss.backward();
  run_in_process(2, [&](ProcessGroup& group) {
    const at::Tensor mine = part(x.detach(), 1, group).clone().set_requires_grad(true);
    const at::Tensor ours = lockstep::cross_entropy(mine, target, group);
    expect_near(ours.detach(), loss.detach(), "loss");
    ours.backward();
    expect_near(mine.grad(), part(x.grad(), 1, group), "gradient");
  });
}

TEST(CrossEntropy, IsComputedInFloatForHalfPrecision) {
  const at::Tensor logits = (numbers({4, 6}, 1) * 5).to(at::kBFloat16);
  const at::Tensor target = longs({0, 5, 2, 3});
  const at::Tensor expected = at::cross_entropy_loss(logits.to(at::kFloat), target);
  run_in_process(2, [&](ProcessGroup& group) {
    const at::Tensor ours = lockstep::cross_entropy(part(logits, 1, group), target, group);
    EXPECT_EQ(ours.scalar_type(), at::kBFloat16);
    EXPECT_EQ(ours.item<float>(), expected.to(at::kBFloat16).item<float>());
  });
}

TEST(CrossEntropy, UnderAutocastTheLossIsFloatAndTakesAScaleThatFloat16DoesNot) {
  const at::Tensor logits = (numbers({4, 6}, 1) * 5).to(at::kHalf).set_requires_grad(true);
  const at::Tensor target = longs({0, 5, 2, 3});
  constexpr float scale = 65536;  // GradScaler's initial scale.
  (at::cross_entropy_loss(logits.to(at::kFloat), target) * scale).backward();
  run_in_process(2, [&](ProcessGroup& group) {
    const at::Tensor mine = part(logits.detach(), 1, group).clone().set_requires_grad(true);
    at::autocast::set_autocast_enabled(at::kCPU, true);
    const at::Tensor loss = lockstep::cross_entropy(mine, target, group);
    at::autocast::set_autocast_enabled(at::kCPU, false);
    EXPECT_EQ(loss.scalar_type(), at::kFloat);
    (loss * scale).backward();
    EXPECT_TRUE(at::allclose(mine.grad().to(at::kFloat),
                             part(logits.grad().to(at::kFloat), 1, group), 1e-2, 1e-2));
  });
}

TEST(CrossEntropy, RefusesATargetThatIsNoClass) {
  run_in_process(2, [](ProcessGroup& group) {
    std::string text;
    const auto call = [&](std::int64_t target) {
      return [&group, target] {
        lockstep::cross_entropy(at::zeros({1, 3}), longs({target}), group);
      };
    };
    EXPECT_EQ(fault_of(call(6), &text), Fault::misuse);
    EXPECT_NE(text.find("target 6 is not one of 6 classes"), text.npos) << text;
    EXPECT_EQ(fault_of(call(-1)), Fault::misuse);
    EXPECT_EQ(fault_of([&] {
                lockstep::cross_entropy(at::zeros({2, 3}), at::zeros({1}), group);
              }),
              Fault::misuse);
  });
}

// --- Before they are cut, they are LibTorch's ----------------------------------------------------

template <class Ours, class Theirs, class Options>
void expect_same_layer(const Options& options, const at::Tensor& input) {
  torch::manual_seed(3);
  Ours ours(options);
  torch::manual_seed(3);
  Theirs theirs(options);
  const auto expected = theirs->named_parameters();
  ASSERT_EQ(ours->named_parameters().size(), expected.size());
  for (const auto& item : ours->named_parameters())
    EXPECT_TRUE(at::equal(item.value(), expected[item.key()])) << item.key();
  torch::manual_seed(4);
  const at::Tensor y = ours->forward(input);
  torch::manual_seed(4);
  EXPECT_TRUE(at::equal(y, theirs->forward(input)));
}

TEST(WholeLayers, HaveTheWeightsAndResultsOfLibTorchs) {
  const at::Tensor x = numbers({2, 3, 8}, 1).to(at::kFloat);
  expect_same_layer<Linear, torch::nn::Linear>(torch::nn::LinearOptions(8, 5).bias(false), x);
  expect_same_layer<Embedding, torch::nn::Embedding>(
      torch::nn::EmbeddingOptions(7, 5).padding_idx(2), longs({0, 2, 6, 1}).view({2, 2}));
  expect_same_layer<LayerNorm, torch::nn::LayerNorm>(torch::nn::LayerNormOptions({8}), x);
  expect_same_layer<Dropout, torch::nn::Dropout>(torch::nn::DropoutOptions(0.3), x);
}

TEST(WholeLayers, ReportWhatCannotBeCut) {
  const Linear linear(10, 9);
  EXPECT_EQ(linear->mismatch(ColwiseParallel(), 2),
            "out_features 9 cannot be cut evenly over 2 ranks: 8 or 10 can");
  EXPECT_EQ(linear->mismatch(ColwiseParallel({.segments = 3}), 2),
            "out_features 9 in 3 segments cannot be cut evenly over 2 ranks: 6 or 12 can");
  EXPECT_EQ(linear->mismatch(ColwiseParallel({.uneven = true}), 2), "");
  EXPECT_EQ(linear->mismatch(RowwiseParallel(), 3),
            "in_features 10 cannot be cut evenly over 3 ranks: 9 or 12 can");
  const Linear heads(8, 36);
  EXPECT_EQ(heads->mismatch(ColwiseParallel({.segments = 3, .heads = 6}), 3), "");
  EXPECT_EQ(heads->mismatch(ColwiseParallel({.segments = 3, .heads = 3}), 2),
            "heads 3 cannot be cut evenly over 2 ranks: 2 or 4 can");
  EXPECT_EQ(heads->mismatch(ColwiseParallel({.heads = 7}), 7),
            "out_features 36 are not those of 1 times 7 heads");
  EXPECT_NE(Embedding(5, 6)->mismatch(ColwiseParallel({.heads = 2}), 2), "");
  EXPECT_EQ(Redistribute()->mismatch(Redistribution{}, 2), "");
  EXPECT_EQ(Redistribute()->mismatch(ColwiseParallel(), 2),
            "ColwiseParallel cannot cut a Redistribute");
  EXPECT_EQ(linear->mismatch(Redistribution{}, 2), "Redistribution cannot cut a Linear");
  EXPECT_EQ(linear->mismatch(SequenceParallel(), 2), "SequenceParallel cannot cut a Linear");
  EXPECT_NE(linear->mismatch(ColwiseParallel({.segments = 3, .output = replicated}), 3), "");
  EXPECT_EQ(Embedding(5, 5)->mismatch(RowwiseParallel(), 4), "");
  EXPECT_NE(
      Embedding(torch::nn::EmbeddingOptions(5, 5).sparse(true))->mismatch(RowwiseParallel(), 4),
      "");
  EXPECT_EQ(LayerNorm(torch::nn::LayerNormOptions({4}))->mismatch(RowwiseParallel(), 2),
            "RowwiseParallel cannot cut a LayerNorm");
}

TEST(CutLayers, ReportThatTheirInputIsAPartialOutput) {
  run_in_process(2, [](ProcessGroup& group) {
    Linear qkv(32, 96), projection(32, 32);
    qkv->parallelize({ColwiseParallel({.segments = 3}), group, "b0.qkv"});
    projection->place("b0.proj", qkv->partial_output());
    const auto message_for = [&](std::int64_t width) {
      std::string text;
      EXPECT_EQ(fault_of(
                    [&] {
                      projection->forward(at::zeros({4, width}));
                    },
                    &text),
                Fault::misuse);
      return text;
    };
    const std::string of_a_part = message_for(16);  // Attention reduces three segments to one.
    EXPECT_NE(of_a_part.find("b0.proj: an input of shape [4, 16], and it takes 32 features. It is "
                             "a part, as is the output of b0.qkv: cut b0.proj with "
                             "RowwiseParallel"),
              of_a_part.npos)
        << of_a_part;
    const std::string of_another_width = message_for(15);
    EXPECT_EQ(of_another_width.find("b0.qkv"), of_another_width.npos) << of_another_width;
  });
}

TEST(CutLayers, NameThemselvesInLibTorchsErrors) {
  run_in_process(2, [](ProcessGroup& group) {
    const auto expect_named = [](auto layer) {
      layer->place("block.layer", {});
      try {
        layer->forward(at::zeros({2, 8}, at::kDouble));
        ADD_FAILURE() << "weights of another type";
      } catch (const c10::Error& error) {
        const std::string text = error.what_without_backtrace();
        EXPECT_NE(text.find("(in block.layer)"), text.npos) << text;
      }
    };
    Linear cut(8, 8);
    cut->parallelize({RowwiseParallel({.input = replicated}), group, "block.layer"});
    expect_named(cut);
    expect_named(Linear(8, 8));
    expect_named(LayerNorm(torch::nn::LayerNormOptions({8})));
  });
}

// --- Dropout: ranks are processes, as each has a default generator -------------------------------

const test::Ranks drop("layers: dropout", [](const test::Rank& /*rank*/) {
  auto world = init_process_group();
  const auto whole = at::ones({4, 30});
  const at::Tensor mine = part(whole, 1, world);
  const auto masks = [&](Dropout& dropout, const at::Tensor& x) {
    torch::manual_seed(11);
    const at::Tensor mask = dropout(x);
    const at::Tensor next = at::randn({1});  // The default generators stay in step.
    const auto all = all_gather(next, world);
    EXPECT_TRUE(at::equal(all, all[0].expand_as(all)));
    return mask;
  };
  Dropout plain(0.5);
  const at::Tensor expected = masks(plain, whole);
  Tensors all = all_gather_uneven(expected.flatten(), world);
  EXPECT_TRUE(at::equal(all[0], all[1])) << "whole activations have one mask";

  Dropout cut(0.5);
  cut->parallelize({SequenceParallel({.dim = 1}), world, "drop"});
  const at::Tensor own = masks(cut, mine);
  all = all_gather_uneven(own.flatten(), world);
  EXPECT_FALSE(at::equal(all[0], all[1])) << "parts have different masks";
  EXPECT_TRUE(at::equal(own, masks(cut, mine))) << "the same seed gives the same mask";
  EXPECT_EQ(own.max().item<float>(), 2);

  cut->exact = true;
  EXPECT_TRUE(at::equal(masks(cut, mine), part(expected, 1, world))) << "as in one process";
  EXPECT_TRUE(
      at::equal(masks(cut, mine.clone().set_requires_grad(true)), part(expected, 1, world)));
  destroy_process_group(world);
});

TEST(Dropout, DrawsOneMaskOfAWholeAndSeveralOfParts) { EXPECT_TRUE(all_succeeded(drop.run(3))); }

TEST(Dropout, RefusesWhatIsNoProbability) {
  EXPECT_EQ(fault_of([] { Dropout(1.5); }), Fault::misuse);
}

}  // namespace
}  // namespace lockstep::nn::layers_test

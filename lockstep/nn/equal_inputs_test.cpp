// Tests that ranks with different inputs of a cut layer get an Error.

// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>
#include <torch/types.h>

#include <cmath>
#include <string>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/comm/in_process.h"
#include "lockstep/nn/cross_entropy.h"
#include "lockstep/nn/layers.h"
#include "lockstep/tensor/activation_checkpoint.h"
#include "tests/fault_of.h"

namespace lockstep::nn::equal_inputs_test {
namespace {

using test::fault_of;

template <class Call>
void expect_mismatch(const Call& call, const std::vector<int>& ranks,
                     const std::vector<std::string>& parts) {
  try {
    call();
    ADD_FAILURE() << "no Error";
  } catch (const Error& error) {
    EXPECT_EQ(error.fault(), Fault::mismatch) << error.what();
    EXPECT_EQ(error.ranks(), ranks) << error.what();
    for (const std::string& part : parts)
      EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << error.what();
  }
}

template <class Layer>
Layer cut(Layer layer, const ParallelStyle& style, const ProcessGroup& group,
          const std::string& name) {
  layer->parallelize({style, group, name});
  return layer;
}

TEST(EqualInputs, OtherTokensAreAnErrorThatNamesTheRank) {
  for (const ParallelStyle& style :
       {ParallelStyle(RowwiseParallel()), ParallelStyle(ColwiseParallel())})
    run_in_process(3, [&](ProcessGroup& group) {
      auto embedding = cut(Embedding(9, 6), style, group, "wte");
      at::Tensor tokens = at::arange(8).view({2, 4});
      if (group.rank() == 2) tokens[1][3] = 5;
      expect_mismatch([&] { embedding->forward(tokens); }, {2},
                      {"wte: in call 1, whole inputs", "those of rank 2 from those of the other"});
      embedding->forward(at::arange(8));  // The group can still be used.
    });
}

TEST(EqualInputs, OtherActivationsAreAnErrorAndRoundingIsNone) {
  for (const ParallelStyle& style :
       {ParallelStyle(ColwiseParallel()), ParallelStyle(RowwiseParallel({.input = replicated}))})
    run_in_process(2, [&](ProcessGroup& group) {
      auto linear = cut(Linear(6, 4), style, group, "in");
      at::Tensor x = at::arange(64 * 30 * 6, at::kFloat).sin().view({64, 30, 6});
      x[0][0][0] = NAN;
      if (group.rank() == 1) x = x * (1 + 1e-3);
      linear->forward(x);
      linear->forward(x.to(at::kBFloat16).to(at::kFloat).transpose(0, 1));
      linear->forward(x);
      if (group.rank() == 1) x[63] = -x[63];  // Changes one sequence of 64.
      expect_mismatch([&] { linear->forward(x); }, {0, 1}, {"in: in call 4, whole inputs"});
      const at::Tensor infinite = at::full({8, 6}, group.rank() == 0 ? INFINITY : 3.0F);
      auto other = cut(Linear(6, 4), style, group, "other");
      expect_mismatch([&] { other->forward(infinite); }, {0, 1}, {"other: in call 1"});
    });
}

TEST(EqualInputs, AreLookedForAtCallsOneTwoFourAndSoOn) {
  run_in_process(2, [](ProcessGroup& group) {
    auto linear = cut(Linear(6, 4), ColwiseParallel(), group, "in");
    const at::Tensor x = at::full({2, 6}, group.rank(), at::kFloat);
    for (int call = 1; call <= 64; ++call) {
      const bool is_power = (call & (call - 1)) == 0;
      if (is_power)
        expect_mismatch([&] { linear->forward(x); }, {0, 1}, {"in call " + std::to_string(call)});
      else
        linear->forward(x);
    }
  });
}

TEST(EqualInputs, AreNotLookedForInAGroupOfOneAndIfSwitchedOff) {
  run_in_process(1, [](ProcessGroup& group) {
    cut(Linear(6, 4), ColwiseParallel(), group, "in")->forward(at::ones({2, 6}));
  });
  run_in_process(2, [](ProcessGroup& group) {
    Linear linear(6, 4);
    linear->parallelize({ColwiseParallel(), group, "in", /*checks_inputs=*/false});
    linear->forward(at::full({2, 6}, group.rank(), at::kFloat));
  });
}

TEST(EqualInputs, OtherShapesAndTargetsAreAMismatchThatShowsBoth) {
  EXPECT_THROW(
      run_in_process(
          2,
          [](ProcessGroup& group) {
            auto linear = cut(Linear(6, 4), ColwiseParallel(), group, "in");
            const auto call = [&] { linear->forward(at::ones({2 + group.rank(), 6})); };
            expect_mismatch(call, {0, 1}, {"in (input) Float 2 6", "in (input) Float 3 6"});
            call();
          }),
      Error);
  EXPECT_THROW(run_in_process(
                   3,
                   [](ProcessGroup& group) {
                     const auto call = [&] {
                       const std::int64_t last = group.rank() == 1 ? 5 : 4;
                       cross_entropy(at::zeros({2, 3}), at::tensor({std::int64_t{1}, last}), group);
                     };
                     expect_mismatch(call, {1}, {"cross_entropy of 2 targets"});
                     call();
                   }),
               Error);
}

// The second run of a block calls its layers again, with other checks.
TEST(EqualInputs, AcceptARecomputedBlock) {
  run_in_process(2, [](ProcessGroup& group) {
    auto linear = cut(Linear(6, 4), ColwiseParallel(), group, "in");
    const auto all = [](std::string_view) { return true; };
    for (int step = 0; step < 4; ++step)
      activation_checkpoint({.keep = all}, *linear, at::ones({2, 6}).set_requires_grad(true))
          .sum()
          .backward();
  });
}

}  // namespace
}  // namespace lockstep::nn::equal_inputs_test

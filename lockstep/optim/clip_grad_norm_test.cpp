// SPDX-License-Identifier: Apache-2.0
#include "lockstep/optim/clip_grad_norm.h"

#include <gtest/gtest.h>
#include <torch/nn/utils/clip_grad.h>
#include <torch/types.h>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "tests/fault_of.h"

namespace lockstep::optim::clip_grad_norm_test {
namespace {

constexpr double infinity = std::numeric_limits<double>::infinity();

at::Tensor with_gradient(const at::Tensor& gradient) {
  const at::Tensor parameter = torch::zeros_like(gradient, at::MemoryFormat::Contiguous);
  parameter.mutable_grad() = gradient.clone();
  return parameter;
}

std::vector<at::Tensor> parameters() {
  torch::manual_seed(7);
  return {with_gradient(torch::randn({7, 5})), torch::zeros({4}),
          with_gradient(torch::randn({33}, at::kDouble)), with_gradient(torch::randn({2, 3, 4}))};
}

TEST(ClipGradNorm, ClipsAsLibTorchsOwnDoes) {
  for (const double norm_type : {1.0, 2.0, 3.0, infinity})
    for (const double max_norm : {0.5, 1e6}) {
      const auto ours = parameters();
      const auto theirs = parameters();
      const double total = clip_grad_norm_(ours, max_norm, norm_type).item<double>();
      EXPECT_NEAR(total, torch::nn::utils::clip_grad_norm_(theirs, max_norm, norm_type), 1e-4);
      for (const std::size_t i : {std::size_t{0}, std::size_t{2}, std::size_t{3}})
        EXPECT_TRUE(torch::allclose(ours[i].grad(), theirs[i].grad(), 1e-6, 1e-7)) << i;
      EXPECT_FALSE(ours[1].grad().defined());
    }
}

TEST(ClipGradNorm, GradientsWithinTheNormAreLeftAsTheyAre) {
  const auto clipped = parameters();
  clip_grad_norm_(clipped, 1e6);
  EXPECT_TRUE(torch::equal(clipped[0].grad(), parameters()[0].grad()));
}

TEST(ClipGradNorm, TakesOneTensorAndGradientsOfAnyLayout) {
  const at::Tensor parameter = with_gradient(torch::tensor({{3.0F, 0.0F}, {4.0F, 0.0F}}).t());
  EXPECT_EQ(clip_grad_norm_(parameter, 1.0).item<float>(), 5.0F);
  EXPECT_TRUE(torch::allclose(parameter.grad(), torch::tensor({{0.6F, 0.8F}, {0.0F, 0.0F}})));
}

TEST(ClipGradNorm, ATensorThatComesTwiceCountsOnce) {
  const at::Tensor weight = with_gradient(torch::tensor({3.0F, 4.0F}));
  EXPECT_EQ(clip_grad_norm_({weight, weight}, 1.0).item<float>(), 5.0F);
  EXPECT_TRUE(torch::allclose(weight.grad(), torch::tensor({0.6F, 0.8F})));
}

TEST(ClipGradNorm, IsZeroWithoutGradients) {
  EXPECT_TRUE(torch::equal(clip_grad_norm_({}, 1.0), torch::tensor(0.0F)));
  EXPECT_TRUE(torch::equal(clip_grad_norm_(torch::ones({3}), 1.0), torch::tensor(0.0F)));
}

TEST(ClipGradNorm, RefusesANonfiniteTotalWhenAskedToAndLeavesTheGradients) {
  const auto bad = parameters();
  for (const std::size_t i : {std::size_t{2}, std::size_t{3}})
    bad[i].mutable_grad().view(-1)[5] = i == 2 ? infinity : std::nan("");
  std::string text;
  EXPECT_EQ(test::fault_of([&] { clip_grad_norm_(bad, 1.0, 2.0, true); }, &text), Fault::corrupt);
  EXPECT_NE(text.find("2 of 3 gradients"), std::string::npos) << text;
  EXPECT_NE(text.find("parameter 2"), std::string::npos) << text;
  EXPECT_TRUE(torch::equal(bad[0].grad(), parameters()[0].grad()));
}

TEST(ClipGradNorm, AnOverflowOfTheNormAloneIsNonfiniteToo) {
  const at::Tensor parameter = with_gradient(torch::full({64}, 3e38));
  std::string text;
  EXPECT_EQ(test::fault_of([&] { clip_grad_norm_(parameter, 1.0, 2.0, true); }, &text),
            Fault::corrupt);
  EXPECT_NE(text.find("0 of 1 gradients"), std::string::npos) << text;
}

TEST(ClipGradNorm, ANonfiniteTotalMakesGradientsNonfiniteByDefault) {
  const at::Tensor parameter = with_gradient(torch::tensor({1.0F, std::nanf("")}));
  EXPECT_TRUE(std::isnan(clip_grad_norm_(parameter, 1.0).item<float>()));
  EXPECT_TRUE(parameter.grad().isnan().all().item<bool>());
}

TEST(ClipGradNorm, SparseGradientsCountAsTheDenseOnes) {
  const at::Tensor sparse = torch::zeros({4, 2});
  sparse.mutable_grad() =
      torch::sparse_coo_tensor(torch::tensor({{1, 3, 1}}), torch::full({3, 2}, 2.0F), {4, 2});
  const at::Tensor empty = torch::zeros({4, 2});
  empty.mutable_grad() =
      torch::sparse_coo_tensor(torch::empty({1, 0}, torch::kLong), torch::empty({0, 2}), {4, 2});
  const at::Tensor dense = with_gradient(torch::full({2}, 3.0F));
  for (const double norm_type : {2.0, infinity}) {
    const at::Tensor twin = with_gradient(sparse.grad().to_dense());
    const at::Tensor other = with_gradient(dense.grad().clone());
    const at::Tensor total = clip_grad_norm_({sparse, empty, dense}, 1.0, norm_type);
    EXPECT_FLOAT_EQ(total.item<float>(),
                    clip_grad_norm_({twin, other}, 1.0, norm_type).item<float>());
    EXPECT_TRUE(torch::allclose(sparse.grad().to_dense(), twin.grad()));
    EXPECT_TRUE(torch::equal(dense.grad(), other.grad()));
    EXPECT_EQ(empty.grad()._nnz(), 0);
  }
  sparse.mutable_grad()._values()[1][1] = infinity;
  std::string text;
  EXPECT_EQ(test::fault_of(
                [&] {
                  clip_grad_norm_({dense, sparse}, 1.0, 2.0, true);
                },
                &text),
            Fault::corrupt);
  EXPECT_NE(text.find("1 of 2 gradients are not, first that of parameter 1"), text.npos) << text;
}

TEST(ClipGradNorm, RefusesOtherLayouts) {
  const at::Tensor parameter = torch::zeros({3, 3});
  parameter.mutable_grad() = torch::ones({3, 3}).to_sparse_csr();
  EXPECT_EQ(test::fault_of([&] { clip_grad_norm_(parameter, 1.0); }), Fault::unsupported);
}

}  // namespace
}  // namespace lockstep::optim::clip_grad_norm_test

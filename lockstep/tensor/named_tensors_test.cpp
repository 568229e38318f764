// SPDX-License-Identifier: Apache-2.0
#include "lockstep/tensor/named_tensors.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>

#include "lockstep/base/error.h"
#include "lockstep/tensor/distinct_tensors.h"

namespace lockstep::tensor::named_tensors_test {
namespace {

TEST(Digest, EqualsTheOneThatPythonComputes) {
  // h = hashlib.sha256()
  // for t in [torch.arange(6.).view(2, 3), torch.tensor(7), torch.empty(0, dtype=torch.bool)]:
  //   h.update(f"{str(t.dtype)[6:]} {list(t.shape)}\n".encode() + t.numpy().tobytes())
  EXPECT_EQ(sha256({at::arange(6, at::kFloat).view({2, 3}), at::arange(7, 8, at::kLong)[0],
                    at::empty({0}, at::kBool)}),
            "287d3145ee98f23d9a0279f3daddb38d7a762c28ff34f00a476bf954f347d644");
  EXPECT_EQ(sha256(at::TensorList()),
            "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
}

TEST(Digest, IsOfTheElementsNotOfHowTheyLie) {
  const at::Tensor matrix = at::arange(6, at::kFloat).view({2, 3});
  const at::Tensor transposed = matrix.t();
  EXPECT_EQ(sha256({transposed}), sha256({transposed.contiguous()}));
  EXPECT_NE(sha256({transposed}), sha256({matrix}));
}

TEST(Digest, DistinguishesTypesShapesOrderAndSingleBits) {
  const at::Tensor a = at::arange(4, at::kFloat);
  const at::Tensor b = a.clone();
  b[2] = std::nextafter(2.0F, 3.0F);
  EXPECT_NE(sha256({a}), sha256({b}));
  EXPECT_NE(sha256({a, b}), sha256({b, a}));
  EXPECT_NE(sha256({a}), sha256({a.view({2, 2})}));
  EXPECT_NE(sha256({a}), sha256({a.view(at::kInt)}));
}

TEST(Digest, CoversParametersAndBuffersOfAModule) {
  torch::nn::Sequential net(torch::nn::Linear(torch::nn::LinearOptions(3, 4).bias(false)),
                            torch::nn::BatchNorm1d(4));
  std::vector<std::string> names;
  for (const auto& [name, tensor] : named_tensors(*net)) names.push_back(name);
  EXPECT_EQ(names, (std::vector<std::string>{"0.weight", "1.weight", "1.bias", "1.running_mean",
                                             "1.running_var", "1.num_batches_tracked"}));
  const std::string before = sha256(*net);
  net->named_buffers()["1.num_batches_tracked"].add_(1);
  EXPECT_NE(sha256(*net), before);
}

TEST(Digest, RefusesATensorWithoutValues) { EXPECT_THROW(sha256({at::Tensor()}), Error); }

TEST(DistinctTensors, AreEachWhereItWasFirst) {
  const at::Tensor a = at::arange(3), b = at::arange(3), view = a.view({3});
  const std::vector<at::Tensor> each = distinct({a, b, a, view, b});
  ASSERT_EQ(each.size(), 3U);
  EXPECT_TRUE(each[0].is_same(a) && each[1].is_same(b) && each[2].is_same(view));
  const NamedTensors named = distinct(NamedTensors{{"head", b}, {"embedding", b}, {"bias", a}});
  ASSERT_EQ(named.size(), 2U);
  EXPECT_EQ(named[0].first, "head");
  EXPECT_EQ(named[1].first, "bias");
}

}  // namespace
}  // namespace lockstep::tensor::named_tensors_test

// SPDX-License-Identifier: Apache-2.0
#include "lockstep/data/tensor_dataset.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/tensor.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "lockstep/base/error.h"
#include "tests/fault_of.h"

namespace lockstep::data::tensor_dataset_test {
namespace {

using Indices = std::vector<std::size_t>;

struct Rows {
  at::Tensor data;
  at::Tensor target;
};

Rows fill(const TensorDataset& dataset, const Indices& indices,
          at::MemoryFormat format = at::MemoryFormat::Contiguous) {
  const auto sizes = [&](const SampleSpec& spec) {
    std::vector<std::int64_t> all{static_cast<std::int64_t>(indices.size())};
    all.insert(all.end(), spec.sizes.begin(), spec.sizes.end());
    return all;
  };
  const SampleSpec data = dataset.data_spec();
  const SampleSpec target = dataset.target_spec();
  Rows rows{at::empty(sizes(data), data.type, format), at::empty(sizes(target), target.type)};
  dataset.fill({.indices = indices, .data = rows.data, .target = rows.target});
  return rows;
}

at::Tensor selected(const at::Tensor& tensor, const Indices& indices) {
  const std::vector<std::int64_t> signed_indices(indices.begin(), indices.end());
  return tensor.index_select(0, at::tensor(signed_indices));
}

const Indices some{5, 0, 255, 5, 17};

TEST(TensorDataset, GivesBytesAsFloatsFromZeroToOne) {
  const at::Tensor bytes = at::arange(256 * 3, at::kLong).remainder(256).to(at::kByte);
  const TensorDataset dataset(bytes.view({256, 3}), at::arange(256));
  EXPECT_EQ(dataset.size(), 256U);
  const Rows rows = fill(dataset, some);
  EXPECT_TRUE(at::equal(rows.data, selected(bytes.view({256, 3}), some).to(at::kFloat).div(255)));
  EXPECT_TRUE(at::equal(rows.target, selected(at::arange(256), some)));
}

TEST(TensorDataset, NormalisesAsTorchDoesBitForBit) {
  const at::Tensor mean = at::tensor({0.485F, 0.456F, 0.406F}).view({3, 1, 1});
  const at::Tensor std = at::tensor({0.229F, 0.224F, 0.225F}).view({3, 1, 1});
  const TensorDatasetOptions options{.mean = {0.485, 0.456, 0.406}, .std = {0.229, 0.224, 0.225}};
  const at::Tensor bytes = at::randint(256, {256, 3, 7, 5}, at::kByte);
  const at::Tensor floats = at::rand({256, 3, 7, 5});
  for (const auto format : {at::MemoryFormat::Contiguous, at::MemoryFormat::ChannelsLast}) {
    const Rows from_bytes = fill(TensorDataset(bytes, at::arange(256), options), some, format);
    EXPECT_TRUE(from_bytes.data.is_contiguous(format));
    EXPECT_TRUE(at::equal(from_bytes.data,
                          selected(bytes, some).to(at::kFloat).div(255).sub(mean).div(std)));
    const Rows from_floats = fill(TensorDataset(floats, at::arange(256), options), some, format);
    EXPECT_TRUE(at::equal(from_floats.data, selected(floats, some).sub(mean).div(std)));
  }
}

TEST(TensorDataset, LeavesOtherTypesAsTheyAreInAnyLayout) {
  for (const auto type :
       {at::kBool, at::kHalf, at::kFloat, at::kDouble, at::kLong, at::kComplexDouble}) {
    const at::Tensor data = at::randint(2, {256, 2, 3, 4}, at::kLong).to(type);
    const at::Tensor target = at::rand({256, 6}).to(type);
    const TensorDataset dataset(data, target);
    for (const auto format : {at::MemoryFormat::Contiguous, at::MemoryFormat::ChannelsLast}) {
      const Rows rows = fill(dataset, some, format);
      EXPECT_EQ(rows.data.scalar_type(), type);
      EXPECT_TRUE(at::equal(rows.data, selected(data, some))) << type;
      EXPECT_TRUE(at::equal(rows.target, selected(target, some))) << type;
    }
  }
}

TEST(TensorDataset, HoldsVolumesAndSingleValues) {
  const at::Tensor volumes = at::rand({256, 2, 3, 4, 5});
  const Rows rows =
      fill(TensorDataset(volumes, at::arange(256)), some, at::MemoryFormat::ChannelsLast3d);
  EXPECT_TRUE(at::equal(rows.data, selected(volumes, some)));
  const at::Tensor values = at::randint(256, {256}, at::kByte);
  EXPECT_TRUE(at::equal(fill(TensorDataset(values, values), some).data,
                        selected(values, some).to(at::kFloat).div(255)));
}

TEST(TensorDataset, SharesContiguousTensorsAndCopiesOthers) {
  const at::Tensor data = at::rand({4, 6});
  EXPECT_TRUE(TensorDataset(data, data).data().is_same(data) ||
              TensorDataset(data, data).data().const_data_ptr() == data.const_data_ptr());
  const TensorDataset transposed(data.t(), at::arange(6));
  EXPECT_TRUE(at::equal(fill(transposed, {1, 3}).data, selected(data.t(), {1, 3})));
}

std::string refusal(const at::Tensor& data, const at::Tensor& target,
                    const TensorDatasetOptions& options = {}) {
  std::string text;
  EXPECT_EQ(test::fault_of([&] { TensorDataset(data, target, options); }, &text), Fault::misuse);
  return text;
}

TEST(TensorDataset, RefusesTensorsThatDoNotFitTogether) {
  EXPECT_NE(refusal(at::rand({4, 3}), at::arange(5)).find("[4, 3] and [5]"), std::string::npos);
  EXPECT_NE(refusal(at::rand({4, 3}), {}).find("on the CPU"), std::string::npos);
  EXPECT_NE(refusal(at::rand({4, 3}), at::arange(4), {.mean = {1, 2}, .std = {1, 2}})
                .find("3 channels, but mean has 2 entries"),
            std::string::npos);
  EXPECT_NE(refusal(at::rand({4, 1}), at::arange(4), {.mean = {0}, .std = {0}}).find("std is 0"),
            std::string::npos);
  EXPECT_NE(refusal(at::arange(4).view({4, 1}), at::arange(4), {.mean = {0}, .std = {1}})
                .find("only uint8 and float"),
            std::string::npos);
}

TEST(TensorDataset, RefusesARowThatItDoesNotHave) {
  const TensorDataset dataset(at::rand({4, 3}), at::arange(4));
  std::string text;
  EXPECT_EQ(test::fault_of([&] { fill(dataset, {0, 4}); }, &text), Fault::misuse);
  EXPECT_NE(text.find("there is no row 4"), std::string::npos) << text;
}

}  // namespace
}  // namespace lockstep::data::tensor_dataset_test

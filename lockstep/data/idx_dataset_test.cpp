// SPDX-License-Identifier: Apache-2.0
#include "lockstep/data/idx_dataset.h"

#include <ATen/ops/arange.h>
#include <gtest/gtest.h>
#include <torch/data/dataloader.h>
#include <torch/data/datasets/map.h>
#include <torch/data/transforms/stack.h>

#include <cstdlib>
#include <fstream>
#include <set>
#include <string>

#include "lockstep/base/error.h"
#include "lockstep/data/distributed_sampler.h"
#include "tests/ranks.h"

namespace lockstep::idx_dataset_test {
namespace {

using Stack = torch::data::transforms::Stack<>;

std::string big_endian(std::uint32_t value) {
  std::string bytes;
  for (int shift = 24; shift >= 0; shift -= 8) bytes += static_cast<char>(value >> shift);
  return bytes;
}

// Writes `count` images of 2 x 2 pixels; image i has the label i % 10 and all pixels equal to i.
void write_dataset(const std::filesystem::path& directory, std::uint32_t count,
                   std::uint32_t labels) {
  std::filesystem::create_directories(directory);
  std::ofstream images(directory / "t10k-images-idx3-ubyte", std::ios::binary);
  images << std::string{0, 0, 8, 3} << big_endian(count) << big_endian(2) << big_endian(2);
  for (std::uint32_t i = 0; i < count; ++i) images << std::string(4, static_cast<char>(i));
  std::ofstream targets(directory / "t10k-labels-idx1-ubyte", std::ios::binary);
  targets << std::string{0, 0, 8, 1} << big_endian(labels);
  for (std::uint32_t i = 0; i < labels; ++i) targets << static_cast<char>(i % 10);
}

std::string error_of(const std::filesystem::path& directory, Fault fault) {
  try {
    const IdxDataset dataset(directory, /*train=*/false);
  } catch (const Error& error) {
    EXPECT_EQ(error.fault(), fault);
    return error.what();
  }
  ADD_FAILURE() << "nothing was thrown";
  return "";
}

TEST(IdxDataset, RefusesALabelBeyondTheClassesOfTheProgramAndNamesIt) {
  const test::ScratchDirectory scratch;
  write_dataset(scratch.path(), 20, 20);
  EXPECT_NO_THROW(IdxDataset(scratch.path(), /*train=*/false));
  EXPECT_NO_THROW(IdxDataset(scratch.path(), /*train=*/false, /*classes=*/10));
  try {
    IdxDataset(scratch.path(), /*train=*/false, /*classes=*/9);
    ADD_FAILURE() << "nothing was thrown";
  } catch (const Error& error) {
    EXPECT_EQ(error.fault(), Fault::corrupt);
    const std::string message = error.what();
    EXPECT_NE(message.find((scratch.path() / "t10k-labels-idx1-ubyte").string() +
                           ": the label of sample 9 is 9, and the program has 9 classes"),
              message.npos)
        << message;
  }
}

TEST(IdxDataset, GivesFloatsFromZeroToOneAndLabels) {
  const test::ScratchDirectory scratch;
  write_dataset(scratch.path(), 256, 256);
  IdxDataset dataset(scratch.path(), /*train=*/false);
  ASSERT_EQ(dataset.size(), 256U);
  EXPECT_EQ(dataset.images().sizes(), (std::vector<std::int64_t>{256, 1, 2, 2}));

  const at::Tensor expected = at::arange(256, at::kByte).to(at::kFloat).div(255);
  for (std::size_t i = 0; i < 256; ++i) {
    const auto sample = dataset.get(i);
    EXPECT_EQ(sample.data.sizes(), (std::vector<std::int64_t>{1, 2, 2}));
    EXPECT_TRUE(sample.data.eq(expected[static_cast<std::int64_t>(i)]).all().item<bool>());
    EXPECT_EQ(sample.target.item<std::int64_t>(), static_cast<std::int64_t>(i % 10));
  }
  EXPECT_THROW(dataset.get(256), Error);
}

TEST(IdxDataset, IsLoadedByRanksThatShareItOut) {
  const test::ScratchDirectory scratch;
  write_dataset(scratch.path(), 50, 50);
  for (const std::size_t workers : {0, 2}) {
    std::multiset<long> seen;
    for (int rank = 0; rank < 2; ++rank) {
      auto dataset = IdxDataset(scratch.path(), /*train=*/false).map(Stack());
      DistributedSampler sampler(*dataset.size(), 2, rank);
      auto loader = torch::data::make_data_loader(
          dataset, sampler, torch::data::DataLoaderOptions(8).workers(workers));
      sampler.set_epoch(1);
      for (const auto& batch : *loader) {
        for (std::int64_t i = 0; i < batch.data.size(0); ++i)
          seen.insert(std::lround(batch.data[i][0][0][0].item<float>() * 255));
        sampler.consume(static_cast<std::size_t>(batch.data.size(0)));
      }
      EXPECT_EQ(sampler.offset(), 50U);
    }
    EXPECT_EQ(seen.size(), 50U);
    EXPECT_EQ(std::set<long>(seen.begin(), seen.end()).size(), 50U);
  }
}

TEST(IdxDataset, IsFoundByItsName) {
  const test::ScratchDirectory scratch;
  write_dataset(scratch.path() / "tiny-mnist", 3, 3);
  ::setenv("LOCKSTEP_DATA", scratch.path().c_str(), 1);
  EXPECT_EQ(IdxDataset("tiny-mnist", /*train=*/false).size(), 3U);
  ::unsetenv("LOCKSTEP_DATA");
  const std::string message = error_of("tiny-mnist", Fault::system);
  EXPECT_NE(message.find("tiny-mnist/t10k-images-idx3-ubyte[.gz]\n"), std::string::npos) << message;
  EXPECT_NE(message.find("/usr/share/datasets/tiny-mnist/t10k"), std::string::npos) << message;
}

TEST(IdxDataset, NeedsAsManyLabelsAsImages) {
  const test::ScratchDirectory scratch;
  write_dataset(scratch.path(), 5, 4);
  const std::string message = error_of(scratch.path(), Fault::corrupt);
  EXPECT_NE(message.find("images-idx3-ubyte holds 5 images"), std::string::npos) << message;
  EXPECT_NE(message.find("labels-idx1-ubyte holds 4 labels"), std::string::npos) << message;
}

TEST(IdxDataset, NeedsImagesWhereImagesBelong) {
  const test::ScratchDirectory scratch;
  write_dataset(scratch.path(), 5, 5);
  std::filesystem::copy_file(scratch.path() / "t10k-labels-idx1-ubyte",
                             scratch.path() / "t10k-images-idx3-ubyte",
                             std::filesystem::copy_options::overwrite_existing);
  const std::string message = error_of(scratch.path(), Fault::corrupt);
  EXPECT_NE(message.find("expected 3 dimensions, found 1"), std::string::npos) << message;
}

TEST(IdxDataset, ReadsFashionMnistAsDebianPacksIt) {
  if (!std::filesystem::exists("/usr/share/datasets/fashion-mnist"))
    GTEST_SKIP() << "Debian's package dataset-fashion-mnist is not installed";
  const IdxDataset train("fashion-mnist", /*train=*/true);
  EXPECT_EQ(train.images().sizes(), (std::vector<std::int64_t>{60000, 1, 28, 28}));
  EXPECT_EQ(train.targets().bincount().min().item<std::int64_t>(), 6000);
  // The published mean of the dataset.
  EXPECT_NEAR(train.images().to(at::kFloat).mean().item<float>() / 255, 0.2860, 5e-5);
  EXPECT_EQ(IdxDataset("fashion-mnist", /*train=*/false).size(), 10000U);
}

TEST(ImageDataset, RefusesTensorsOfAnotherForm) {
  const at::Tensor images = at::arange(24, at::kByte).view({2, 3, 2, 2});
  const at::Tensor targets = at::arange(2, at::kLong);
  EXPECT_EQ(ImageDataset(images, targets).size(), 2U);
  EXPECT_THROW(ImageDataset(images.to(at::kFloat), targets), Error);
  EXPECT_THROW(ImageDataset(images.view({2, 12}), targets), Error);
  EXPECT_THROW(ImageDataset(images, targets.to(at::kInt)), Error);
  EXPECT_THROW(ImageDataset(images, at::arange(3, at::kLong)), Error);
  EXPECT_THROW(ImageDataset(std::vector<std::uint8_t>(11), 3, 2, 2, {0}), Error);
}

}  // namespace
}  // namespace lockstep::idx_dataset_test

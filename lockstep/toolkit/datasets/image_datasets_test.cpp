// SPDX-License-Identifier: Apache-2.0
#include "lockstep/toolkit/datasets/image_datasets.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <gtest/gtest.h>
#include <torch/data/dataloader.h>
#include <torch/data/datasets/map.h>
#include <torch/data/transforms/stack.h>

#include <cstdlib>
#include <fstream>
#include <set>
#include <string>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/base/message_parts.h"
#include "lockstep/data/data_loader.h"
#include "lockstep/data/distributed_sampler.h"
#include "lockstep/toolkit/datasets/image_files.h"
#include "tests/ranks.h"

namespace lockstep::datasets::image_datasets_test {
namespace {

using Stack = torch::data::transforms::Stack<>;

std::string big_endian(std::uint32_t value) {
  std::string bytes;
  for (int shift = 24; shift >= 0; shift -= 8) bytes += static_cast<char>(value >> shift);
  return bytes;
}

// Image i has 2 x 2 pixels of value i and the label i % 10.
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
                           ": the label of sample 9 is 9, but the program has only 9 classes"),
              message.npos)
        << message;
  }
}

TEST(IdxDataset, IsFoundByEmnistsNames) {
  const test::ScratchDirectory scratch;
  const auto rename = [&](const std::string& prefix) {
    for (const char* end : {"-images-idx3-ubyte", "-labels-idx1-ubyte"})
      std::filesystem::rename(scratch.path() / (std::string("t10k") + end),
                              scratch.path() / (prefix + end));
  };
  write_dataset(scratch.path(), 3, 3);
  rename("emnist-digits-test");
  EXPECT_EQ(IdxDataset(scratch.path() / "emnist-digits", /*train=*/false).size(), 3U);
  EXPECT_EQ(IdxDataset(scratch.path(), /*train=*/false).size(), 3U);
  write_dataset(scratch.path(), 5, 5);
  rename("emnist-letters-test");
  EXPECT_EQ(IdxDataset(scratch.path() / "emnist-letters", /*train=*/false).size(), 5U);
  const std::string text = error_of(scratch.path(), Fault::misuse);
  EXPECT_NE(text.find(scratch.path() / "emnist-digits\n"), text.npos) << text;
  const IdxFiles files{.images = scratch.path() / "emnist-letters-test-images-idx3-ubyte",
                       .labels = scratch.path() / "emnist-letters-test-labels-idx1-ubyte"};
  EXPECT_EQ(IdxDataset(files).size(), 5U);
  EXPECT_THROW(IdxDataset(files, /*classes=*/4), Error);
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

TEST(IdxDataset, GivesALoaderTheBatchesOfTorchDataBitForBit) {
  const test::ScratchDirectory scratch;
  write_dataset(scratch.path(), 50, 50);
  const IdxDataset dataset(scratch.path(), /*train=*/false);
  const DistributedSampler sampler(50, 2, 1);
  auto stacked = IdxDataset(dataset).map(Stack());
  auto peer = torch::data::make_data_loader(stacked, sampler, 8);
  std::vector<torch::data::Example<>> expected;
  for (const auto& batch : *peer) expected.push_back(batch);

  DataLoader loader(dataset, sampler, {.batch_size = 8});
  std::size_t batches = 0;
  for (const Batch& batch : loader) {
    ASSERT_LT(batches, expected.size());
    EXPECT_TRUE(at::equal(batch.data, expected[batches].data));
    EXPECT_TRUE(at::equal(batch.target, expected[batches++].target));
  }
  EXPECT_EQ(batches, expected.size());
}

TEST(IdxDataset, IsFoundByItsName) {
  const test::ScratchDirectory scratch;
  write_dataset(scratch.path() / "tiny-mnist", 3, 3);
  ::setenv("LOCKSTEP_DATA", scratch.path().c_str(), 1);
  EXPECT_EQ(IdxDataset("tiny-mnist", /*train=*/false).size(), 3U);
  const std::string other = error_of("other-mnist", Fault::system);
  EXPECT_NE(other.find(scratch.path() / "other-mnist/t10k"), std::string::npos) << other;
  EXPECT_TRUE(parts_of(other).to_do.ends_with(", or correct LOCKSTEP_DATA")) << other;
  ::unsetenv("LOCKSTEP_DATA");
  const std::string message = error_of("tiny-mnist", Fault::system);
  EXPECT_TRUE(parts_of(message).to_do.ends_with(
      ", or set LOCKSTEP_DATA to the folder that contains the folder tiny-mnist"))
      << message;
  EXPECT_EQ(error_of("./tiny-mnist", Fault::system).find("LOCKSTEP_DATA"), std::string::npos);
  EXPECT_NE(message.find("tiny-mnist/t10k-images-idx3-ubyte[.gz]\n"), std::string::npos) << message;
  EXPECT_NE(message.find("/usr/share/datasets/tiny-mnist/t10k"), std::string::npos) << message;
}

TEST(IdxDataset, NamesThePackageOfFashionMnist) {
  const test::ScratchDirectory scratch;
  if (std::filesystem::exists("/usr/share/datasets/fashion-mnist")) GTEST_SKIP() << "it is found";
  ::unsetenv("LOCKSTEP_DATA");
  const std::string message = error_of("fashion-mnist", Fault::system);
  EXPECT_TRUE(parts_of(message).to_do.starts_with("install Debian's or Ubuntu's package "))
      << message;
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

constexpr std::size_t plane = 32 * 32;

std::string record(const std::string& labels, char red) {
  return labels + std::string(plane, red) + std::string(plane, 2) + std::string(plane, 3);
}

class Cifar : public testing::Test {
 protected:
  std::filesystem::path write(const std::string& name, const std::string& bytes) {
    std::ofstream(scratch_.path() / name, std::ios::binary) << bytes;
    return scratch_.path() / name;
  }

  std::string error(const std::string& bytes, bool cifar100 = false) {
    const auto file = write("batch.bin", bytes);
    try {
      cifar100 ? read_cifar100({file}) : read_cifar10({file});
    } catch (const Error& error) {
      EXPECT_EQ(error.fault(), Fault::corrupt) << error.what();
      EXPECT_NE(std::string(error.what()).find(file.string()), std::string::npos) << error.what();
      return error.what();
    }
    ADD_FAILURE() << "nothing was thrown";
    return "";
  }

  const test::ScratchDirectory scratch_;
};

TEST_F(Cifar, TenIsReadFromFiveBatchesInOrder) {
  for (char batch = 1; batch <= 5; ++batch) {
    std::string bytes;
    for (int i = 0; i < 60; ++i) bytes += record({batch}, static_cast<char>(i));
    write("data_batch_" + std::to_string(batch) + ".bin", bytes);
  }
  write("test_batch.bin", record({9}, 51));

  Cifar10Dataset train(scratch_.path(), /*train=*/true);
  EXPECT_EQ(train.images().sizes(), (std::vector<std::int64_t>{300, 3, 32, 32}));
  const auto sample = train.get(2 * 60 + 51);
  EXPECT_EQ(sample.target.item<std::int64_t>(), 3);
  EXPECT_FLOAT_EQ(sample.data[0][31][31].item<float>(), 0.2F);
  EXPECT_FLOAT_EQ(sample.data[2][0][0].item<float>(), 3 / 255.0F);

  auto test =
      Cifar10Dataset(scratch_.path(), /*train=*/false).map(torch::data::transforms::Stack<>());
  EXPECT_EQ(test.get_batch({0}).target[0].item<std::int64_t>(), 9);
}

TEST_F(Cifar, HundredHasFineLabelsAsTargetsAndCoarseOnesBeside) {
  const auto file = write("train.bin", record({19, 99}, 1) + record({0, 7}, 1));
  EXPECT_EQ(Cifar100Dataset(scratch_.path(), /*train=*/true).targets()[0].item<std::int64_t>(), 99);
  const CifarImages images = read_cifar100({file});
  EXPECT_EQ(images.labels, (std::vector<std::uint8_t>{99, 7}));
  EXPECT_EQ(images.coarse_labels, (std::vector<std::uint8_t>{19, 0}));
}

TEST_F(Cifar, RefusesWhatIsNoWholeNumberOfRecords) {
  const std::string two = record({1}, 1) + record({2}, 1);
  for (const std::size_t length : {0, 1, 3072, 3074, 6145}) error(two.substr(0, length));
  EXPECT_NE(error(two + '\0').find("byte 6146: expected whole records of 3073 bytes, found 1"),
            std::string::npos);
  error(two, /*cifar100=*/true);
  EXPECT_NE(error("").find("found an empty file"), std::string::npos);
}

TEST_F(Cifar, NamesTheFormatOfAnotherFile) {
  EXPECT_NE(error(std::string("\x80\2}q\1.", 6)).find("found a pickle of Python"),
            std::string::npos);
}

TEST_F(Cifar, RefusesLabelsBeyondTheLast) {
  EXPECT_NE(error(record({1}, 1) + record({10}, 1)).find("byte 3073: expected a label of 0 to 9"),
            std::string::npos);
  EXPECT_NE(error(record({20, 99}, 1), true).find("byte 0: expected a label of 0 to 19, found 20"),
            std::string::npos);
  EXPECT_NE(error(record({19, 100}, 1), true).find("byte 1: expected a label of 0 to 99"),
            std::string::npos);
}

TEST_F(Cifar, RefusesAFileThatIsLargerThanAnyBeforeItTakesMemory) {
  const auto file = write("batch.bin", "");
  std::filesystem::resize_file(file, std::uintmax_t{3073} * 10'000'000);
  try {
    read_cifar10({file});
    ADD_FAILURE() << "nothing was thrown";
  } catch (const Error& error) {
    EXPECT_EQ(error.fault(), Fault::corrupt);
    const std::string message = error.what();
    EXPECT_NE(message.find(file.string()), message.npos) << message;
    EXPECT_NE(message.find("at most 1000000 records of 3073 bytes, found a file of 30730000000"),
              message.npos)
        << message;
  }
}

TEST_F(Cifar, NamesAMissingFileAndItsArchive) {
  write("data_batch_1.bin", record({1}, 1));
  try {
    Cifar10Dataset(scratch_.path(), /*train=*/true);
    ADD_FAILURE() << "nothing was thrown";
  } catch (const Error& error) {
    EXPECT_EQ(error.fault(), Fault::system);
    const std::string message = error.what();
    EXPECT_NE(message.find((scratch_.path() / "data_batch_2.bin").string()), message.npos);
    EXPECT_NE(parts_of(message).to_do.find("cifar-10-binary.tar.gz"), std::string::npos) << message;
  }
}

}  // namespace
}  // namespace lockstep::datasets::image_datasets_test

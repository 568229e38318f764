// SPDX-License-Identifier: Apache-2.0
#include "lockstep/data/cifar_dataset.h"

#include <gtest/gtest.h>
#include <torch/data/datasets/map.h>
#include <torch/data/transforms/stack.h>

#include <fstream>
#include <string>

#include "lockstep/base/error.h"
#include "lockstep/data/cifar.h"
#include "tests/ranks.h"

namespace lockstep::cifar_dataset_test {
namespace {

constexpr std::size_t plane = 32 * 32;

// A record whose three planes have the values `red`, 2 and 3.
std::string record(const std::string& labels, char red) {
  return labels + std::string(plane, red) + std::string(plane, 2) + std::string(plane, 3);
}

class Cifar : public testing::Test {
 protected:
  std::filesystem::path write(const std::string& name, const std::string& bytes) {
    std::ofstream(scratch_.path() / name, std::ios::binary) << bytes;
    return scratch_.path() / name;
  }

  // The message of the error from reading `bytes` as CIFAR-10 or CIFAR-100.
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

TEST_F(Cifar, TenIsReadFromFiveBatchesInTurn) {
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
}

TEST_F(Cifar, RefusesLabelsBeyondTheLast) {
  EXPECT_NE(error(record({1}, 1) + record({10}, 1)).find("byte 3073: expected a label of 0 to 9"),
            std::string::npos);
  EXPECT_NE(error(record({20, 99}, 1), true).find("byte 0: expected a label of 0 to 19, found 20"),
            std::string::npos);
  EXPECT_NE(error(record({19, 100}, 1), true).find("byte 1: expected a label of 0 to 99"),
            std::string::npos);
}

// Such a file is left by an interrupted download or by `truncate`.
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

TEST_F(Cifar, SaysWhatIsMissing) {
  write("data_batch_1.bin", record({1}, 1));
  try {
    Cifar10Dataset(scratch_.path(), /*train=*/true);
    ADD_FAILURE() << "nothing was thrown";
  } catch (const Error& error) {
    EXPECT_EQ(error.fault(), Fault::system);
    const std::string message = error.what();
    EXPECT_NE(message.find((scratch_.path() / "data_batch_2.bin").string()), message.npos);
    EXPECT_NE(message.find("cifar-10-binary.tar.gz"), message.npos) << message;
  }
}

}  // namespace
}  // namespace lockstep::cifar_dataset_test

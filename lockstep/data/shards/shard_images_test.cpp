// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <string>

#include "lockstep/base/error.h"
#include "lockstep/data/shards/shard_writer.h"
#include "lockstep/data/shards/tar_shards.h"
#include "tests/fault_of.h"
#include "tests/ranks.h"

namespace lockstep::data::shard_images_test {
namespace {

using test::fault_of;

class ShardImagesOfTars : public testing::Test {
 protected:
  std::string in_folder(const std::string& name) const { return folder_.path() / name; }

 private:
  const test::ScratchDirectory folder_;
};

TEST_F(ShardImagesOfTars, HaveTheBytesAndTheNumbersOfTheirSamples) {
  ShardWriter writer(in_folder("train"));
  writer.write("cat/1", {{"JPG", "bytes of a cat"}, {"cls", "7\n"}});
  writer.write("dog/1", {{"png", "a dog"}, {"cls", "dog"}});
  writer.write("cow/1", {{"txt", "a cow"}});
  writer.finish();
  const ShardImages images{TarShards({in_folder("train-000000.tar")})};
  EncodedBuffer buffer;
  const auto bytes = images.read(0, buffer);
  EXPECT_EQ(std::string(bytes.begin(), bytes.end()), "bytes of a cat");
  EXPECT_EQ(images.label(0), 7);
  std::string text;
  EXPECT_EQ(fault_of([&] { images.label(1); }, &text), Fault::corrupt);
  EXPECT_NE(text.find("train-000000.tar: dog/1: its part 'cls' is 'dog'"), text.npos) << text;
  EXPECT_EQ(fault_of([&] { images.read(2, buffer); }), Fault::corrupt);
  EXPECT_EQ(fault_of([&] { images.label(2); }), Fault::corrupt);
}

}  // namespace
}  // namespace lockstep::data::shard_images_test

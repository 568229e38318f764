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
  writer.finish();
  const ShardImages images{TarShards({in_folder("train-000000.tar")})};
  EncodedBuffer buffer;
  const auto bytes = images.read(0, buffer);
  EXPECT_EQ(std::string(bytes.begin(), bytes.end()), "bytes of a cat");
  EXPECT_EQ(images.label(0), 7);
  std::string text;
  EXPECT_EQ(fault_of([&] { images.label(1); }, &text), Fault::corrupt);
  EXPECT_NE(text.find("train-000000.tar: dog/1: its part 'cls' is 'dog'"), text.npos) << text;
}

TEST_F(ShardImagesOfTars, AreRefusedAtOnceIfOneHasNoImageOrNoLabel) {
  ShardWriter without_image(in_folder("a")), without_label(in_folder("b"));
  for (ShardWriter* writer : {&without_image, &without_label})
    writer->write("cat/1", {{"jpg", "bytes of a cat"}, {"cls", "7"}});
  without_image.write("cow/README", {{"txt", "about cows"}, {"cls", "8"}});
  without_image.finish();
  without_label.write("cow/1", {{"jpg", "bytes of a cow"}});
  without_label.finish();
  std::string text;
  EXPECT_EQ(fault_of([&] { ShardImages{TarShards({in_folder("a-000000.tar")})}; }, &text),
            Fault::corrupt);
  EXPECT_NE(text.find("cow/README: the sample has no part with an image"), text.npos) << text;
  EXPECT_EQ(fault_of([&] { ShardImages{TarShards({in_folder("b-000000.tar")})}; }, &text),
            Fault::corrupt);
  EXPECT_NE(text.find("cow/1: the sample has no part 'cls' with a class"), text.npos) << text;
}

}  // namespace
}  // namespace lockstep::data::shard_images_test

// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <array>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <string>

#include "lockstep/base/error.h"
#include "lockstep/toolkit/datasets/shards/shard_writer.h"
#include "lockstep/toolkit/datasets/shards/tar_members.h"
#include "lockstep/toolkit/datasets/shards/tar_shards.h"
#include "lockstep/toolkit/datasets/shards/write_tar.h"
#include "tests/fault_of.h"
#include "tests/memory_limit.h"
#include "tests/ranks.h"

namespace lockstep::datasets::shard_images_test {
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
  EXPECT_NE(text.find("cow/README: the sample has no part with an image, 'jpg', 'jpeg', 'png', "
                      "'webp', but 'txt', 'cls'."),
            text.npos)
      << text;
  EXPECT_NE(text.find("or set ShardImagesOptions::image"), text.npos) << text;
  EXPECT_EQ(fault_of([&] { ShardImages{TarShards({in_folder("b-000000.tar")})}; }, &text),
            Fault::corrupt);
  EXPECT_NE(
      text.find("cow/1: the sample has no part 'cls' with a class, but 'jpg'. A sample has an "
                "image, such as KEY.jpg, and its class as a number in KEY.cls"),
      text.npos)
      << text;
  EXPECT_NE(text.find("`lockstep shard FOLDER --labels`, or set ShardImagesOptions::label"),
            text.npos)
      << text;
}

std::string sparse_file(const std::string& name, const std::string& content, std::uint64_t size) {
  std::string text = tar_headers(name, content.size());
  TarHeader header{};
  std::memcpy(&header, text.data(), sizeof header);
  header.type = 'S';
  // As octal text: offset and size of the stored bytes, twice, and the file's size.
  char* const map = reinterpret_cast<char*>(&header);
  const std::array<std::uint64_t, 4> numbers{0, content.size(), size, 0};
  for (std::size_t i = 0; i < numbers.size(); ++i)
    std::snprintf(map + 386 + 12 * i, 12, "%011llo", static_cast<unsigned long long>(numbers[i]));
  std::snprintf(map + 483, 12, "%011llo", static_cast<unsigned long long>(size));
  std::snprintf(header.checksum.data(), header.checksum.size(), "%06o", tar_checksum(header));
  text.assign(reinterpret_cast<const char*>(&header), sizeof header);
  text += content;
  text.resize(padded_to_blocks(text.size()), '\0');
  return text;
}

std::string plain_file(const std::string& name, const std::string& content) {
  std::string text = tar_headers(name, content.size()) + content;
  text.resize(padded_to_blocks(text.size()), '\0');
  return text;
}

TEST_F(ShardImagesOfTars, AreRefusedBeforeASparseFileTakesMoreMemoryThanTheShardCanHold) {
  const std::string stored(1024, 'x');
  std::ofstream(in_folder("sparse.tar"), std::ios::binary)
      << sparse_file("a.jpg", stored, 1024 * 1032) << plain_file("a.cls", "1")
      << sparse_file("b.jpg", stored, std::uint64_t{4} << 30) << plain_file("b.cls", "2")
      << tar_end();
  const TarShards shards({in_folder("sparse.tar")});
  EXPECT_EQ(shards.part_bytes(1, "jpg"), std::uint64_t{4} << 30);
  EXPECT_EQ(shards.stored_bytes(1, "jpg"), 1024U);
  EXPECT_EQ(shards.stored_bytes(1, "cls"), 1U);
  EXPECT_EQ(shards.stored_bytes(1, "png"), std::nullopt);
  const ShardImages images(shards);
  EncodedBuffer buffer;
  const test::MemoryLimit limit(64 << 20);
  const auto bytes = images.read(0, buffer);
  EXPECT_EQ(std::string(bytes.begin(), bytes.end()), stored + std::string(1024 * 1031, '\0'));
  std::string text;
  EXPECT_EQ(fault_of([&] { images.read(1, buffer); }, &text), Fault::corrupt);
  EXPECT_NE(text.find("sparse.tar: b: its part 'jpg' claims 4294967296 bytes, and the shard has "
                      "1024 of them: archive it without --sparse"),
            text.npos)
      << text;
}

}  // namespace
}  // namespace lockstep::datasets::shard_images_test

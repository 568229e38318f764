// SPDX-License-Identifier: Apache-2.0
#include "lockstep/toolkit/datasets/images/image_folder.h"

#include <ATen/ops/empty.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <numeric>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "lockstep/base/log.h"
#include "lockstep/data/data_loader.h"
#include "lockstep/data/distributed_sampler.h"
#include "tests/fault_of.h"
#include "tests/ranks.h"
#include "tests/rigs/sample_images.h"

namespace lockstep::image_folder_test {
namespace {

struct Filled {
  at::Tensor data;
  std::vector<std::int64_t> targets;
};

Filled fill(const DecodedImages& images, const std::vector<std::size_t>& indices,
            std::int64_t epoch = 0) {
  const auto count = static_cast<std::int64_t>(indices.size());
  std::vector<std::int64_t> sizes = images.data_spec().sizes;
  sizes.insert(sizes.begin(), count);
  const BatchRows rows{.indices = indices,
                       .data = at::empty(sizes, at::kFloat),
                       .target = at::empty({count}, at::kLong),
                       .seed = 7,
                       .epoch = epoch};
  images.fill(rows);
  const auto* targets = rows.target.const_data_ptr<std::int64_t>();
  return {rows.data, {targets, targets + count}};
}

Filled fill_all(const DecodedImages& images, std::int64_t epoch = 0) {
  std::vector<std::size_t> all(images.size());
  std::iota(all.begin(), all.end(), 0);
  return fill(images, all, epoch);
}

const ImageTransform recipe =
    RandomResizedCrop(24) | RandomHorizontalFlip() | Normalize({0.5, 0.5, 0.5}, {0.2, 0.2, 0.2});

class Folder : public testing::Test {
 protected:
  Folder() {
    for (unsigned i = 0; i < 12; ++i) {
      const std::string name = std::to_string(i / 4) + "/" + std::to_string(10 + i);
      if (i % 3 == 0)
        write(name + ".png", test::png_file(50, 40, {}, i));
      else
        write(name + ".jpg", test::jpeg_file(61, 47, {}, i));
    }
  }

  void write(const std::string& name, const std::string& bytes) const {
    const std::filesystem::path path = root() / name;
    std::filesystem::create_directories(path.parent_path());
    std::ofstream(path, std::ios::binary) << bytes;
  }

  std::filesystem::path root() const { return scratch_.path() / "root"; }

 private:
  test::ScratchDirectory scratch_;
};

TEST_F(Folder, FillsRowsWithImagesAndTheirClasses) {
  const ImageFolder images(root(), {.transform = CenterCrop(8)});
  EXPECT_EQ(images.size(), 12);
  EXPECT_EQ(images.classes(), (std::vector<std::string>{"0", "1", "2"}));
  EXPECT_EQ(images.data_spec().sizes, (std::vector<std::int64_t>{3, 8, 8}));
  EXPECT_EQ(fill(images, {11, 0, 5}).targets, (std::vector<std::int64_t>{2, 0, 1}));
  EXPECT_EQ(images.sample_name(5), root() / "1/15.jpg");
  EXPECT_EQ(images.path(5), root() / "1/15.jpg");
  const Filled both = fill(images, {3, 4});
  EXPECT_TRUE(both.data[1].equal(fill(images, {4}).data[0]));
  EXPECT_FALSE(both.data[1].equal(both.data[0]));
}

TEST_F(Folder, GivesTheSamePixelsToAnyNumberOfThreadsAndOthersInEachEpoch) {
  const ImageFolder images(root(), {.transform = recipe});
  const at::Tensor expected = fill_all(images).data;
  EXPECT_FALSE(expected.equal(fill_all(images, 1).data));
  std::vector<at::Tensor> rows(images.size());
  std::vector<std::thread> threads;
  for (std::size_t t = 0; t < 4; ++t)
    threads.emplace_back([&, t] {
      for (std::size_t i = t; i < rows.size(); i += 4) rows[i] = fill(images, {i}).data[0];
    });
  for (std::thread& thread : threads) thread.join();
  for (std::size_t i = 0; i < rows.size(); ++i)
    EXPECT_TRUE(rows[i].equal(expected[static_cast<std::int64_t>(i)])) << i;
}

TEST_F(Folder, GivesALoaderTheSameBatchesWithAnyNumberOfThreads) {
  const ImageFolder images(root(), {.transform = recipe});
  const auto batches = [&](int threads) {
    DataLoader loader(images, DistributedSampler(images.size(), 1, 0),
                      {.batch_size = 5,
                       .threads = threads,
                       .memory_format = at::MemoryFormat::ChannelsLast,
                       .seed = 3});
    std::vector<at::Tensor> all;
    for (const Batch& batch : loader) all.push_back(batch.data.clone());
    return all;
  };
  const std::vector<at::Tensor> expected = batches(0);
  ASSERT_EQ(expected.size(), 3);
  EXPECT_TRUE(expected[0].is_contiguous(at::MemoryFormat::ChannelsLast));
  for (const int threads : {1, 4}) {
    const std::vector<at::Tensor> found = batches(threads);
    ASSERT_EQ(found.size(), expected.size());
    for (std::size_t i = 0; i < found.size(); ++i) EXPECT_TRUE(found[i].equal(expected[i])) << i;
  }
}

TEST_F(Folder, MustLeaveImagesWithOneSize) {
  EXPECT_EQ(test::fault_of([&] { ImageFolder(root(), {.transform = Resize(8)}); }), Fault::misuse);
}

// --- Bad files -----------------------------------------------------------------------------------

TEST_F(Folder, NamesABadFileWithTheReason) {
  const std::string jpeg = test::jpeg_file(61, 47);
  write("1/14.jpg", jpeg.substr(0, jpeg.size() / 2));
  const ImageFolder images(root(), {.transform = Resize({8, 8})});
  std::string text;
  EXPECT_EQ(test::fault_of([&] { fill(images, {3, 4}); }, &text), Fault::corrupt);
  EXPECT_NE(text.find((root() / "1/14.jpg").string() + ": Premature end of JPEG file"),
            std::string::npos)
      << text;
  EXPECT_TRUE(images.bad_files().empty());
}

TEST_F(Folder, SkipsBadFilesByTheNextOnes) {
  std::vector<std::string> said;
  set_log_sink([&](LogLevel, std::string_view line) { said.emplace_back(line); });
  write("0/13.png", "");
  write("1/14.jpg", "no image");
  const ImageFolder images(root(), {.transform = recipe, .bad_files = BadFiles::skip(2)});
  const Filled filled = fill_all(images);
  fill_all(images);
  set_log_sink({});
  EXPECT_EQ(filled.targets, (std::vector<std::int64_t>{0, 0, 0, 1, 1, 1, 1, 1, 2, 2, 2, 2}));
  // Random numbers are those of the sample, not of its replacement.
  EXPECT_FALSE(filled.data[3].equal(filled.data[4]));
  const std::vector<BadFile> bad = images.bad_files();
  ASSERT_EQ(bad.size(), 2);
  EXPECT_EQ(bad[0].index, 3);
  EXPECT_EQ(bad[0].reason, "the file is empty");
  EXPECT_EQ(bad[1].name, root() / "1/14.jpg");
  EXPECT_EQ(said.size(), 2);
}

TEST_F(Folder, SkipsNoMoreBadFilesThanAllowed) {
  for (const char* name : {"0/13.png", "1/14.jpg", "2/18.jpg"}) write(name, "no image");
  const ImageFolder images(root(), {.transform = recipe, .bad_files = BadFiles::skip(2)});
  set_log_sink([](LogLevel, std::string_view) {});
  fill(images, {3});
  std::string text;
  for (int attempt = 0; attempt < 2; ++attempt)
    EXPECT_EQ(test::fault_of([&] { fill(images, {8}); }, &text), Fault::corrupt);
  set_log_sink({});
  EXPECT_NE(text.find("2/18.jpg"), std::string::npos) << text;
  EXPECT_NE(text.find("BadFiles::skip allows 2"), std::string::npos) << text;
}

TEST_F(Folder, ReportsFilesThatCannotBeDecodedWhenItIsListed) {
  for (const char* name : {"0/1.tif", "0/2.TIF", "2/3.tiff"}) write(name, "II*no image");
  write("1/1.tif", test::jpeg_file(61, 47));  // Its content counts.
  std::string text;
  EXPECT_EQ(test::fault_of([&] { ImageFolder(root(), {.transform = recipe}); }, &text),
            Fault::corrupt);
  for (const char* part : {"has 3 files that cannot be decoded: 2 *.tif, 1 *.tiff", "0/1.tif is",
                           "a TIFF image", "BadFiles::skip(3)"})
    EXPECT_NE(text.find(part), std::string::npos) << text;
  EXPECT_EQ(test::fault_of([&] {
              ImageFolder(root(), {.transform = recipe, .bad_files = BadFiles::skip(2)});
            }),
            Fault::corrupt);
  std::vector<std::string> said;
  set_log_sink([&](LogLevel, std::string_view line) { said.emplace_back(line); });
  const ImageFolder images(root(), {.transform = recipe, .bad_files = BadFiles::skip(3)});
  set_log_sink({});
  ASSERT_EQ(said.size(), 1);
  EXPECT_NE(said[0].find("2 *.tif, 1 *.tiff"), std::string::npos) << said[0];
  EXPECT_EQ(images.size(), 16);
}

TEST_F(Folder, OpensNoWebpFileWhenItIsListedIfWebpIsDecoded) {
  write("0/1.webp", "no image");
  const auto list = [&] { ImageFolder(root(), {.transform = recipe}); };
  if (test::webp_kinds().empty())
    EXPECT_EQ(test::fault_of(list), Fault::corrupt);
  else
    EXPECT_NO_THROW(list());
}

TEST_F(Folder, CountsImagesThatLibjpegDecodesWithAWarning) {
  std::vector<std::string> said;
  set_log_sink([&](LogLevel, std::string_view line) { said.emplace_back(line); });
  const ImageFolder before(root(), {.transform = Resize({8, 8})});
  const Filled expected = fill_all(before);
  for (const unsigned i : {1, 2, 4}) {
    std::string jpeg = test::jpeg_file(61, 47, {}, i);
    write(std::to_string(i / 4) + "/" + std::to_string(10 + i) + ".jpg",
          jpeg.insert(jpeg.size() - 2, 20, 's'));
  }
  for (const bool has_cache : {false, true}) {
    said.clear();
    ImageOptions options{.transform = Resize({8, 8})};
    if (has_cache) options.cache = HostCache{.bytes = 1 << 20};
    const ImageFolder images(root(), options);
    EXPECT_EQ(images.flawed_images(), 0);
    for (int epoch = 0; epoch < 2; ++epoch)
      EXPECT_TRUE(fill_all(images).data.equal(expected.data)) << has_cache;
    EXPECT_EQ(images.flawed_images(), 3);
    ASSERT_EQ(said.size(), 1);
    EXPECT_NE(said[0].find("0/11.jpg: Corrupt JPEG data: "), std::string::npos) << said[0];
    EXPECT_NE(said[0].find("damaged image data can cause the same warning"), std::string::npos)
        << said[0];
  }
  set_log_sink({});
}

TEST_F(Folder, IsAnErrorWithBadFilesOnly) {
  for (std::size_t i = 0; i < 12; ++i)
    write(std::filesystem::relative(ImageFolder(root(), {.transform = CenterCrop(1)}).path(i),
                                    root()),
          "no image");
  const ImageFolder images(root(), {.transform = recipe, .bad_files = BadFiles::skip(50)});
  set_log_sink([](LogLevel, std::string_view) {});
  EXPECT_EQ(test::fault_of([&] { fill(images, {3}); }), Fault::corrupt);
  set_log_sink({});
}

// --- Files that change ---------------------------------------------------------------------------

// Longer than the resolution of modification times.
void let_the_clock_move() { std::this_thread::sleep_for(std::chrono::milliseconds(20)); }

TEST_F(Folder, RefusesAFileThatChangedBeforeItWasRead) {
  const ImageFolder images(root(), {.transform = recipe, .bad_files = BadFiles::skip(9)});
  let_the_clock_move();
  write("1/14.jpg", test::jpeg_file(61, 47, {}, 99));
  std::string text;
  EXPECT_EQ(test::fault_of([&] { fill(images, {4}); }, &text), Fault::corrupt);
  EXPECT_NE(text.find("1/14.jpg: the file has changed"), std::string::npos) << text;
}

TEST_F(Folder, RefusesAFileThatChangedBetweenTwoEpochsEvenIntoAnOlderOne) {
  const ImageFolder images(root(), {.transform = recipe});
  fill(images, {4});
  const auto yesterday = std::filesystem::file_time_type::clock::now() - std::chrono::hours(24);
  std::filesystem::last_write_time(root() / "1/14.jpg", yesterday);
  EXPECT_EQ(test::fault_of([&] { fill(images, {4}); }), Fault::corrupt);
}

TEST_F(Folder, AcceptsTimesInTheFuture) {
  const auto tomorrow = std::filesystem::file_time_type::clock::now() + std::chrono::hours(24);
  std::filesystem::last_write_time(root() / "1/14.jpg", tomorrow);
  const ImageFolder images(root(), {.transform = recipe});
  fill_all(images);
  fill_all(images);
}

TEST_F(Folder, AcceptsATimeInTheFutureOnceItHasPassed) {
  const auto soon = std::filesystem::file_time_type::clock::now() + std::chrono::milliseconds(300);
  for (const char* name : {"1/14.jpg", "1/16.png"})
    std::filesystem::last_write_time(root() / name, soon);
  let_the_clock_move();
  const ImageFolder images(root(), {.transform = recipe});
  fill(images, {4});
  std::this_thread::sleep_until(soon);
  let_the_clock_move();
  EXPECT_NO_THROW(fill(images, {4}));
  EXPECT_NO_THROW(fill(images, {6}));  // Its first read.
}

TEST_F(Folder, IsAnErrorForAFileThatIsGoneOrIsNone) {
  std::filesystem::create_directory(root() / "3");
  ASSERT_EQ(::mkfifo((root() / "3/0.jpg").c_str(), 0600), 0);
  const ImageFolder images(root(), {.transform = recipe, .bad_files = BadFiles::skip(9)});
  std::filesystem::remove(root() / "1/14.jpg");
  EXPECT_EQ(test::fault_of([&] { fill(images, {4}); }), Fault::system);
  EXPECT_EQ(test::fault_of([&] { fill(images, {12}); }), Fault::system);
}

}  // namespace
}  // namespace lockstep::image_folder_test

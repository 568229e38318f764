// SPDX-License-Identifier: Apache-2.0
#include "lockstep/toolkit/datasets/images/pixel_cache.h"

#include <ATen/ops/empty.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "lockstep/base/processes.h"
#include "lockstep/comm/in_process.h"
#include "lockstep/comm/values.h"
#include "lockstep/toolkit/datasets/images/image_folder.h"
#include "tests/fault_of.h"
#include "tests/ranks.h"
#include "tests/rigs/sample_images.h"

namespace lockstep::datasets::pixel_cache_test {
namespace {

constexpr ImageSize size{4, 6};

Pixels pixels_of(std::uint8_t value) {
  Pixels pixels;
  pixels.resize(size);
  std::memset(pixels.data(), value, static_cast<std::size_t>(bytes_of(size)));
  return pixels;
}

TEST(PixelCache, KeepsEachImageOnce) {
  PixelCache cache(3, 0, {.bytes = 4096});
  EXPECT_FALSE(cache.find(1));
  cache.keep(1, pixels_of(17).view());
  ASSERT_TRUE(cache.find(1));
  EXPECT_EQ(cache.find(1)->size, size);
  EXPECT_EQ(*cache.find(1)->at(5, 3), 17);
  EXPECT_FALSE(cache.start(1, size));
  EXPECT_FALSE(cache.find(0));
  EXPECT_EQ(cache.images(), 1);
}

TEST(PixelCache, OmitsImagesThatDoNotFit) {
  PixelCache cache(3, 0, {.bytes = 64 + 128 + 128});  // Slots, and one image of 72 bytes.
  cache.keep(0, pixels_of(1).view());
  cache.keep(1, pixels_of(2).view());
  EXPECT_TRUE(cache.find(0));
  EXPECT_FALSE(cache.find(1));
  EXPECT_EQ(test::fault_of([] { PixelCache(100, 0, {.bytes = 1000}); }), Fault::misuse);
}

TEST(PixelCache, FillsASlotAgainAfterItsLoadFailed) {
  PixelCache cache(3, 0, {.bytes = 64 + 128 + 128});
  const std::uint8_t* pixels = nullptr;
  if (const auto filling = cache.start(2, size)) pixels = filling->pixels();
  EXPECT_FALSE(cache.find(2));
  const auto again = cache.start(2, size);
  ASSERT_TRUE(again);
  EXPECT_EQ(again->pixels(), pixels);
}

TEST(PixelCache, DoesNotWaitForALivingFiller) {
  PixelCache cache(3, 0, {.bytes = 4096});
  auto filling = cache.start(2, size);
  EXPECT_FALSE(cache.start(2, size));
  EXPECT_FALSE(cache.find(2));
  filling->ready();
  EXPECT_TRUE(cache.find(2));
}

TEST(PixelCache, RefusesRanksWithOtherImagesOrOptions) {
  const auto fault_with = [](auto make) {
    Fault fault = Fault::bug;
    run_in_process(2, [&](ProcessGroup& group) {
      const Fault mine = test::fault_of([&] { make(group); });
      if (group.rank() == 1) fault = mine;
    });
    return fault;
  };
  const auto odd = [](const ProcessGroup& group) { return static_cast<std::size_t>(group.rank()); };
  EXPECT_EQ(fault_with([&](const ProcessGroup& group) {
              PixelCache(3 + odd(group), 0, {.bytes = 4096, .group = group});
            }),
            Fault::mismatch);
  EXPECT_EQ(fault_with([&](const ProcessGroup& group) {
              PixelCache(3, odd(group), {.bytes = 4096, .group = group});
            }),
            Fault::mismatch);
  EXPECT_EQ(fault_with([&](const ProcessGroup& group) {
              PixelCache(3, 0, {.bytes = 4096 + odd(group), .group = group});
            }),
            Fault::mismatch);
}

// Rank 1 is killed while it fills a slot. Rank 0 fills it in the same memory.
const test::Ranks killed_filler("a filler is killed", [](const test::Rank& rank) {
  const auto world = init_process_group();
  PixelCache cache(1, 0, {.bytes = 64 + 64 + 128, .group = world});
  const auto pids = all_gather_value(::getpid(), world);
  if (rank.rank == 1) {
    const auto filling = cache.start(0, size);
    EXPECT_TRUE(filling);
    std::memset(filling->pixels(), 99, 20);
    ::raise(SIGKILL);
  }
  const auto lives = [&] {
    const auto stat = process_stat(pids[1]);
    return stat && stat->state != 'Z';
  };
  while (lives()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  EXPECT_FALSE(cache.find(0));
  cache.keep(0, pixels_of(5).view());
  ASSERT_TRUE(cache.find(0));
  EXPECT_EQ(*cache.find(0)->at(0, 0), 5);
  EXPECT_EQ(cache.images(), 1);
  std::_Exit(testing::Test::HasFailure() ? 2 : 0);  // The group is aborted.
});

TEST(PixelCache, TakesTheSlotOfAFillerThatWasKilled) {
  const auto exits = killed_filler.run(2);
  EXPECT_EQ(exits[0].code, 0) << exits[0].output;
  EXPECT_EQ(exits[1].signal, SIGKILL);
}

// Rank 1 continues without its main thread. The kernel then reports the process as a zombie, so
// rank 0 treats it as dead and fills its slots.
const test::Ranks hidden_filler("a filler is taken for dead", [](const test::Rank& rank) {
  const auto world = init_process_group();
  PixelCache cache(3, 0, {.bytes = 4096, .group = world});
  const auto wait_until = [](const auto& condition) {
    while (!condition()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  };
  const auto pids = all_gather_value(::getpid(), world);
  if (rank.rank == 1) {
    auto one = cache.start(0, size), other = cache.start(1, size);
    EXPECT_TRUE(one && other);
    std::thread([&] {
      wait_until([&] { return cache.find(0) && cache.find(1); });
      one->ready();
      other.reset();
      EXPECT_EQ(cache.images(), 2);
      EXPECT_TRUE(cache.find(1));
      cache.keep(2, pixels_of(7).view());
      std::_Exit(testing::Test::HasFailure() ? 2 : 0);
    }).detach();
    ::syscall(SYS_exit, 0);
  }
  wait_until([&] { return process_stat(pids[1])->state == 'Z'; });
  for (const std::size_t image : {0, 1}) cache.keep(image, pixels_of(5).view());
  wait_until([&] { return cache.find(2).has_value(); });
  for (const std::size_t image : {0, 1}) {
    ASSERT_TRUE(cache.find(image));
    EXPECT_EQ(*cache.find(image)->at(5, 3), 5);
  }
  std::_Exit(testing::Test::HasFailure() ? 2 : 0);
});

TEST(PixelCache, AFillerThatLosesItsSlotLeavesItAsItIs) {
  EXPECT_TRUE(test::all_succeeded(hidden_filler.run(2)));
}

TEST(PixelCache, ReportsAnOptionMismatchEvenIfOneOptionIsInvalid) {
  run_in_process(2, [](ProcessGroup& group) {
    const HostCache options{.bytes = group.rank() == 1 ? 1U : 4096U, .group = group};
    EXPECT_EQ(test::fault_of([&] { PixelCache(3, 0, options); }), Fault::mismatch);
  });
}

// --- A cache of a folder -------------------------------------------------------------------------

constexpr std::size_t images_of_folder = 24;

void write_folder(const std::filesystem::path& root) {
  for (unsigned i = 0; i < images_of_folder; ++i) {
    const std::filesystem::path folder = root / std::to_string(i % 3);
    std::filesystem::create_directories(folder);
    std::ofstream(folder / (std::to_string(i) + ".jpg"), std::ios::binary)
        << test::jpeg_file(90 + static_cast<int>(i), 70, {}, i);
  }
}

at::Tensor fill(const DecodedImages& images, std::size_t index, std::int64_t epoch) {
  std::vector<std::int64_t> sizes = images.data_spec().sizes;
  sizes.insert(sizes.begin(), 1);
  const std::vector<std::size_t> indices{index};
  const BatchRows rows{.indices = indices,
                       .data = at::empty(sizes, at::kFloat),
                       .target = at::empty({1}, at::kLong),
                       .epoch = epoch};
  images.fill(rows);
  return rows.data;
}

ImageOptions options_with(std::optional<HostCache> cache) {
  return {.transform = RandomResizedCrop(32) | RandomHorizontalFlip(), .cache = std::move(cache)};
}

// In the second epoch, it reads images that other ranks decoded in the first.
void fill_as_rank(const ProcessGroup& group, const std::filesystem::path& root, std::size_t bytes) {
  const ImageFolder plain(root, options_with({}));
  const ImageFolder cached(root, options_with(HostCache{.bytes = bytes, .group = group}));
  const auto ranks = static_cast<std::size_t>(group.size());
  for (const std::int64_t epoch : {0, 1}) {
    const std::size_t first = static_cast<std::size_t>(group.rank() + epoch) % ranks;
    for (std::size_t i = first; i < cached.size(); i += ranks)
      EXPECT_TRUE(fill(cached, i, epoch).equal(fill(plain, i, epoch))) << i << ", epoch " << epoch;
    group.barrier();
  }
  if (bytes > (1 << 20))
    EXPECT_EQ(cached.cached_images(), images_of_folder);
  else
    EXPECT_LT(cached.cached_images(), images_of_folder);
}

TEST(HostCache, GivesThePixelsThatThereAreWithoutIt) {
  const test::ScratchDirectory scratch;
  write_folder(scratch.path());
  const ImageFolder plain(scratch.path(), options_with({}));
  const ImageFolder cached(scratch.path(), options_with(HostCache{.bytes = 2 << 20}));
  for (const std::int64_t epoch : {0, 1})
    for (std::size_t i = 0; i < plain.size(); ++i)
      EXPECT_TRUE(fill(cached, i, epoch).equal(fill(plain, i, epoch)));
  EXPECT_EQ(cached.cached_images(), images_of_folder);
  EXPECT_EQ(cached.cache_memory().bytes(), 2 << 20);
  EXPECT_EQ(plain.cache_memory().bytes(), 0);
}

TEST(HostCache, ReturnsTheSamePixelsWhetherOrNotAnImageFits) {
  const test::ScratchDirectory scratch;
  write_folder(scratch.path());
  const auto with = [](std::size_t bytes) {
    return options_with(HostCache{.bytes = bytes, .shorter_side = 40});
  };
  const ImageFolder large(scratch.path(), with(1 << 20));
  const ImageFolder tight(scratch.path(), with(40'000));
  for (std::size_t i = 0; i < large.size(); ++i)
    for (const std::int64_t epoch : {0, 1})
      EXPECT_TRUE(fill(large, i, epoch).equal(fill(tight, i, epoch)));
  EXPECT_EQ(large.cached_images(), images_of_folder);
  EXPECT_LT(tight.cached_images(), images_of_folder);
  EXPECT_GT(tight.cached_images(), 0);
}

TEST(HostCache, ServesThreadsOfOneProcessAsRanks) {
  const test::ScratchDirectory scratch;
  write_folder(scratch.path());
  for (const int ranks : {1, 2, 4})
    run_in_process(ranks,
                   [&](ProcessGroup& group) { fill_as_rank(group, scratch.path(), 2 << 20); });
}

const test::Ranks ranks_with_a_cache("ranks with a cache", [](const test::Rank& rank) {
  auto world = init_process_group();
  if (rank.rank == 0) write_folder(rank.scratch / "images");
  world.barrier();
  for (const std::size_t bytes : {2 << 20, 200 << 10})
    fill_as_rank(world, rank.scratch / "images", bytes);
  destroy_process_group(world);
});

TEST(HostCache, ServesProcessesAsRanks) {
  for (const int ranks : {1, 2, 4})
    EXPECT_TRUE(test::all_succeeded(ranks_with_a_cache.run(ranks))) << ranks;
}

TEST(HostCache, IsAgreedOnBeforeARankRefusesItsTransform) {
  const test::ScratchDirectory scratch;
  write_folder(scratch.path());
  run_in_process(2, [&](ProcessGroup& group) {
    ImageOptions options = options_with(HostCache{.bytes = 1 << 20, .group = group});
    if (group.rank() == 0) {
      EXPECT_NO_THROW(ImageFolder(scratch.path(), options));
      return;
    }
    options.transform = Resize(32);
    EXPECT_EQ(test::fault_of([&] { ImageFolder(scratch.path(), options); }), Fault::misuse);
  });
}

TEST(HostCache, DoesNotOpenAFileWhosePixelsItHas) {
  const test::ScratchDirectory scratch;
  write_folder(scratch.path());
  const ImageFolder images(scratch.path(), options_with(HostCache{.bytes = 2 << 20}));
  const at::Tensor before = fill(images, 3, 0);
  std::filesystem::remove(images.path(3));
  EXPECT_TRUE(fill(images, 3, 0).equal(before));
}

}  // namespace
}  // namespace lockstep::datasets::pixel_cache_test

// SPDX-License-Identifier: Apache-2.0
#include "lockstep/data/data_loader.h"

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <ATen/autocast_mode.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/ones.h>
#include <c10/core/InferenceMode.h>
#include <gtest/gtest.h>
#include <pthread.h>
#include <sched.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <condition_variable>
#include <functional>
#include <map>
#include <mutex>
#include <set>
#include <stdexcept>
#include <string>
#include <system_error>
#include <thread>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/base/log.h"
#include "lockstep/comm/in_process.h"
#include "lockstep/comm/process_group.h"
#include "lockstep/data/tensor_dataset.h"
#include "tests/fault_of.h"

namespace lockstep::data::data_loader_test {
namespace {

using namespace std::chrono_literals;
using test::fault_of;

using Indices = std::vector<std::size_t>;

// Samples of [2, 3, 4] random values, with the index as the first value and as the target.
class Noise : public BatchDataset {
 public:
  explicit Noise(std::size_t size) : size_(size) {}

  std::size_t size() const override { return size_; }
  SampleSpec data_spec() const override { return {.sizes = {2, 3, 4}, .type = at::kDouble}; }
  SampleSpec target_spec() const override { return {.sizes = {}, .type = at::kLong}; }
  void will_read(std::span<const std::size_t> indices) const override {
    const std::lock_guard lock(mutex_);
    announced.insert(announced.end(), indices.begin(), indices.end());
  }
  std::string sample_name(std::size_t index) const override {
    return "noise/" + std::to_string(index) + ".bin";
  }

  void fill(const BatchRows& rows) const override {
    for (std::size_t row = 0; row < rows.indices.size(); ++row) {
      ++reads;
      if (before_sample) before_sample(rows.indices[row]);
      const at::Tensor sample = rows.data[static_cast<std::int64_t>(row)];
      SampleRandom random = rows.random(row);
      for (int c = 0; c < 2; ++c)
        for (int y = 0; y < 3; ++y)
          for (int x = 0; x < 4; ++x)
            sample[c][y].mutable_data_ptr<double>()[x * sample.stride(2)] = random.uniform();
      sample.mutable_data_ptr<double>()[0] = static_cast<double>(rows.indices[row]);
      rows.target.mutable_data_ptr<std::int64_t>()[row] =
          static_cast<std::int64_t>(rows.indices[row]);
    }
  }

  std::function<void(std::size_t)> before_sample;  // Called for each sample that fill() writes.
  mutable std::atomic<std::size_t> reads = 0;      // Samples that fill() has started.
  mutable Indices announced;                       // By will_read().

 private:
  std::size_t size_;
  mutable std::mutex mutex_;  // Several ranks may read this dataset.
};

// A copy of a batch that is independent of the loader.
Batch copy_of(const Batch& batch) {
  return {batch.data.clone(), batch.target.clone(), batch.indices, batch.epoch};
}

std::vector<Batch> batches_of(DataLoader& loader) {
  std::vector<Batch> all;
  for (const Batch& batch : loader) all.push_back(copy_of(batch));
  return all;
}

Indices indices_of(const std::vector<Batch>& batches) {
  Indices all;
  for (const Batch& batch : batches)
    all.insert(all.end(), batch.indices.begin(), batch.indices.end());
  return all;
}

Indices order_of(DistributedSampler sampler) {
  sampler.reset();
  return sampler.next(sampler.size()).value_or(Indices());
}

void expect_equal(const std::vector<Batch>& batches, const std::vector<Batch>& expected) {
  ASSERT_EQ(batches.size(), expected.size());
  for (std::size_t i = 0; i < batches.size(); ++i) {
    EXPECT_EQ(batches[i].indices, expected[i].indices);
    EXPECT_TRUE(at::equal(batches[i].data, expected[i].data)) << "batch " << i;
    EXPECT_TRUE(at::equal(batches[i].target, expected[i].target)) << "batch " << i;
  }
}

// --- Order and values ----------------------------------------------------------------------------

TEST(DataLoader, GivesTheSamplersOrderInBatchesOfOneSizeExceptTheLast) {
  const Noise noise(103);
  const DistributedSampler sampler(103, 2, 1);
  DataLoader loader(noise, sampler, {.batch_size = 10, .threads = 2});
  EXPECT_EQ(loader.size(), 6U);
  const auto batches = batches_of(loader);
  ASSERT_EQ(batches.size(), 6U);
  for (const Batch& batch : batches) {
    const std::int64_t rows = &batch == &batches.back() ? 2 : 10;
    EXPECT_EQ(batch.data.sizes(), (std::vector<std::int64_t>{rows, 2, 3, 4}));
    EXPECT_EQ(batch.target.sizes(), (std::vector<std::int64_t>{rows}));
    for (std::int64_t i = 0; i < rows; ++i) {
      const auto index = static_cast<std::int64_t>(batch.indices[static_cast<std::size_t>(i)]);
      EXPECT_EQ(batch.target[i].item<std::int64_t>(), index);
      EXPECT_EQ(batch.data[i][0][0][0].item<double>(), static_cast<double>(index));
    }
  }
  EXPECT_EQ(indices_of(batches), order_of(sampler));
}

TEST(DataLoader, LeavesOutASmallerLastBatchWithDropLast) {
  const Noise noise(103);
  const DistributedSampler sampler(103, 1, 0);
  DataLoader loader(noise, sampler, {.batch_size = 10, .drop_last = true});
  EXPECT_EQ(loader.size(), 10U);
  EXPECT_EQ(batches_of(loader).size(), 10U);
}

TEST(DataLoader, GivesTheSameValuesWithAnyNumberOfThreadsAndInAnyLayout) {
  const Noise noise(50);
  DistributedSampler sampler(50, 1, 0);
  sampler.set_epoch(3);
  DataLoader reference(noise, sampler, {.batch_size = 8, .threads = 0, .seed = 5});
  const auto expected = batches_of(reference);
  for (const int threads : {0, 1, 4}) {
    for (const auto format : {at::MemoryFormat::Contiguous, at::MemoryFormat::ChannelsLast}) {
      DataLoader loader(noise, sampler,
                        {.batch_size = 8, .threads = threads, .memory_format = format, .seed = 5});
      for (const Batch& batch : loader) {
        EXPECT_TRUE(batch.data.is_contiguous(format));
        EXPECT_EQ(batch.epoch, 3);
      }
      expect_equal(batches_of(loader), expected);
    }
  }
}

TEST(DataLoader, FinishesAPassInItsEpochWhenTheNextOneIsSetEarly) {
  const Noise noise(80);
  DistributedSampler sampler(80, 1, 0);
  DataLoader loader(noise, sampler, {.batch_size = 8, .threads = 1, .prefetch_bytes = 0});
  const auto expected = batches_of(loader);
  std::vector<Batch> seen;
  for (const Batch& batch : loader) {
    EXPECT_EQ(batch.epoch, 0);
    seen.push_back(copy_of(batch));
    sampler.set_epoch(1);
  }
  expect_equal(seen, expected);
}

TEST(DataLoader, DrawsOtherRandomNumbersInEachEpochAndForEachSeed) {
  const Noise noise(8);
  DistributedSampler sampler(8, 1, 0, {.shuffle = false});
  const auto values = [&](std::int64_t epoch, std::uint64_t seed) {
    sampler.set_epoch(epoch);
    DataLoader loader(noise, sampler, {.batch_size = 8, .seed = seed});
    return batches_of(loader).at(0).data;
  };
  EXPECT_TRUE(at::equal(values(1, 0), values(1, 0)));
  EXPECT_FALSE(at::equal(values(1, 0), values(2, 0)));
  EXPECT_FALSE(at::equal(values(1, 0), values(1, 1)));
}

// Step k of all ranks: the data by index.
std::vector<std::map<std::size_t, at::Tensor>> global_batches(const BatchDataset& dataset,
                                                              int ranks) {
  std::vector<std::map<std::size_t, at::Tensor>> steps;
  for (int rank = 0; rank < ranks; ++rank) {
    const DistributedSampler sampler(dataset.size(), ranks, rank);
    DataLoader loader(dataset, sampler,
                      {.batch_size = 16 / static_cast<std::size_t>(ranks), .threads = rank});
    std::size_t step = 0;
    for (const Batch& batch : loader) {
      if (steps.size() == step) steps.emplace_back();
      for (std::size_t i = 0; i < batch.indices.size(); ++i)
        steps[step][batch.indices[i]] = batch.data[static_cast<std::int64_t>(i)].clone();
      ++step;
    }
  }
  return steps;
}

TEST(DataLoader, GivesTheSameGlobalBatchesToAnyNumberOfRanks) {
  const Noise noise(64);
  const auto expected = global_batches(noise, 1);
  for (const int ranks : {2, 4}) {
    const auto steps = global_batches(noise, ranks);
    ASSERT_EQ(steps.size(), expected.size());
    for (std::size_t step = 0; step < steps.size(); ++step) {
      ASSERT_EQ(steps[step].size(), 16U);
      for (const auto& [index, data] : steps[step])
        EXPECT_TRUE(at::equal(data, expected[step].at(index))) << "step " << step;
    }
  }
}

TEST(DataLoader, AnnouncesSamplesInOrderBeforeTheyAreRead) {
  const Noise noise(40);
  const DistributedSampler sampler(40, 1, 0);
  DataLoader loader(noise, sampler, {.batch_size = 8, .threads = 2});
  std::size_t seen = 0;
  for (const Batch& batch : loader) {
    seen += batch.indices.size();
    EXPECT_GE(noise.announced.size(), std::min<std::size_t>(seen + 8, 40));  // One batch ahead.
  }
  EXPECT_EQ(noise.announced, order_of(sampler));
}

// --- Resuming ------------------------------------------------------------------------------------

TEST(DataLoader, ResumesAfterTheConsumedBatchesOnAnotherNumberOfRanks) {
  const Noise noise(96);
  DistributedSampler sampler(96, 1, 0);
  sampler.set_epoch(2);
  const Indices order = order_of(sampler);
  DataLoader loader(noise, sampler, {.batch_size = 8, .threads = 2});
  int steps = 0;
  for (const Batch& batch : loader) {
    if (++steps == 4) break;  // The fourth batch and those filled ahead do not count.
    loader.consume(batch);
  }
  EXPECT_EQ(sampler.offset(), 24U);

  std::multiset<std::size_t> rest;
  for (int rank = 0; rank < 2; ++rank) {
    DistributedSampler resumed(96, 2, rank);
    resumed.load_state_dict(sampler.state_dict());
    DataLoader continued(noise, resumed, {.batch_size = 4, .threads = 1});
    for (const Batch& batch : continued) {
      EXPECT_EQ(batch.epoch, 2);
      rest.insert(batch.indices.begin(), batch.indices.end());
      continued.consume(batch);
    }
    EXPECT_EQ(resumed.offset(), 96U);
  }
  EXPECT_EQ(rest, std::multiset<std::size_t>(order.begin() + 24, order.end()));
}

TEST(DataLoader, RefusesToConsumeABatchTwiceOrOutOfOrder) {
  const Noise noise(40);
  const DistributedSampler sampler(40, 1, 0);
  DataLoader loader(noise, sampler, {.batch_size = 8});
  std::vector<Batch> kept;
  for (const Batch& batch : loader) {
    kept.push_back(batch);
    if (kept.size() == 1) loader.consume(batch);
    if (kept.size() < 3) continue;
    const Batch moved = std::exchange(kept[1], {});
    for (const Batch& wrong : kept)  // Consumed already, moved from, and too early.
      EXPECT_EQ(fault_of([&] { loader.consume(wrong); }), Fault::misuse);
    EXPECT_EQ(sampler.offset(), 8U) << "a refused batch was counted";
    loader.consume(moved);
    EXPECT_EQ(sampler.offset(), 16U);
    break;
  }
}

// After the last batch, 24 samples are left: too few for two ranks, enough for one.
TEST(DataLoader, ADroppedEndStaysDroppedOnAnotherNumberOfRanks) {
  const Noise noise(120);
  for (const int threads : {0, 2}) {
    DistributedSampler sampler(120, 2, 0);
    DataLoader loader(noise, sampler, {.batch_size = 16, .threads = threads, .drop_last = true});
    for (const std::int64_t epoch : {0, 1}) {
      sampler.set_epoch(epoch);
      std::size_t batches = 0;
      for (const Batch& batch : loader) {
        loader.consume(batch);
        EXPECT_EQ(sampler.offset(), ++batches == 3 ? 120U : batches * 32);
      }
      EXPECT_EQ(batches, 3U);
    }
    DistributedSampler alone(120, 1, 0);
    alone.load_state_dict(sampler.state_dict());
    DataLoader resumed(noise, alone, {.batch_size = 16, .drop_last = true});
    EXPECT_TRUE(resumed.begin() == resumed.end());
  }
}

// --- Failures ------------------------------------------------------------------------------------

struct Failing {
  std::string text;
  Indices before;  // Indices of the batches that came before.
};

Failing first_failure(DataLoader& loader, Fault expected) {
  Failing found;
  EXPECT_EQ(fault_of(
                [&] {
                  for (const Batch& batch : loader)
                    found.before.insert(found.before.end(), batch.indices.begin(),
                                        batch.indices.end());
                },
                &found.text),
            expected);
  return found;
}

TEST(DataLoader, ShowsThePathOfAFailedSampleOnce) {
  Noise noise(4);
  noise.before_sample = [](std::size_t) {
    throw Error(Fault::system, "noise/0.bin: No such file or directory");
  };
  const DistributedSampler sampler(4, 1, 0, {.shuffle = false});
  DataLoader loader(noise, sampler, {.batch_size = 1});
  EXPECT_NE(first_failure(loader, Fault::system)
                .text.find("sample 0 (noise/0.bin): No such file or directory"),
            std::string::npos);
}

TEST(DataLoader, ThrowsAtTheFailedBatchAndNamesItsFirstFailedSample) {
  Noise noise(60);
  noise.before_sample = [](std::size_t index) {
    if (index == 33 || index == 38 || index == 59) throw std::out_of_range("no such pixel");
  };
  const DistributedSampler sampler(60, 1, 0, {.shuffle = false});
  for (const int threads : {0, 1, 4}) {
    DataLoader loader(noise, sampler, {.batch_size = 10, .threads = threads});
    for (int pass = 0; pass < 3; ++pass) {
      const Failing found = first_failure(loader, Fault::corrupt);
      EXPECT_NE(found.text.find("sample 33 (noise/33.bin): no such pixel"), std::string::npos)
          << found.text;
      EXPECT_EQ(found.before.size(), 30U) << "with " << threads << " threads";
    }
  }
}

TEST(DataLoader, ContinuesInANewLoopOnceTheSampleIsReadable) {
  Noise noise(60);
  std::atomic<bool> broken = true;
  noise.before_sample = [&](std::size_t index) {
    if (broken && index == 33) throw Error(Fault::system, "the disk is gone");
  };
  const DistributedSampler sampler(60, 1, 0);
  DataLoader loader(noise, sampler, {.batch_size = 10, .threads = 2});
  EXPECT_NE(first_failure(loader, Fault::system).text.find("the disk is gone"), std::string::npos);
  broken = false;
  EXPECT_EQ(indices_of(batches_of(loader)), order_of(sampler));
}

TEST(DataLoader, KeepsTheFaultOfWhatWasThrownAndNestsIt) {
  struct Case {
    std::function<void()> raise;
    Fault fault;
  };
  const Case cases[]{
      {[] { throw Error(Fault::unsupported, "text"); }, Fault::unsupported},
      {[] { throw std::system_error(std::make_error_code(std::errc::io_error)); }, Fault::system},
      {[] { throw std::bad_alloc(); }, Fault::system},
      {[] { at::ones({2}).view({3}); }, Fault::corrupt},
      {[] { throw 7; }, Fault::corrupt}};
  for (const Case& each : cases) {
    Noise noise(4);
    noise.before_sample = [&](std::size_t) { each.raise(); };
    DataLoader loader(noise, DistributedSampler(4, 1, 0), {.batch_size = 2});
    try {
      loader.begin();
      ADD_FAILURE() << "nothing was thrown";
    } catch (const Error& error) {
      EXPECT_EQ(error.fault(), each.fault) << error.what();
      EXPECT_NE(dynamic_cast<const std::nested_exception*>(&error), nullptr);
    }
  }
}

TEST(DataLoader, NamesTheChunkIfItsSamplesCanBeReadOneByOne) {
  Noise noise(8);
  std::size_t calls = 0;
  noise.before_sample = [&](std::size_t) {
    if (++calls == 3) throw std::runtime_error("once only");
  };
  DataLoader loader(noise, DistributedSampler(8, 1, 0, {.shuffle = false}),
                    {.batch_size = 8, .threads = 0});
  const Failing found = first_failure(loader, Fault::corrupt);
  EXPECT_NE(found.text.find("samples from sample 0 (noise/0.bin) to sample 7 (noise/7.bin)"),
            std::string::npos)
      << found.text;
}

TEST(DataLoader, RefusesASamplerOfALargerDataset) {
  const Noise noise(8);
  DataLoader loader(noise, DistributedSampler(9, 1, 0), {.batch_size = 9});
  EXPECT_NE(first_failure(loader, Fault::misuse).text.find("index 8, but the dataset has only 8"),
            std::string::npos);
}

// --- Loops that end early ------------------------------------------------------------------------

TEST(DataLoader, RestartsAfterABreakAtAnyBatch) {
  const Noise noise(60);
  const DistributedSampler sampler(60, 1, 0);
  for (const int threads : {0, 1, 4}) {
    DataLoader loader(noise, sampler, {.batch_size = 4, .threads = threads});
    const auto expected = batches_of(loader);
    for (std::size_t stop = 1; stop <= expected.size(); ++stop) {
      std::vector<Batch> seen;
      for (const Batch& batch : loader) {
        seen.push_back(copy_of(batch));
        if (seen.size() == stop) break;
      }
      expect_equal(seen, {expected.begin(), expected.begin() + static_cast<std::ptrdiff_t>(stop)});
    }
    expect_equal(batches_of(loader), expected);
  }
}

TEST(DataLoader, EndsWithItsLoopWhileThreadsAreFilling) {
  constexpr std::size_t many = 100'000;  // Threads read a few thousand of them in a second.
  Noise noise(many);
  noise.before_sample = [](std::size_t) { std::this_thread::sleep_for(1ms); };
  for (int i = 0; i < 5; ++i) {
    DataLoader loader(noise, DistributedSampler(many, 1, 0), {.batch_size = 4, .threads = 3});
    if (i == 0) continue;  // Never used.
    const auto iterator = loader.begin();
    EXPECT_FALSE(iterator == loader.end());
  }
  EXPECT_LT(noise.reads, many);
}

TEST(DataLoader, RefusesASecondLoopWithinALoopWhichGoesOn) {
  const Noise noise(40);
  const DistributedSampler sampler(40, 1, 0);
  DataLoader loader(noise, sampler, {.batch_size = 8, .threads = 2});
  Indices seen;
  for (const Batch& batch : loader) {
    EXPECT_EQ(fault_of([&] { loader.begin(); }), Fault::misuse);
    seen.insert(seen.end(), batch.indices.begin(), batch.indices.end());
  }
  EXPECT_EQ(seen, order_of(sampler));
}

TEST(DataLoader, HasNoBatchForARankWithoutSamplesAndReportsThis) {
  const Noise noise(1);
  std::vector<std::string> said;
  set_log_sink([&](LogLevel, std::string_view line) { said.emplace_back(line); });
  DataLoader loader(noise, DistributedSampler(1, 2, 1, {.pad = false}), {.batch_size = 8});
  set_log_sink({});
  ASSERT_EQ(said.size(), 1U);
  EXPECT_NE(said[0].find("this rank has no samples"), std::string::npos) << said[0];
  EXPECT_EQ(loader.size(), 0U);
  EXPECT_TRUE(loader.begin() == loader.end());
  EXPECT_EQ(fault_of([&] { *loader.begin(); }), Fault::misuse);
}

TEST(DataLoader, IsDestroyedInAForkedChildAndRefusesToLoadThere) {
  const Noise noise(1000);
  auto loader = std::make_unique<DataLoader>(noise, DistributedSampler(1000, 1, 0),
                                             DataLoaderOptions{.batch_size = 4, .threads = 2});
  auto iterator = std::make_unique<DataLoader::Iterator>(loader->begin());
  const pid_t child = ::fork();
  if (child == 0) {
    std::string text;
    EXPECT_EQ(fault_of([&] { ++*iterator; }, &text), Fault::misuse);
    EXPECT_NE(text.find("fork()ed child"), std::string::npos) << text;
    iterator.reset();
    loader.reset();
    ::_exit(testing::Test::HasFailure() ? 2 : 0);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
  int batches = 1;
  while (!(++*iterator == loader->end())) ++batches;
  EXPECT_EQ(batches, 250);
}

// --- Memory --------------------------------------------------------------------------------------

constexpr std::size_t sample_bytes = (2 * 3 * 4 + 1) * 8;

TEST(DataLoader, FillsAsManyBytesAheadAsTheProgramAllowsAndNoMore) {
  for (const std::size_t ahead : {1, 3, 7}) {
    const Noise noise(400);
    const std::size_t bytes = 4 * (sample_bytes + sizeof(std::size_t)) + 1024;
    const std::size_t prefetch = ahead == 1 ? 0 : ahead * bytes + sample_bytes;
    DataLoader loader(noise, DistributedSampler(400, 1, 0),
                      {.batch_size = 4, .threads = 3, .prefetch_bytes = prefetch});
    std::size_t taken = 0;
    for (const Batch& batch : loader) {
      taken += batch.indices.size();
      const std::size_t limit = std::min<std::size_t>(taken + 4 * ahead, 400);
      // In the middle, the threads fill as many batches as they may.
      while (taken == 200 && noise.reads < limit) std::this_thread::sleep_for(1ms);
      EXPECT_LE(noise.reads, limit);
    }
    EXPECT_EQ(loader.bytes(), (ahead + 1) * 4 * sample_bytes);
    EXPECT_EQ(noise.reads, 400U);
  }
}

// The overhead of each batch exceeds the memory of its values.
TEST(DataLoader, DrawsNotMoreThanABatchAheadForEachKilobyte) {
  const Noise noise(1000);
  DataLoader loader(noise, DistributedSampler(1000, 1, 0),
                    {.batch_size = 1, .threads = 1, .prefetch_bytes = 64 << 10});
  std::size_t taken = 0;
  for (const Batch& batch : loader) {
    taken += batch.indices.size();
    EXPECT_LE(noise.announced.size(), taken + 64);
  }
}

TEST(DataLoader, HasMemoryForOneBatchWithoutThreads) {
  const Noise noise(400);
  DataLoader loader(noise, DistributedSampler(400, 1, 0), {.batch_size = 4, .threads = 0});
  std::size_t taken = 0;
  for (const Batch& batch : loader) {
    taken += batch.indices.size();
    EXPECT_EQ(noise.reads, taken);
  }
  EXPECT_EQ(loader.bytes(), 4 * sample_bytes);
}

TEST(DataLoader, FillsTheSameMemoryAgain) {
  const Noise noise(400);
  DataLoader loader(noise, DistributedSampler(400, 1, 0),
                    {.batch_size = 4, .threads = 2, .prefetch_bytes = 3 * 4 * sample_bytes});
  std::set<const void*> places;
  for (int epoch = 0; epoch < 3; ++epoch)
    for (const Batch& batch : loader) places.insert(batch.data.const_data_ptr());
  EXPECT_LE(places.size(), 4U);
}

TEST(DataLoader, NeverOverwritesABatchOfWhichTheProgramHoldsAPart) {
  const Noise noise(400);
  for (const int threads : {0, 2}) {
    DataLoader loader(noise, DistributedSampler(400, 1, 0), {.batch_size = 4, .threads = threads});
    std::vector<Batch> expected;
    std::vector<Batch> whole;
    std::vector<at::Tensor> views;
    std::vector<at::Tensor> targets;
    for (const Batch& batch : loader) {
      expected.push_back(copy_of(batch));
      whole.push_back(expected.size() % 3 == 0 ? batch : Batch());
      views.push_back(expected.size() % 3 == 1 ? batch.data.select(1, 1) : at::Tensor());
      targets.push_back(expected.size() % 5 == 2 ? batch.target : at::Tensor());
    }
    for (std::size_t i = 0; i < expected.size(); ++i) {
      if (!whole[i].indices.empty()) {
        EXPECT_TRUE(at::equal(whole[i].data, expected[i].data));
        EXPECT_EQ(whole[i].indices, expected[i].indices);
      }
      if (views[i].defined()) {
        EXPECT_TRUE(at::equal(views[i], expected[i].data.select(1, 1)));
      }
      if (targets[i].defined()) {
        EXPECT_TRUE(at::equal(targets[i], expected[i].target));
      }
    }
  }
}

// --- Threads -------------------------------------------------------------------------------------

struct ThreadFacts {
  std::set<int> cpus;
  int nice = 0;
  int intra_op_threads = 0;
  bool grad = true;
  at::ScalarType product = at::kFloat;  // Type of the product of two float matrices.
  std::string name;
};

std::set<int> own_cpus() {
  cpu_set_t set;
  CPU_ZERO(&set);
  ::sched_getaffinity(0, sizeof set, &set);
  std::set<int> cpus;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu)
    if (CPU_ISSET(cpu, &set)) cpus.insert(cpu);
  return cpus;
}

int own_nice() { return ::getpriority(PRIO_PROCESS, static_cast<id_t>(::gettid())); }

ThreadFacts own_facts() {
  std::array<char, 16> name{};
  ::pthread_getname_np(::pthread_self(), name.data(), name.size());
  return {.cpus = own_cpus(),
          .nice = own_nice(),
          .intra_op_threads = at::get_num_threads(),
          .grad = at::GradMode::is_enabled(),
          .product = at::matmul(at::ones({2, 2}), at::ones({2, 2})).scalar_type(),
          .name = name.data()};
}

TEST(DataLoader, FillsOnThreadsWithTheCoresOfItsMakerALowPriorityAndOneIntraOpThread) {
  cpu_set_t before;
  ::sched_getaffinity(0, sizeof before, &before);
  cpu_set_t one;
  CPU_ZERO(&one);
  const int cpu = *own_cpus().rbegin();
  CPU_SET(cpu, &one);
  const int threads_before = at::get_num_threads();
  at::set_num_threads(3);
  ASSERT_EQ(::sched_setaffinity(0, sizeof one, &one), 0);

  Noise noise(200);
  std::mutex mutex;
  std::condition_variable changed;
  std::map<pid_t, ThreadFacts> found;
  noise.before_sample = [&, loop = ::gettid()](std::size_t) {
    const ThreadFacts facts = own_facts();
    std::unique_lock lock(mutex);
    found[::gettid()] = facts;
    changed.notify_all();
    // The loop's thread, which also fills, must not fill everything before the others start.
    if (::gettid() == loop) changed.wait_for(lock, 20s, [&] { return found.size() > 1; });
  };
  {
    DataLoader loader(noise, DistributedSampler(200, 1, 0), {.batch_size = 10, .threads = 2});
    for (const Batch& batch : loader) {
      static_cast<void>(batch);
      std::this_thread::sleep_for(1ms);
    }
  }
  EXPECT_EQ(at::get_num_threads(), 3);
  std::thread([] { EXPECT_EQ(at::get_num_threads(), 3); }).join();
  found.erase(::gettid());
  EXPECT_FALSE(found.empty());
  for (const auto& [id, facts] : found) {
    EXPECT_EQ(facts.cpus, std::set<int>{cpu});
    EXPECT_EQ(facts.nice, std::min(19, own_nice() + 10));
    EXPECT_EQ(facts.intra_op_threads, 1);
    EXPECT_EQ(facts.name, "lockstep-loader");
  }
  at::set_num_threads(threads_before);
  ::sched_setaffinity(0, sizeof before, &before);
}

TEST(DataLoader, NeitherRecordsGradientsNorCastsWhateverTheLoopDoes) {
  at::autocast::set_autocast_enabled(at::kCPU, true);
  for (const int threads : {0, 1}) {
    Noise noise(40);
    noise.before_sample = [](std::size_t) {
      EXPECT_FALSE(own_facts().grad);
      EXPECT_EQ(own_facts().product, at::kFloat);
    };
    DataLoader loader(noise, DistributedSampler(40, 1, 0), {.batch_size = 8, .threads = threads});
    EXPECT_EQ(batches_of(loader).size(), 5U);
    EXPECT_TRUE(at::GradMode::is_enabled());
    EXPECT_EQ(own_facts().product, at::kBFloat16);
  }
  at::autocast::set_autocast_enabled(at::kCPU, false);
  at::autocast::clear_cache();
}

// A dataset whose fill() calls an operator that writes in place.
class Copying : public Noise {
 public:
  using Noise::Noise;

  void fill(const BatchRows& rows) const override {
    rows.data.fill_(1);
    rows.target.fill_(2);
  }
};

TEST(DataLoader, GivesOrdinaryTensorsInInferenceMode) {
  const Copying copying(40);
  for (const int threads : {0, 2}) {
    DataLoader loader(copying, DistributedSampler(40, 1, 0), {.batch_size = 8, .threads = threads});
    {
      const c10::InferenceMode inference;
      EXPECT_EQ(batches_of(loader).size(), 5U);
      for (const Batch& batch : loader) EXPECT_FALSE(batch.data.is_inference());
    }
    const at::Tensor weight = at::ones({4}, at::kDouble).requires_grad_();
    for (const Batch& batch : loader) (batch.data * weight).sum().backward();
    EXPECT_TRUE(at::equal(weight.grad(), at::full({4}, 240, at::kDouble)));
  }
}

TEST(DataLoader, LetsAllThreadsWorkOnABatchWhoseSamplesAreSlow) {
  Noise noise(8);
  std::mutex mutex;
  std::condition_variable changed;
  std::set<pid_t> threads;
  noise.before_sample = [&](std::size_t) {
    std::unique_lock lock(mutex);
    threads.insert(::gettid());
    changed.notify_all();
    changed.wait_for(lock, 20s, [&] { return threads.size() == 4; });
  };
  DataLoader loader(noise, DistributedSampler(8, 1, 0), {.batch_size = 8, .threads = 3});
  EXPECT_EQ(batches_of(loader).size(), 1U);
  EXPECT_EQ(threads.size(), 4U) << "three threads, and the one that waits for the batch";
}

// --- Options and groups --------------------------------------------------------------------------

TEST(DataLoader, RefusesOptionsThatItCannotHonour) {
  const Noise noise(8);
  const DistributedSampler sampler(8, 1, 0);
  const auto fault = [&](const BatchDataset& dataset, const DataLoaderOptions& options) {
    return fault_of([&] { DataLoader(dataset, sampler, options); });
  };
  EXPECT_EQ(fault(noise, {.batch_size = 0}), Fault::misuse);
  EXPECT_EQ(fault(noise, {.batch_size = 9, .drop_last = true}), Fault::misuse);
  EXPECT_EQ(fault(noise, {.threads = -1}), Fault::misuse);
  EXPECT_EQ(fault(noise, {.memory_format = at::MemoryFormat::ChannelsLast3d}), Fault::misuse);
  const TensorDataset flat(at::ones({8, 3}), at::arange(8));
  EXPECT_EQ(fault(flat, {.memory_format = at::MemoryFormat::ChannelsLast}), Fault::misuse);
  EXPECT_EQ(fault(noise, {.device = at::kMPS}), Fault::unsupported);
  if (!at::hasCUDA()) {
    EXPECT_EQ(fault(noise, {.device = at::kCUDA}), Fault::unsupported);
  }
}

std::string disagreement(const DataLoaderOptions& options, std::size_t size = 40) {
  std::string text;
  run_in_process(3, [&](ProcessGroup& world) {
    const bool differs = world.rank() == 2;
    const Noise noise(differs ? size : 40);
    const DistributedSampler sampler(40, world);
    std::string told;
    EXPECT_EQ(fault_of(
                  [&] {
                    DataLoader(noise, sampler, world,
                               differs ? options : DataLoaderOptions{.batch_size = 4});
                  },
                  &told),
              Fault::mismatch);
    if (world.rank() == 1) text = told;
    EXPECT_NO_THROW(DataLoader(noise, sampler, world)) << "the group goes on";
  });
  return text;
}

TEST(DataLoader, NamesTheRankWhoseOptionsDiffer) {
  const auto names = [](const std::string& text, const std::string& part) {
    EXPECT_NE(text.find(part), std::string::npos) << text;
  };
  names(disagreement({.batch_size = 4, .seed = 9}), "rank 0 has seed = 0, rank 2 has seed = 9");
  names(disagreement({.batch_size = 5}), "rank 0 has batch_size = 4, rank 2 has batch_size = 5");
  names(disagreement({.batch_size = 0}), "rank 0 has batch_size = 4, rank 2 has batch_size = 0");
  names(disagreement({.batch_size = 4, .drop_last = true}),
        "rank 0 has drop_last = false, rank 2 has drop_last = true");
}

// --- Registered memory ---------------------------------------------------------------------------

bool lies_in(const RegisteredMemory& memory, const at::Tensor& tensor) {
  const auto* const begin = static_cast<const std::byte*>(memory.data());
  const auto* const data = static_cast<const std::byte*>(tensor.const_data_ptr());
  return data >= begin && data + tensor.nbytes() <= begin + memory.bytes();
}

TEST(DataLoader, PlacesTheBatchesOfAGroupInRegisteredMemory) {
  const Noise noise(120);
  run_in_process(2, [&](ProcessGroup& world) {
    const DistributedSampler sampler(120, world);
    // The ranks' needs may differ: the largest one counts.
    DataLoader loader(noise, sampler, world,
                      {.batch_size = 8,
                       .threads = world.rank(),
                       .memory_format = at::MemoryFormat::ChannelsLast});
    const RegisteredMemory memory = loader.batch_memory();
    EXPECT_EQ(memory.bytes(), 8U * (8 * 24 * 8 + 8 * 8)) << "all 8 batches of 8 rows";
    std::size_t batches = 0;
    for (int pass = 0; pass < 2; ++pass)
      for (const Batch& batch : loader) {
        EXPECT_TRUE(lies_in(memory, batch.data));
        EXPECT_TRUE(lies_in(memory, batch.target));
        EXPECT_TRUE(batch.data.is_contiguous(at::MemoryFormat::ChannelsLast));
        world.broadcast({.data = batch.data.mutable_data_ptr(),
                         .count = static_cast<std::size_t>(batch.data.numel()),
                         .dtype = DType::float64},
                        /*root=*/1);
        world.broadcast({.data = batch.target.mutable_data_ptr(),
                         .count = static_cast<std::size_t>(batch.target.numel()),
                         .dtype = DType::int64},
                        /*root=*/1);
        EXPECT_EQ(
            batch.data.select(1, 0).select(1, 0).select(1, 0).to(at::kLong).equal(batch.target),
            true);
        ++batches;
      }
    EXPECT_EQ(batches, 16U);
  });
}

// Noise without targets.
class Unlabelled : public Noise {
 public:
  using Noise::Noise;

  SampleSpec target_spec() const override { return {.sizes = {0}, .type = at::kLong}; }
  void fill(const BatchRows& rows) const override { rows.data.zero_(); }
};

TEST(DataLoader, ReservesRegisteredMemoryForEmptyTargetsToo) {
  const Unlabelled samples(120);
  run_in_process(2, [&](ProcessGroup& world) {
    DataLoader loader(samples, DistributedSampler(120, world), world, {.batch_size = 8});
    const RegisteredMemory memory = loader.batch_memory();
    std::vector<Batch> all;
    for (const Batch& batch : loader) all.push_back(batch);
    ASSERT_EQ(all.size(), 8U);
    for (const Batch& batch : all) EXPECT_TRUE(lies_in(memory, batch.data));
  });
}

TEST(DataLoader, ReservesNoMoreRegisteredMemoryThanTheProgramAllows) {
  const Noise noise(120);
  run_in_process(2, [&](ProcessGroup& world) {
    const std::size_t needed = 8U * (8 * 24 * 8 + 8 * 8);
    const auto reserved = [&](std::size_t most) {
      DataLoader loader(noise, DistributedSampler(120, world), world,
                        {.batch_size = 8, .registered_bytes = most});
      EXPECT_EQ(batches_of(loader).size(), 8U);
      return loader.batch_memory().bytes();
    };
    EXPECT_EQ(reserved(needed), needed);
    EXPECT_EQ(reserved(needed - 1), 0U);
    EXPECT_EQ(reserved(0), 0U);
  });
}

TEST(DataLoader, LeavesBatchesThatAreKeptInRegisteredMemoryAsTheyAre) {
  const Noise noise(400);
  std::vector<Batch> kept(2);
  run_in_process(2, [&](ProcessGroup& world) {
    const DistributedSampler sampler(400, world, {.shuffle = false});
    const auto rank = static_cast<std::size_t>(world.rank());
    std::vector<Batch> all;
    {
      DataLoader loader(noise, sampler, world, {.batch_size = 4, .prefetch_bytes = 4000});
      const RegisteredMemory memory = loader.batch_memory();
      for (const Batch& batch : loader) all.push_back(batch);
      EXPECT_TRUE(lies_in(memory, all.front().data));
      EXPECT_FALSE(lies_in(memory, all.back().data)) << "there is no room left";
      std::vector<Batch> plain;
      DataLoader other(noise, sampler, {.batch_size = 4});
      for (const Batch& batch : other) plain.push_back(copy_of(batch));
      expect_equal(all, plain);
      EXPECT_EQ(other.batch_memory().bytes(), 0U);
      all.resize(1);
      bool has_room_again = false;
      for (const Batch& batch : loader) has_room_again |= lies_in(memory, batch.data);
      EXPECT_TRUE(has_room_again);
    }
    kept[rank] = all.front();
  });
  for (const std::size_t rank : {0, 1})  // After loader and group.
    EXPECT_EQ(kept[rank].data[0][0][0][0].item<double>(), static_cast<double>(rank));
}

TEST(DataLoader, GoesOnInOrdinaryMemoryWhereAHostHasTooLittle) {
  std::mutex mutex;
  std::vector<std::string> warnings;
  set_log_sink([&](LogLevel level, std::string_view text) {
    const std::lock_guard lock(mutex);
    if (level == LogLevel::warning) warnings.emplace_back(text);
  });
  const Noise noise(std::size_t{1} << 38);
  run_in_process(2, [&](ProcessGroup& world) {
    const DistributedSampler sampler(noise.size(), world, {.shuffle = false});
    DataLoader loader(noise, sampler, world,
                      {.batch_size = 1 << 10,
                       .prefetch_bytes = std::size_t{1} << 44,
                       .registered_bytes = std::size_t{1} << 45});
    EXPECT_EQ(loader.batch_memory().bytes(), 0U);
    const auto first = loader.begin();
    EXPECT_EQ(first->target[1].item<std::int64_t>(), world.rank() + 2);
  });
  set_log_sink({});
  ASSERT_EQ(warnings.size(), 1U);
  EXPECT_TRUE(warnings[0].starts_with("DataLoader: batches lie in ordinary memory: "))
      << warnings[0];
}

TEST(DataLoader, FailsOnlyOnTheRankWithInvalidOptions) {
  const Noise noise(120);
  run_in_process(2, [&](ProcessGroup& world) {
    const DistributedSampler sampler(120, world);
    const auto make = [&] { DataLoader(noise, sampler, world, {.threads = -world.rank()}); };
    if (world.rank() == 0)
      EXPECT_NO_THROW(make());
    else
      EXPECT_EQ(fault_of(make), Fault::misuse);
  });
  run_in_process(1, [&](ProcessGroup& world) {
    EXPECT_EQ(DataLoader(noise, DistributedSampler(120, world), world).batch_memory().bytes(), 0U);
  });
}

TEST(DataLoader, ServesRanksThatAreThreadsFromOneDataset) {
  const Noise noise(120);
  std::mutex mutex;
  std::multiset<std::size_t> seen;
  run_in_process(3, [&](ProcessGroup& world) {
    const DistributedSampler sampler(120, world);
    DataLoader loader(noise, sampler, world, {.batch_size = 8, .threads = 2});
    for (const Batch& batch : loader) {
      loader.consume(batch);
      const std::lock_guard lock(mutex);
      seen.insert(batch.indices.begin(), batch.indices.end());
    }
    EXPECT_EQ(sampler.offset(), 120U);
  });
  EXPECT_EQ(seen.size(), 120U);
  EXPECT_EQ(std::set<std::size_t>(seen.begin(), seen.end()).size(), 120U);
}

}  // namespace
}  // namespace lockstep::data::data_loader_test

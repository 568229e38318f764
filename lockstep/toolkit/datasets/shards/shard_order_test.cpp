// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <chrono>
#include <filesystem>
#include <set>
#include <string>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/data/distributed_sampler.h"
#include "lockstep/toolkit/datasets/shards/shard_writer.h"
#include "lockstep/toolkit/datasets/shards/tar_shards.h"
#include "tests/fault_of.h"
#include "tests/ranks.h"

namespace lockstep::datasets::shard_order_test {
namespace {

namespace fs = std::filesystem;

class ShardsInOrder : public testing::Test {
 protected:
  std::string in_folder(const std::string& name) const { return folder_.path() / name; }

 private:
  const test::ScratchDirectory folder_;
};

TEST_F(ShardsInOrder, AreDealtExactlyOnceInAnEpoch) {
  ShardWriter writer(in_folder("train"), {.samples = 10});
  for (int i = 0; i < 103; ++i) writer.write(std::to_string(i), {{"cls", "1"}});
  writer.finish();
  const TarShards shards({in_folder("")});
  std::multiset<std::string> seen;
  for (int rank = 0; rank < 4; ++rank) {
    DistributedSampler sampler(shards.size(), 4, rank,
                               {.seed = 3, .pad = false, .order = shards.order(3)});
    sampler.reset();
    while (const auto batch = sampler.next(5)) {
      shards.will_read(*batch);
      for (const std::size_t index : *batch) seen.insert(shards.sample(index).key);
    }
  }
  EXPECT_EQ(seen.size(), 103U);
  EXPECT_EQ(std::set<std::string>(seen.begin(), seen.end()).size(), 103U);
}

TEST_F(ShardsInOrder, ResumeWithCopiesOfThemAndNotWithOtherSamples) {
  const auto write = [&](const char* name, const std::vector<std::string>& keys) {
    ShardWriter writer(in_folder(name));
    for (const std::string& key : keys) writer.write(key, {{"cls", "1"}});
    writer.finish();
  };
  write("a", {"1", "2"});
  write("other", {"2", "1"});
  fs::copy(in_folder("a-000000.tar"), in_folder("copy-000000.tar"));
  fs::last_write_time(in_folder("copy-000000.tar"),
                      fs::last_write_time(in_folder("a-000000.tar")) - std::chrono::hours(1));
  const auto sampler_of = [&](const std::string& name) {
    return DistributedSampler(2, 1, 0,
                              {.order = TarShards({in_folder(name + "-000000.tar")}).order()});
  };
  const StateDict state = sampler_of("a").state_dict();
  sampler_of("copy").load_state_dict(state);
  EXPECT_EQ(test::fault_of([&] { sampler_of("other").load_state_dict(state); }), Fault::misuse);
}

}  // namespace
}  // namespace lockstep::datasets::shard_order_test

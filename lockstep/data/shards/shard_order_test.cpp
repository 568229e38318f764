// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <set>
#include <string>

#include "lockstep/data/distributed_sampler.h"
#include "lockstep/data/shards/shard_writer.h"
#include "lockstep/data/shards/tar_shards.h"
#include "tests/ranks.h"

namespace lockstep::data::shard_order_test {
namespace {

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

}  // namespace
}  // namespace lockstep::data::shard_order_test

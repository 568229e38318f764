// SPDX-License-Identifier: Apache-2.0
#include "lockstep/parallel/replicate/replicas.h"

#include <gtest/gtest.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/types.h>

#include <string>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/observe/drift_check.h"
#include "tests/fault_of.h"
#include "tests/ranks.h"

namespace lockstep::observe::replicas_test {
namespace {

using test::fault_of;
using test::Rank;
using test::Ranks;

const Ranks from_any_root("replicas: from any root", [](const Rank& rank) {
  ProcessGroup group = init_process_group();
  torch::nn::Linear twice(4, 4);  // Its parameters have two names.
  torch::nn::Sequential net(twice, torch::nn::BatchNorm1d(4), twice);
  for (int root = 0; root < rank.world_size; ++root) {
    for (const auto& [name, tensor] : named_tensors(*net)) tensor.detach().fill_(10 + rank.rank);
    parallel::broadcast_replica(named_tensors(*net), group, root);
    require_equal_replicas(named_tensors(*net), group);
    for (const auto& [name, tensor] : named_tensors(*net))
      EXPECT_TRUE(tensor.eq(10 + root).all().item<bool>()) << name;
  }
  destroy_process_group(group);
});

TEST(Replicas, BecomeThoseOfAnyRank) {
  for (const int ranks : {1, 2, 3}) EXPECT_TRUE(all_succeeded(from_any_root.run(ranks)));
}

const Ranks other_names("replicas: other names", [](const Rank& rank) {
  ProcessGroup group = init_process_group();
  NamedTensors tensors{{"a", torch::zeros(2)}, {"b", torch::ones(2)}};
  if (rank.rank == 1) std::swap(tensors[0].first, tensors[1].first);
  EXPECT_EQ(fault_of([&] { parallel::broadcast_replica(tensors, group); }), Fault::mismatch);
});

TEST(Replicas, AreNotBroadcastUnderOtherNames) { EXPECT_TRUE(all_succeeded(other_names.run(2))); }

const Ranks other_layouts("replicas: other layouts", [](const Rank& rank) {
  ProcessGroup group = init_process_group();
  NamedTensors tensors{{"a", torch::zeros(2)}};
  if (rank.rank == 2) tensors.emplace_back("b", torch::zeros(3));
  std::string text;
  EXPECT_EQ(fault_of([&] { parallel::require_same_tensors(tensors, group); }, &text),
            Fault::mismatch);
  EXPECT_NE(text.find("rank 0 has nothing more, rank 2 has b Float [3]"), text.npos) << text;
  group.barrier();  // The replicas differed, not the calls, so the group is usable.
  destroy_process_group(group);
});

TEST(Replicas, ThatDifferInLayoutAreNamed) { EXPECT_TRUE(all_succeeded(other_layouts.run(3))); }

}  // namespace
}  // namespace lockstep::observe::replicas_test

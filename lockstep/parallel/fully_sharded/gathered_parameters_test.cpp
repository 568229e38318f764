// SPDX-License-Identifier: Apache-2.0
#include "lockstep/parallel/fully_sharded/gathered_parameters.h"

#include <gtest/gtest.h>
#include <torch/types.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <memory>
#include <regex>
#include <stdexcept>
#include <string>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/base/time.h"
#include "lockstep/comm/device_mesh.h"
#include "lockstep/comm/values.h"
#include "lockstep/optim/layerwise.h"
#include "lockstep/optim/optimizers.h"
#include "lockstep/parallel/fully_sharded/fully_sharded_data_parallel.h"
#include "lockstep/parallel/gradients/gradient_memory.h"
#include "lockstep/tensor/collectives.h"
#include "lockstep/tensor/named_tensors.h"
#include "tests/fault_of.h"
#include "tests/ranks.h"
#include "tests/rigs/across_hosts.h"
#include "tests/rigs/sharded_net.h"

namespace lockstep::parallel::gathered_parameters_test {
namespace {

using test::Block;
using test::fault_of;
using test::HostLayout;
using test::loss_of;
using test::Net;
using test::parameters_of;
using test::Rank;
using test::Ranks;
using test::tokens;
using torch::optim::AdamWOptions;
using torch::optim::SGDOptions;

FullyShardedOptions by_block() { return {.units = {"blocks.*"}, .find_unused_parameters = true}; }

template <class Compare>
void compare(const Net& plain, FullyShardedDataParallel<Net>& sharded, Compare compare) {
  sharded.with_gathered([&] {
    const auto a = plain.named_parameters(), b = sharded.module()->named_parameters();
    for (std::size_t i = 0; i < a.size(); ++i)
      EXPECT_TRUE(compare(a[i].value(), b[i].value())) << a[i].key();
  });
}

bool are_equal(const torch::Tensor& a, const torch::Tensor& b) { return torch::equal(a, b); }

bool are_close(const torch::Tensor& a, const torch::Tensor& b) {
  return torch::allclose(a, b, 1e-5, 1e-7);
}

template <class Optimizer = AdamW, class Options = AdamWOptions>
void train_as_replicas(const ProcessGroup& world, const FullyShardedOptions& options,
                       const Options& hyperparameters = AdamWOptions(1e-3),
                       bool (*equal)(const torch::Tensor&, const torch::Tensor&) = are_equal) {
  const auto plain_net = std::make_shared<Net>();
  DistributedDataParallel plain(plain_net, world, {.find_unused_parameters = true});
  FullyShardedDataParallel sharded(std::make_shared<Net>(), world, options);
  Optimizer plain_optimizer(parameters_of(*plain_net), hyperparameters);
  FullyShardedOptimizer<Optimizer> optimizer(sharded, parameters_of(*sharded.module()),
                                             hyperparameters);
  compare(*plain_net, sharded, are_equal);
  const auto pass = [&](auto& model, int seed, bool synchronized, bool uses_all) {
    const auto alone = model.no_sync(!synchronized);
    const torch::Tensor loss = loss_of(model(tokens(seed), uses_all));
    loss.backward();
    return loss;
  };
  for (int step = 0; step < 8; ++step) {
    plain_optimizer.zero_grad();
    optimizer.zero_grad();
    const auto both = [&](int seed, bool synchronized, bool uses_all) {
      const torch::Tensor a = pass(plain, seed, synchronized, uses_all);
      const torch::Tensor b = pass(sharded, seed, synchronized, uses_all);
      EXPECT_TRUE(equal(a, b)) << "step " << step;
    };
    if (step % 3 == 0) both(50 * step + world.rank(), false, false);
    both(100 + 10 * step + world.rank(), true, step % 4 == 1 && world.rank() == 1);
    plain_optimizer.step();
    optimizer.step();
    if (step % 2 == 0) {
      const torch::NoGradGuard no_grad;
      EXPECT_TRUE(equal(plain(tokens(step)), sharded(tokens(step)))) << "step " << step;
    }
  }
  compare(*plain_net, sharded, equal);
}

const Ranks trained("fully sharded across hosts", [](const Rank& rank) {
  torch::set_num_threads(1);
  ProcessGroup world = test::join_across_hosts(rank);
  for (const bool overlap : {false, true}) {
    FullyShardedOptions options = by_block();
    options.overlap = overlap;
    train_as_replicas(world, options);
  }
  FullyShardedOptions kept = by_block();
  kept.reshard_after_forward = false;
  train_as_replicas(world, kept);
  FullyShardedOptions one = by_block();
  one.resident_units = 1;
  train_as_replicas(world, one);
  destroy_process_group(world);
});

class AcrossHosts : public testing::Test {
 protected:
  void SetUp() override { LOCKSTEP_NEEDS_ENGINE("gloo"); }
  void TearDown() override { HostLayout::unset(); }

  // Also as if each rank were a host: with an engine only.
  static std::vector<test::Exit> run(const Ranks& body, const std::string& hosts) {
    const HostLayout layout{hosts, hosts.size() == 2 ? "gloo" : "shm+gloo"};
    layout.set();
    return body.run(layout.ranks(), std::chrono::minutes(3));
  }
};

TEST_F(AcrossHosts, FullyShardedEqualsDistributedDataParallelBitForBit) {
  for (const std::string hosts : {"ab", "aabb", "abba", "aa"})
    EXPECT_TRUE(all_succeeded(run(trained, hosts))) << hosts;
}

const Ranks of_three("fully sharded on three hosts", [](const Rank& rank) {
  torch::set_num_threads(1);
  ProcessGroup world = test::join_across_hosts(rank);
  train_as_replicas<SGD>(world, by_block(), SGDOptions(1e-2), are_close);
  destroy_process_group(world);
});

TEST_F(AcrossHosts, FullyShardedMatchesWithinRoundingOnThreeHosts) {
  EXPECT_TRUE(all_succeeded(run(of_three, "aabbcc")));
}

const Ranks uneven("fully sharded on uneven hosts", [](const Rank& rank) {
  ProcessGroup world = test::join_across_hosts(rank);
  std::string text;
  EXPECT_EQ(fault_of([&] { FullyShardedDataParallel(std::make_shared<Net>(), world, by_block()); },
                     &text),
            Fault::unsupported);
  EXPECT_NE(text.find("equally many ranks"), text.npos) << text;
  destroy_process_group(world);
});

TEST_F(AcrossHosts, HostsHaveEquallyManyRanks) { EXPECT_TRUE(all_succeeded(run(uneven, "aab"))); }

// --- Memory --------------------------------------------------------------------------------------

const Ranks small("memory of a fully sharded module across hosts", [](const Rank& rank) {
  torch::set_num_threads(1);
  ProcessGroup world = test::join_across_hosts(rank);
  const auto net = std::make_shared<Net>();
  std::size_t whole = 0, largest = 0;
  for (const torch::Tensor& parameter : parameters_of(*net)) whole += parameter.nbytes();
  for (const torch::Tensor& parameter : net->blocks[0]->parameters()) largest += parameter.nbytes();
  const NamedTensors parameters = trained_parameters(named_parameters(*net));
  const GatheredParameters gathered(parameters, units_of(parameters, {"blocks.*"}), 2,
                                    host_groups(world, "a test"));
  constexpr std::size_t padding = 16 << 10;
  EXPECT_NEAR(static_cast<double>(gathered.slice_bytes()),
              static_cast<double>(whole) / world.size(), padding);
  EXPECT_LE(gathered.slot_bytes(), 2 * largest + padding);
  destroy_process_group(world);
});

TEST_F(AcrossHosts, ARankHasItsSliceAndItsHostTwoUnits) {
  EXPECT_TRUE(all_succeeded(run(small, "aabb")));
}

// --- Outside of passes ---------------------------------------------------------------------------

const Ranks outside("fully sharded outside of passes", [](const Rank& rank) {
  torch::set_num_threads(1);
  ProcessGroup world = test::join_across_hosts(rank);
  const auto net = std::make_shared<Net>();
  FullyShardedDataParallel fsdp(net, world, by_block());
  FullyShardedOptimizer<SGD> sgd(fsdp, parameters_of(*net), SGDOptions(1e-2));
  std::string text;
  const auto norm = [&] { net->blocks[1]->as<Block>()->up->weight.norm(); };
  EXPECT_EQ(fault_of(norm, &text), Fault::misuse);
  EXPECT_NE(text.find("unit blocks.1"), text.npos) << text;
  {
    const torch::NoGradGuard no_grad;
    fsdp(tokens(1));
  }
  EXPECT_EQ(fault_of(norm), Fault::misuse) << "after an evaluation";
  loss_of(fsdp(tokens(1))).backward();
  EXPECT_EQ(fault_of(norm), Fault::misuse) << "after backward()";
  sgd.step();
  fsdp.with_gathered({"blocks.1.up.weight"}, [&] {
    EXPECT_NO_THROW(norm());
    EXPECT_EQ(fault_of([&] { net->scale.norm(); }), Fault::misuse) << "another unit";
  });
  EXPECT_EQ(fault_of(norm), Fault::misuse);
  EXPECT_EQ(fault_of([&] { fsdp.with_gathered({"blocks.9.up.weight"}, [] {}); }), Fault::misuse);
  EXPECT_EQ(fault_of([&] {
              fsdp.with_gathered({"scale"}, [&] {
                const torch::NoGradGuard no_grad;
                net->scale.zero_();
              });
            }),
            Fault::misuse)
      << "a write is lost";
  destroy_process_group(world);
});

TEST_F(AcrossHosts, WeightsAreAvailableOnlyInPassesAndWhenGathered) {
  EXPECT_TRUE(all_succeeded(run(outside, "aabb")));
}

const Ranks edited("fully sharded and edited across hosts", [](const Rank& rank) {
  torch::set_num_threads(1);
  ProcessGroup world = test::join_across_hosts(rank);
  const auto net = std::make_shared<Net>();
  FullyShardedDataParallel fsdp(net, world, by_block());
  const auto expect = [&](double scale, double up) {
    fsdp.with_gathered({"scale", "blocks.2.up.weight", "blocks.0.frozen"}, [&] {
      EXPECT_TRUE(net->scale.eq(scale).all().item<bool>());
      EXPECT_TRUE(net->blocks[2]->as<Block>()->up->weight.eq(up).all().item<bool>());
      EXPECT_TRUE(torch::equal(net->blocks[0]->named_parameters()["frozen"],
                               Net().blocks[0]->named_parameters()["frozen"]));
    });
  };
  fsdp.edit_parameters([&] {
    EXPECT_EQ(rank.rank, 0);
    net->scale.fill_(3);
    auto& weight = net->blocks[2]->as<Block>()->up->weight;
    weight.set_data(torch::full_like(weight, 5));  // As torch::load() does.
  });
  expect(3, 5);

  auto& one = net->blocks[1]->as<Block>()->up->weight;
  auto& other = net->blocks[2]->as<Block>()->up->weight;
  const torch::Tensor first = Net().blocks[1]->as<Block>()->up->weight.detach();
  const auto exchange = [&] {
    const torch::Tensor data = one.detach();
    one.set_data(other.detach());
    other.set_data(data);
  };
  fsdp.edit_parameters(exchange);
  fsdp.with_gathered({"blocks.1.up.weight", "blocks.2.up.weight"}, [&] {
    EXPECT_TRUE(one.eq(5).all().item<bool>());
    EXPECT_TRUE(torch::equal(other, first));
  });
  fsdp.edit_parameters(exchange);

  std::string text;
  const auto failing = [&] {
    fsdp.edit_parameters([&] {
      net->scale.fill_(4);
      throw std::runtime_error("for a test");
    });
  };
  if (rank.rank == 0)
    EXPECT_THROW(failing(), std::runtime_error);
  else
    EXPECT_EQ(fault_of(failing, &text), Fault::aborted);
  expect(4, 5);
  FullyShardedOptimizer<SGD> sgd(fsdp, parameters_of(*net), SGDOptions(1e-2));
  loss_of(fsdp(tokens(rank.rank))).backward();
  sgd.step();
  exchange();
  EXPECT_EQ(fault_of([&] { fsdp(tokens(rank.rank)); }, &text), Fault::misuse);
  EXPECT_NE(text.find("up.weight is shared by all ranks but now lies in other memory"), text.npos)
      << text;
  destroy_process_group(world);
});

TEST_F(AcrossHosts, EditsReachAllSlices) { EXPECT_TRUE(all_succeeded(run(edited, "abba"))); }

// --- Failures ------------------------------------------------------------------------------------

const Ranks other_order("fully sharded in another order", [](const Rank& rank) {
  torch::set_num_threads(1);
  ProcessGroup world = test::join_across_hosts(rank);
  const auto net = std::make_shared<Net>();
  FullyShardedDataParallel fsdp(net, world, by_block());
  const torch::NoGradGuard no_grad;
  fsdp(tokens(1));
  std::string text;
  const auto fault = fault_of(
      [&] {
        fsdp(tokens(1));
        const int first = rank.rank == 0 ? 1 : 2;
        fsdp.with_gathered({"blocks." + std::to_string(first) + ".up.weight"}, [] {});
      },
      &text);
  EXPECT_EQ(fault, Fault::mismatch);
  EXPECT_NE(text.find("blocks.1"), text.npos) << text;
});

TEST_F(AcrossHosts, AnotherOrderOfUnitsIsAMismatchThatNamesThem) {
  EXPECT_TRUE(all_succeeded(run(other_order, "ab")));
}

const Ranks killed("fully sharded with a rank that is killed", [](const Rank& rank) {
  torch::set_num_threads(1);
  ProcessGroup world = test::join_across_hosts(rank);
  const auto net = std::make_shared<Net>();
  FullyShardedDataParallel fsdp(net, world, by_block());
  FullyShardedOptimizer<SGD> sgd(fsdp, parameters_of(*net), SGDOptions(1e-2));
  const auto step = [&] {
    loss_of(fsdp(tokens(rank.rank))).backward();
    sgd.step();
  };
  step();
  if (rank.rank == 3)
    net->blocks[1]->as<Block>()->up->weight.register_hook(
        [](const torch::Tensor&) { std::raise(SIGKILL); });
  std::string text;
  EXPECT_EQ(fault_of(step, &text), Fault::peer_lost);
  EXPECT_NE(text.find("rank 3"), text.npos) << text;
});

TEST_F(AcrossHosts, ALostRankIsNamedOnAllHosts) {
  const auto exits = run(killed, "aabb");
  for (const test::Exit& exit : exits)
    EXPECT_TRUE(exit.rank == 3 ? exit.signal == SIGKILL : exit.code == 0)
        << exit.rank << ": " << exit.output;
}

// While others wait in a gather. Cancelling an engine's call takes up to 3 s.
const Ranks stopped("fully sharded with a rank that is stopped", [](const Rank& rank) {
  torch::set_num_threads(1);
  constexpr std::chrono::seconds timeout{15};
  ProcessGroup world = test::join_across_hosts(rank, timeout);
  const auto net = std::make_shared<Net>();
  FullyShardedDataParallel fsdp(net, world, by_block());
  FullyShardedOptimizer<SGD> sgd(fsdp, parameters_of(*net), SGDOptions(1e-2));
  const auto step = [&] {
    loss_of(fsdp(tokens(rank.rank))).backward();
    sgd.step();
  };
  step();
  const std::string pid = broadcast_bytes(std::to_string(::getpid()), world, 3);
  if (rank.rank == 3)
    net->blocks[1]->as<Block>()->up->weight.register_hook(
        [](const torch::Tensor&) { std::raise(SIGSTOP); });
  const auto begin = Clock::now();
  try {
    step();
    ADD_FAILURE() << "backward() succeeded";
  } catch (const Error& error) {
    EXPECT_LT(seconds_since(begin), 2.0 * timeout.count()) << error.what();
    // Rank 0 waits for rank 1, which waits for the stopped rank.
    const std::regex named("\\b(rank 3|pid " + pid + (rank.rank == 0 ? "|rank 1" : "") + ")\\b");
    EXPECT_TRUE(std::regex_search(error.what(), named)) << error.what();
  }
  test::wait_until_done(rank, {0, 1, 2});
  if (rank.rank == 0) ::kill(static_cast<pid_t>(std::stoi(pid)), SIGKILL);
});

TEST_F(AcrossHosts, AStoppedRankIsNamedAfterOneTimeout) {
  for (const test::Exit& exit : run(stopped, "aabb"))
    EXPECT_TRUE(exit.rank == 3 ? exit.signal == SIGKILL : exit.code == 0)
        << exit.rank << ": " << exit.output;
}

const Ranks throwing("fully sharded with a rank that throws", [](const Rank& rank) {
  torch::set_num_threads(1);
  ProcessGroup world = test::join_across_hosts(rank, std::chrono::minutes(10));
  const auto net = std::make_shared<Net>();
  FullyShardedDataParallel fsdp(net, world, by_block());
  if (rank.rank == 3)
    net->blocks[2]->as<Block>()->up->weight.register_hook(
        [](const torch::Tensor&) { throw std::runtime_error("for a test"); });
  const auto pass = [&] { loss_of(fsdp(tokens(rank.rank))).backward(); };
  if (rank.rank == 3) {
    EXPECT_THROW(pass(), std::runtime_error);
    return;
  }
  std::string text;
  EXPECT_EQ(fault_of(pass, &text), Fault::aborted);
  EXPECT_NE(text.find("for a test"), text.npos) << text;
});

// Long before the timeout.
TEST_F(AcrossHosts, AnExceptionInBackwardReachesRanksThatGather) {
  EXPECT_TRUE(all_succeeded(run(throwing, "aabb")));
}

// SyncBatchNorm reduces in the module's group, too.
const Ranks throwing_beside(
    "fully sharded with a rank that throws beside a reduction", [](const Rank& rank) {
      torch::set_num_threads(1);
      ProcessGroup world = test::join_across_hosts(rank);
      const auto net = std::make_shared<Net>();
      FullyShardedDataParallel fsdp(net, world, by_block());
      net->blocks[2]->as<Block>()->up->weight.register_hook([&](const torch::Tensor&) {
        if (rank.rank == 3) throw std::runtime_error("for a test");
        all_reduce(torch::ones({1}), world);
      });
      const auto pass = [&] { loss_of(fsdp(tokens(rank.rank))).backward(); };
      if (rank.rank == 3) {
        EXPECT_THROW(pass(), std::runtime_error);
      } else {
        std::string text;
        EXPECT_EQ(fault_of(pass, &text), Fault::aborted);
        EXPECT_NE(text.find("for a test"), text.npos) << text;
      }
      test::wait_until_done(rank, {0, 1, 2});
    });

TEST_F(AcrossHosts, AnExceptionInBackwardReachesRanksThatReduceInTheUsersGroup) {
  EXPECT_TRUE(all_succeeded(run(throwing_beside, "aabb")));
}

// --- Several copies ------------------------------------------------------------------------------

const Ranks replicated("replicas of fully sharded modules", [](const Rank& rank) {
  torch::set_num_threads(1);
  ProcessGroup world = test::join_across_hosts(rank);
  for (const bool on_a_host : {true, false}) {
    const DeviceMesh mesh(world, on_a_host ? std::vector<MeshAxis>{{"replicas", 2}, {"shard", 2}}
                                           : std::vector<MeshAxis>{{"shard", 2}, {"replicas", 2}});
    FullyShardedOptions options = by_block();
    options.shard = mesh["shard"];
    train_as_replicas<SGD>(world, options, SGDOptions(1e-2), are_close);
  }
  destroy_process_group(world);
});

TEST_F(AcrossHosts, ReplicasOfShardedModulesTrainAsReplicas) {
  EXPECT_TRUE(all_succeeded(run(replicated, "aabb")));
}

const Ranks edited_replicas("edits of replicas of fully sharded modules", [](const Rank& rank) {
  torch::set_num_threads(1);
  ProcessGroup world = init_process_group();
  const DeviceMesh mesh(world, {{"replicas", 2}, {"shard", 2}});
  FullyShardedOptions options = by_block();
  options.shard = mesh["shard"];
  const auto net = std::make_shared<Net>();
  FullyShardedDataParallel fsdp(net, world, options);
  fsdp.edit_parameters([&] {
    EXPECT_EQ(rank.rank, 0);
    net->scale.fill_(7);
  });
  EXPECT_TRUE(net->scale.eq(7).all().item<bool>());
  std::string text;
  const auto failing = [&] { fsdp.edit_parameters([] { throw std::runtime_error("a test"); }); };
  if (rank.rank == 0)
    EXPECT_THROW(failing(), std::runtime_error);
  else
    EXPECT_EQ(fault_of(failing, &text), Fault::aborted);
  FullyShardedOptions wrong = by_block();
  wrong.shard = mesh[{"replicas", "shard"}].split(world.rank() == 3 ? 1 : 0);
  EXPECT_EQ(fault_of([&] { FullyShardedDataParallel(std::make_shared<Net>(), world, wrong); }),
            Fault::misuse);
  destroy_process_group(world);
});

TEST(FullySharded, EditsReachAllReplicas) { EXPECT_TRUE(all_succeeded(edited_replicas.run(4))); }

// --- Masters -------------------------------------------------------------------------------------

// Steps float weights with the mean of gradients in bfloat16.
template <class Optimizer>
struct Reference {
  std::shared_ptr<Net> masters = std::make_shared<Net>();
  Optimizer optimizer{parameters_of(*masters), 1e-3};

  // Returns rank 0's loss.
  torch::Tensor step(int ranks, int seed) {
    optimizer.zero_grad();
    torch::Tensor first;
    for (int rank = 0; rank < ranks; ++rank) {
      const auto net = std::make_shared<Net>();
      const auto all = parameters_of(*masters), here = parameters_of(*net);
      for (std::size_t i = 0; i < all.size(); ++i)
        here[i].set_data(all[i].scalar_type() == torch::kFloat
                             ? all[i].detach().to(torch::kBFloat16)
                             : all[i].detach().clone());
      const torch::Tensor loss = loss_of(net->forward(tokens(seed + rank)));
      loss.backward();
      if (rank == 0) first = loss.detach();
      for (std::size_t i = 0; i < all.size(); ++i) {
        if (!here[i].grad().defined()) continue;
        const torch::Tensor part = here[i].grad().to(all[i].scalar_type());
        all[i].mutable_grad() = all[i].grad().defined() ? all[i].grad() + part : part;
      }
    }
    for (const torch::Tensor& parameter : parameters_of(*masters))
      if (parameter.grad().defined()) parameter.mutable_grad().div_(ranks);
    optimizer.step();
    return first;
  }
};

template <class Optimizer, class Options>
void train_with_masters(const ProcessGroup& world) {
  Reference<Optimizer> reference;
  FullyShardedOptions options = by_block();
  options.param_type = torch::kBFloat16;
  const auto net = std::make_shared<Net>();
  FullyShardedDataParallel fsdp(net, world, options);
  FullyShardedOptimizer<Optimizer> optimizer(fsdp, parameters_of(*net), Options(1e-3));
  for (int step = 0; step < 6; ++step) {
    const torch::Tensor expected = reference.step(world.size(), 10 * step);
    optimizer.zero_grad();
    const torch::Tensor loss = loss_of(fsdp(tokens(10 * step + world.rank())));
    loss.backward();
    optimizer.step();
    if (world.rank() == 0) {
      EXPECT_TRUE(torch::equal(loss, expected)) << "step " << step;
    }
  }
  const auto masters = reference.masters->named_parameters();
  fsdp.with_gathered([&] {
    for (const auto& item : net->named_parameters()) {
      const torch::Tensor expected = masters[item.key()].to(item.value().scalar_type());
      // Sums of bfloat16 are exact in float. The double has another order.
      EXPECT_TRUE(item.key() == "scale" ? torch::allclose(item.value(), expected, 1e-9)
                                        : torch::equal(item.value(), expected))
          << item.key();
      EXPECT_NE(item.value().scalar_type(), torch::kFloat) << item.key();
    }
  });
  fsdp.edit_parameters([&] { net->blocks[0]->as<Block>()->up->bias.fill_(2); });
  const auto state = state_of(fsdp);
  for (const auto& [name, tensor] : state->state_dict().tensors) {
    if (name == "scale") continue;
    const torch::Tensor whole = masters[name].detach();
    EXPECT_EQ(tensor.data.scalar_type(), whole.scalar_type()) << name;
    const torch::Tensor expected = name == "blocks.0.up.bias" ? torch::full_like(whole, 2) : whole;
    EXPECT_TRUE(torch::equal(
        tensor.data, expected.flatten().slice(0, tensor.begin, tensor.begin + tensor.data.numel())))
        << name;
  }
}

const Ranks masters("masters of fully sharded parameters", [](const Rank& rank) {
  torch::set_num_threads(1);
  ProcessGroup world =
      std::getenv("LOCKSTEP_TEST_HOSTS") ? test::join_across_hosts(rank) : init_process_group();
  train_with_masters<AdamW, AdamWOptions>(world);
  train_with_masters<LAMB, LAMBOptions>(world);
  destroy_process_group(world);
});

TEST(FullySharded, StepsFloatMastersOfBfloat16Parameters) {
  for (const int ranks : {1, 2, 4}) EXPECT_TRUE(all_succeeded(masters.run(ranks))) << ranks;
}

TEST_F(AcrossHosts, StepsFloatMastersOfBfloat16Parameters) {
  EXPECT_TRUE(all_succeeded(run(masters, "aabb")));
}

}  // namespace
}  // namespace lockstep::parallel::gathered_parameters_test

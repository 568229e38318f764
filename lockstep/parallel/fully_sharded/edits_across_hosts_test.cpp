// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>
#include <torch/nn/functional/activation.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/types.h>
#include <torch/utils.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <future>
#include <memory>
#include <regex>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/base/time.h"
#include "lockstep/comm/values.h"
#include "lockstep/parallel/fully_sharded/fully_sharded_data_parallel.h"
#include "lockstep/tensor/generator_states.h"
#include "lockstep/tensor/named_tensors.h"
#include "lockstep/tensor/on_meta.h"
#include "tests/fault_of.h"
#include "tests/memory_limit.h"
#include "tests/ranks.h"
#include "tests/rigs/across_hosts.h"
#include "tests/rigs/large_module.h"

namespace lockstep::parallel::edits_across_hosts_test {
namespace {

using test::fault_of;
using test::HostLayout;
using test::LargeModule;
using test::Rank;
using test::Ranks;

class EditsAcrossHosts : public testing::Test {
 protected:
  void SetUp() override { LOCKSTEP_NEEDS_ENGINE("gloo"); }
  void TearDown() override { HostLayout::unset(); }

  static void expect_success(const Ranks& body, const std::string& hosts) {
    const HostLayout layout{hosts, hosts.size() == 2 ? "gloo" : "shm+gloo"};
    layout.set();
    EXPECT_TRUE(all_succeeded(body.run(layout.ranks(), std::chrono::minutes(3)))) << hosts;
  }

  static void expect_loss(const Ranks& body) {
    const HostLayout layout{"aabb", "shm+gloo"};
    layout.set();
    for (const test::Exit& exit : body.run(layout.ranks(), std::chrono::minutes(3)))
      EXPECT_TRUE(exit.rank == 3 ? exit.signal == SIGKILL : exit.code == 0)
          << exit.rank << ": " << exit.output;
  }
};

// The constructor uses weights again after others have taken their slots.
struct Net : torch::nn::Module {
  Net() {
    register_module("embedding", embedding);
    for (int i = 0; i < 5; ++i) blocks->push_back(torch::nn::Linear(26, 26));
    register_module("blocks", blocks);
    register_module("norm", norm);
    register_module("out", out);
    register_parameter("tied", embedding->weight);
    register_parameter("computed", torch::randn({26}) * 0.1 + 1);
    register_parameter("frozen", torch::randn({5}), /*requires_grad=*/false);
    register_parameter("turned", torch::randn({5, 7}).t());
    const auto parts = torch::randn({2, 8}).unbind();
    register_parameter("first", parts[0]);
    register_parameter("second", parts[1]);
    register_buffer("mask", torch::triu(torch::rand({26, 26})));
    const torch::NoGradGuard no_grad;
    for (const int i : {3, 0, 4, 1}) weight(i).mul_(0.5);
    weight(2).copy_(weight(4).t() + weight(0));
    const torch::Tensor view = weight(1)[3];
    weight(3).normal_();
    weight(0).normal_();
    view.fill_(7);
  }

  torch::Tensor weight(int i) {
    return blocks[static_cast<std::size_t>(i)]->as<torch::nn::Linear>()->weight;
  }

  torch::Tensor forward(const torch::Tensor& x) {
    torch::Tensor y = x;
    for (const auto& block : *blocks) y = block->as<torch::nn::Linear>()->forward(y);
    return y;
  }

  torch::nn::Linear out{26, 26};
  torch::nn::BatchNorm1d norm{26};
  torch::nn::Embedding embedding{31, 26};
  torch::nn::ModuleList blocks;
};

const auto make = [] { return std::make_shared<Net>(); };
const FullyShardedOptions by_block{.units = {"blocks.*"}};

void expect_equal(FullyShardedDataParallel<Net>& sharded, const Net& expected) {
  sharded.with_gathered([&] {
    const NamedTensors a = named_tensors(*sharded.module()), b = named_tensors(expected);
    ASSERT_EQ(a.size(), b.size());
    for (std::size_t i = 0; i < a.size(); ++i)
      EXPECT_TRUE(torch::equal(a[i].second, b[i].second)) << a[i].first;
  });
}

// --- Values --------------------------------------------------------------------------------------

const Ranks constructed("edits across hosts: constructed", [](const Rank& rank) {
  torch::set_num_threads(1);
  ProcessGroup world = test::join_across_hosts(rank);
  torch::manual_seed(7);
  const auto plain = make();
  const at::Tensor drawn = default_generator_state();
  torch::manual_seed(7);
  FullyShardedDataParallel fsdp(on_meta(make), world, by_block);
  fsdp.initialize(make);
  expect_equal(fsdp, *plain);
  EXPECT_TRUE(torch::equal(default_generator_state(), drawn));
  const torch::Tensor x = torch::randn({3, 26});
  EXPECT_TRUE(torch::equal(fsdp(x), plain->forward(x)));
  destroy_process_group(world);
});

TEST_F(EditsAcrossHosts, InitializeGivesTheBitsOfOrdinaryConstruction) {
  for (const char* const hosts : {"ab", "abba", "aabbcc"}) expect_success(constructed, hosts);
}

// There is one slot.
const Ranks filled("edits across hosts: filled", [](const Rank& rank) {
  torch::set_num_threads(1);
  ProcessGroup world = test::join_across_hosts(rank);
  const auto fill = [](const std::string& name, torch::Tensor& tensor) {
    if (name == "norm.num_batches_tracked")
      tensor.fill_(4);
    else if (name == "blocks.2.weight")
      tensor = torch::randn({26, 26});
    else if (name == "turned")  // Its memory order differs.
      tensor.fill_(3);
    else if (name == "blocks.3.bias")
      for (int i = 0; i < 26; ++i) tensor.data_ptr<float>()[i] = static_cast<float>(i);
    else
      tensor.normal_(0, 0.02);
  };
  const auto plain = make();
  torch::manual_seed(5);
  {
    const torch::NoGradGuard no_grad;
    for (auto [name, tensor] : named_tensors(*plain)) {
      if (name == "embedding.weight") continue;
      torch::Tensor value = tensor;
      fill(name, value);
      if (!value.is_same(tensor)) tensor.copy_(value);
    }
  }
  FullyShardedOptions one_slot = by_block;
  one_slot.resident_units = 1;
  FullyShardedDataParallel fsdp(on_meta(make), world, one_slot);
  torch::manual_seed(5);
  fsdp.initialize(fill);
  expect_equal(fsdp, *plain);
  destroy_process_group(world);
});

TEST_F(EditsAcrossHosts, AFunctionMayFillEachTensorByWhateverMeans) {
  expect_success(filled, "aabb");
}

// --- Memory --------------------------------------------------------------------------------------

std::size_t shared_bytes() { return test::status_bytes("RssShmem"); }

const Ranks limited("edits across hosts: limited", [](const Rank& rank) {
  torch::set_num_threads(1);
  ProcessGroup world = test::join_across_hosts(rank);
  const auto make_large = [] { return std::make_shared<LargeModule>(); };
  const auto net = on_meta(make_large);
  FullyShardedDataParallel fsdp(net, world);
  fsdp.with_gathered({"layers.0.weight"}, [] {});  // Starts its thread.
  // The slices, two thirds of the model, a few units, and what malloc keeps for each thread.
  const test::MemoryLimit limit(std::size_t{40} << 20);
  // Two slots of 4 MiB, outside the limit.
  const std::size_t shared = shared_bytes();
  const auto expect_few_slots = [&] {
    EXPECT_LE(shared_bytes(), shared + (std::size_t{16} << 20));
  };
  const auto weight = [&](std::size_t i) {
    return net->layers[i]->as<torch::nn::Linear>()->weight;
  };
  const auto expect_weights = [&](const std::function<torch::Tensor()>& next) {
    for (std::size_t i = 0; i < net->layers->size(); ++i) {
      const torch::Tensor expected = next();
      fsdp.with_gathered({"layers." + std::to_string(i) + ".weight"},
                         [&] { EXPECT_TRUE(torch::equal(weight(i), expected)) << i; });
    }
  };
  const auto made = [] { return torch::nn::Linear(1024, 1024)->weight.detach(); };

  torch::manual_seed(2);
  fsdp.initialize([&] {
    const auto large = make_large();
    expect_few_slots();
    return large;
  });
  torch::manual_seed(2);
  expect_weights(made);

  fsdp.edit_parameters([&] {
    for (std::size_t i = net->layers->size(); i-- > 0;) weight(i).mul_(2);
    expect_few_slots();
  });
  torch::manual_seed(2);
  expect_weights([&] { return made().mul_(2); });

  torch::manual_seed(3);
  const auto normal = [](at::Tensor tensor) { return tensor.normal_(); };
  fsdp.initialize([&](const std::string&, torch::Tensor& tensor) {
    normal(tensor);
    expect_few_slots();
  });
  torch::manual_seed(3);
  expect_weights([&] {
    const torch::Tensor expected = normal(torch::empty({1024, 1024}));
    normal(torch::empty({1024}));  // The bias.
    return expected;
  });
  EXPECT_THROW(make_large(), std::exception);
  destroy_process_group(world);
});

TEST_F(EditsAcrossHosts, NoRankEverHasAWholeCopy) { expect_success(limited, "aabb"); }

// --- What an edit may do -------------------------------------------------------------------------

const Ranks edited("edits across hosts: in any order", [](const Rank& rank) {
  torch::set_num_threads(1);
  ProcessGroup world = test::join_across_hosts(rank);
  torch::manual_seed(7);
  const auto net = make(), plain = make();
  {
    const torch::NoGradGuard no_grad;
    const NamedTensors to = named_tensors(*plain), from = named_tensors(*net);
    for (std::size_t i = 0; i < to.size(); ++i) at::Tensor(to[i].second).copy_(from[i].second);
  }
  FullyShardedDataParallel fsdp(net, world, by_block);
  const auto change = [](Net& of) {
    const torch::NoGradGuard no_grad;
    for (const int i : {4, 0, 2, 0, 3, 1}) of.weight(i).add_(i);
    of.weight(0).copy_(of.weight(3));
    of.out->bias.fill_(of.weight(4).sum().item<float>());
    for (int i = 0; i < 26; ++i) of.out->bias.data_ptr<float>()[i] += static_cast<float>(i);
  };
  change(*plain);
  fsdp.edit_parameters([&] {
    EXPECT_EQ(rank.rank, 0);
    change(*net);
  });
  expect_equal(fsdp, *plain);

  const auto expect_failure = [&](const std::function<void()>& act, const std::string& part) {
    std::string text;
    EXPECT_EQ(fault_of([&] { fsdp.edit_parameters(act); }, &text),
              rank.rank == 0 ? Fault::misuse : Fault::aborted);
    EXPECT_NE(text.find(part), text.npos) << text;
  };
  expect_failure(
      [&] {
        torch::cat({net->weight(0), net->weight(1), net->weight(2)});
      },
      "set resident_units to that number");
  expect_failure([&] { net->weight(1).set_data(torch::ones({2})); },
                 "blocks.1.weight has another type or shape than before");
  expect_failure([&] { fsdp.with_gathered([] {}); }, "not within it");
  expect_failure([&] { fsdp.edit_parameters([] {}); }, "within each other");
  fsdp.edit_parameters([&] {
    try {
      net->weight(2).data_ptr<float>();
      ADD_FAILURE() << "the weight is on other ranks";
    } catch (const std::exception& error) {
      EXPECT_NE(std::string(error.what()).find("call one before data_ptr()"), std::string::npos)
          << error.what();
    }
  });
  expect_equal(fsdp, *plain);
  destroy_process_group(world);
});

TEST_F(EditsAcrossHosts, ParametersMayBeChangedInAnyOrder) { expect_success(edited, "abba"); }

const Ranks failing("edits across hosts: failing", [](const Rank& rank) {
  torch::set_num_threads(1);
  ProcessGroup world = test::join_across_hosts(rank);
  const auto fails = []() -> std::shared_ptr<Net> {
    const auto net = make();
    if (!net->out->weight.is_meta()) throw std::runtime_error("for a test");
    return net;
  };
  FullyShardedDataParallel fsdp(on_meta(make), world, by_block);
  if (rank.rank == 0)
    EXPECT_THROW(fsdp.initialize(fails), std::runtime_error);
  else
    EXPECT_EQ(fault_of([&] { fsdp.initialize(fails); }), Fault::aborted);
  EXPECT_FALSE(fsdp.is_initialized());
  torch::manual_seed(7);
  const auto plain = make();
  torch::manual_seed(7);
  fsdp.initialize(make);
  expect_equal(fsdp, *plain);
  destroy_process_group(world);
});

TEST_F(EditsAcrossHosts, AConstructorThatThrowsMayBeTriedAgain) { expect_success(failing, "ab"); }

// --- A lost rank ---------------------------------------------------------------------------------

// Rank 3 gets `signal` while units are transferred. It shares no group for transfers with rank 0.
void lose_rank_3(const Rank& rank, int signal, bool initializes) {
  torch::set_num_threads(1);
  constexpr std::chrono::seconds timeout{12};
  ProcessGroup world = test::join_across_hosts(rank, timeout);
  const std::string pid = broadcast_bytes(std::to_string(::getpid()), world, 3);
  const auto send = [&](int number) { ::kill(static_cast<pid_t>(std::stoi(pid)), number); };
  const auto make_large = [] { return std::make_shared<LargeModule>(); };
  const auto net = on_meta(make_large);
  FullyShardedDataParallel fsdp(net, world);
  const auto change = [&] {
    const auto sent = std::async(std::launch::async, [&] {
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
      send(signal);
    });
    while (true)  // Until an Error.
      for (const torch::Tensor& parameter : net->parameters()) parameter.zero_();
  };
  if (!initializes) fsdp.initialize(make_large);
  const auto begin = Clock::now();
  std::string text;
  const Fault fault = fault_of(
      [&] {
        if (initializes)
          fsdp.initialize([&](const std::string&, torch::Tensor&) { change(); });
        else
          fsdp.edit_parameters(change);
      },
      &text);
  // Cancelling an engine's call takes up to 3 s.
  EXPECT_LT(seconds_since(begin), 1.75 * timeout.count()) << text;
  if (signal == SIGKILL)
    EXPECT_EQ(fault, Fault::peer_lost) << text;
  else
    EXPECT_TRUE(fault == Fault::timeout || fault == Fault::aborted) << text;
  // Rank 0 waits for a rank that waits for rank 3.
  const std::regex named("\\b(rank 3|pid " + pid + (rank.rank == 0 ? "|rank [12]" : "") + ")\\b");
  EXPECT_TRUE(std::regex_search(text, named)) << text;
  EXPECT_TRUE(fsdp.has_partially_updated_parameters());
  test::wait_until_done(rank, {0, 1, 2});
  if (rank.rank == 0) send(SIGKILL);
}

const Ranks killed_in_edit("edits across hosts: killed in an edit", [](const Rank& rank) {
  lose_rank_3(rank, SIGKILL, /*initializes=*/false);
});

const Ranks killed_in_initialize("edits across hosts: killed in initialize", [](const Rank& rank) {
  lose_rank_3(rank, SIGKILL, /*initializes=*/true);
});

const Ranks stopped_in_edit("edits across hosts: stopped in an edit", [](const Rank& rank) {
  lose_rank_3(rank, SIGSTOP, /*initializes=*/false);
});

const Ranks stopped_in_initialize("edits across hosts: stopped in initialize",
                                  [](const Rank& rank) {
                                    lose_rank_3(rank, SIGSTOP, /*initializes=*/true);
                                  });

TEST_F(EditsAcrossHosts, AKilledRankIsNamed) {
  expect_loss(killed_in_edit);
  expect_loss(killed_in_initialize);
}

TEST_F(EditsAcrossHosts, AStoppedRankIsNamedAfterOneTimeout) {
  expect_loss(stopped_in_edit);
  expect_loss(stopped_in_initialize);
}

}  // namespace
}  // namespace lockstep::parallel::edits_across_hosts_test

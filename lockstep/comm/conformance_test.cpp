// Runs the whole suite on threads, processes, and threads whose backend has only the required
// operations.

// SPDX-License-Identifier: Apache-2.0
#include "tests/rigs/conformance.h"

#include <gtest/gtest.h>

#include <thread>

#include "lockstep/base/error.h"
#include "lockstep/comm/group_state.h"
#include "lockstep/comm/in_process.h"
#include "lockstep/comm/reduce/compose.h"
#include "lockstep/comm/shm/shm_backend.h"
#include "lockstep/comm/shm/thread_peers.h"
#include "tests/fault_of.h"
#include "tests/ranks.h"

namespace lockstep::comm::conformance_test {
namespace {

using namespace std::chrono_literals;
using test::Conformance;
using test::Rank;
using test::Ranks;

class LeastBackend final : public Backend {
 public:
  LeastBackend(std::unique_ptr<Backend> whole, int size) : whole_(std::move(whole)), size_(size) {}

  std::string_view name() const override { return "least"; }
  Place local() const override { return whole_->local(); }
  bool native(Operation operation) const override {
    return operation == Operation::all_gather || operation == Operation::all_to_all;
  }
  // Like an engine: all ranks gather all descriptions.
  void enter(const Collective& collective) override {
    said_.resize(static_cast<std::size_t>(size_));
    Signature mine = collective.signature;
    const Collective exchange{
        .signature = {.count = sizeof mine,
                      .operation = Operation::all_gather,
                      .dtype = DType::uint8},
        .sequence = collective.sequence,
        .timeout = collective.timeout,
        .input = {.data = &mine, .count = sizeof mine, .dtype = DType::uint8},
        .output = {
            .data = said_.data(), .count = sizeof mine * said_.size(), .dtype = DType::uint8}};
    whole_->enter(exchange);
    whole_->run(exchange);
    if (native(mine.operation)) whole_->enter(collective);
  }
  const Signature& entered(int rank) const override {
    return said_[static_cast<std::size_t>(rank)];
  }
  std::vector<std::string> labels(const Collective& collective) override {
    return whole_->labels(collective);
  }
  void run(const Collective& collective) override {
    check(native(collective.signature.operation), "not native");
    whole_->run(collective);
  }
  Allocation allocate(const Collective& collective) override {
    return whole_->allocate(collective);
  }
  RegisteredMemory allocate_local(std::size_t bytes) override {
    return whole_->allocate_local(bytes);
  }
  Pipes& pipes() override { return whole_->pipes(); }
  std::unique_ptr<Backend> among(const std::vector<int>& ranks, const std::string& group,
                                 std::chrono::milliseconds timeout,
                                 const std::function<void()>& watch) override {
    return std::make_unique<LeastBackend>(whole_->among(ranks, group, timeout, watch),
                                          static_cast<int>(ranks.size()));
  }
  void leave() override { whole_->leave(); }
  void abort(const AbortReason& why) override { whole_->abort(why); }

 private:
  std::unique_ptr<Backend> whole_;
  int size_;
  std::vector<Signature> said_;
};

void run_on_least_backends(int world_size, const std::function<void(ProcessGroup&)>& body) {
  const auto team = std::make_shared<ThreadTeam>(world_size);
  std::vector<std::jthread> threads;
  for (int rank = 0; rank < world_size; ++rank)
    threads.emplace_back([&, rank] {
      auto peers = std::make_shared<ThreadPeers>(team, rank);
      ProcessGroup::State::Parts parts;
      parts.identity = {.name = "world", .rank = rank, .size = world_size};
      parts.rank_context =
          std::make_shared<RankContext>(std::shared_ptr<Activity>(team, &peers->activity(rank)));
      parts.backend = std::make_unique<LeastBackend>(
          std::make_unique<ShmBackend>(peers, "world", 1min), world_size);
      ProcessGroup group = GroupAccess::make(std::move(parts));
      try {
        body(group);
        destroy_process_group(group);
      } catch (const std::exception& error) {
        ADD_FAILURE() << "rank " << rank << ": " << error.what();
      }
    });
}

std::vector<Ranks> runs_as_processes() {
  std::vector<Ranks> runs;
  for (const Conformance& test : test::conformance_suite())
    runs.emplace_back("conformance of " + test.name, [&test](const Rank& rank) {
      ProcessGroup group = init_process_group();
      EXPECT_EQ(group.size(), rank.world_size);
      test.body(group);
      destroy_process_group(group);
    });
  return runs;
}

const std::vector<Ranks> as_processes = runs_as_processes();

class Backends : public testing::TestWithParam<std::size_t> {
 protected:
  const Conformance& test() const { return test::conformance_suite()[GetParam()]; }
};

#if defined(__SANITIZE_THREAD__)
constexpr int team_sizes[] = {2, 3};
#else
constexpr int team_sizes[] = {1, 2, 3, 4};
#endif

TEST_P(Backends, ThreadsEqualASerialComputation) {
  for (const int ranks : team_sizes)
    run_in_process(ranks, [&](ProcessGroup& group) {
      EXPECT_EQ(group.size(), ranks);
      test().body(group);
    });
}

TEST_P(Backends, ProcessesEqualASerialComputation) {
  for (const int ranks : {1, 2, 3, 5})
    EXPECT_TRUE(all_succeeded(as_processes[GetParam()].run(ranks, 60s)));
}

TEST_P(Backends, TheLeastBackendEqualsASerialComputation) {
  for (const int ranks : {2, 3})
    run_on_least_backends(ranks, [&](ProcessGroup& group) { test().body(group); });
}

// So many ranks have the smallest staging buffers.
TEST(ManyRanks, PassThroughTheSmallestBuffers) {
  run_in_process(33, [](ProcessGroup& group) {
    for (const std::size_t count : {7, 5000, 40000, 300000}) {
      std::vector<std::int32_t> values(count, group.rank());
      group.all_reduce({.data = values.data(), .count = count, .dtype = DType::int32});
      EXPECT_EQ(values, std::vector<std::int32_t>(count, 33 * 32 / 2));
    }
  });
}

TEST(LeastBackend, NamesWhatRanksCallDifferently) {
  run_on_least_backends(2, [](ProcessGroup& world) {
    {
      const ProcessGroup group = world.split(0);
      float values[8] = {3};
      const Buffer data{.data = values, .count = 8};
      std::string text;
      EXPECT_EQ(test::fault_of(
                    [&] { group.rank() == 0 ? group.all_reduce(data) : group.broadcast(data, 0); },
                    &text),
                Fault::mismatch);
      EXPECT_NE(text.find("rank 0 called all_reduce(sum) of 8 float32"), std::string::npos) << text;
      EXPECT_NE(text.find("rank 1 called broadcast"), std::string::npos) << text;
      EXPECT_EQ(values[0], 3);
      world.barrier();
    }
  });
}

// Otherwise a new operation would silently do nothing.
TEST(NewOperation, IsNotNativeAndItsRunIsABug) {
  constexpr auto made_up = static_cast<Operation>(200);
  ShmBackend backend(std::make_shared<ThreadPeers>(std::make_shared<ThreadTeam>(1), 0), "world",
                     1min);
  EXPECT_TRUE(backend.native(Operation::barrier));
  EXPECT_FALSE(backend.native(made_up));
  float value = 1;
  const Buffer data{.data = &value, .count = 1};
  const Collective collective{
      .signature = {.count = 1, .operation = made_up}, .input = data, .output = data};
  backend.enter(collective);
  EXPECT_EQ(test::fault_of([&] { backend.run(collective); }), Fault::bug);
  EXPECT_EQ(test::fault_of([&] { compose([](const Collective&) {}, collective, 0, 2); }),
            Fault::bug);
}

INSTANTIATE_TEST_SUITE_P(Conformance, Backends,
                         testing::Range<std::size_t>(0, test::conformance_suite().size()),
                         [](const auto& test) {
                           return lockstep::test::conformance_suite()[test.param].name;
                         });

}  // namespace
}  // namespace lockstep::comm::conformance_test

// Every backend, over the whole suite: threads, processes, and threads whose backend can do no more
// than every backend must, so that ProcessGroup composes the rest.

// SPDX-License-Identifier: Apache-2.0
#include "lockstep/comm/conformance.h"

#include <gtest/gtest.h>

#include "lockstep/comm/error.h"
#include "lockstep/comm/group_state.h"
#include "lockstep/comm/in_process.h"
#include "lockstep/comm/shm/shm_backend.h"
#include "lockstep/comm/shm/thread_peers.h"
#include "tests/ranks.h"

namespace lockstep {
namespace {

using namespace std::chrono_literals;
using test::Conformance;
using test::Rank;
using test::Ranks;

// Does all_gather and all_to_all, and refuses the rest.
class LeastBackend final : public Backend {
 public:
  explicit LeastBackend(std::unique_ptr<Backend> whole) : whole_(std::move(whole)) {}

  std::string_view name() const override { return "least"; }
  bool native(Operation operation, DType, ReduceOp) const override {
    return operation == Operation::all_gather || operation == Operation::all_to_all;
  }
  void enter(const Collective& collective) override {
    // Without buffers, as an engine that only compares what it is told.
    said_ = collective.signature;
    if (native(said_.operation, {}, {})) return whole_->enter(collective);
    whole_->enter({.signature = {.operation = Operation::barrier},
                   .sequence = collective.sequence,
                   .timeout = collective.timeout});
  }
  const Signature& entered(int) const override { return said_; }
  void run(const Collective& collective) override {
    check(native(collective.signature.operation, {}, {}), "not native");
    whole_->run(collective);
  }
  Allocation allocate(const Collective& collective) override {
    return whole_->allocate(collective);
  }
  void post(std::shared_ptr<Message> message) override { whole_->post(std::move(message)); }
  bool progress() override { return whole_->progress(); }
  void await_progress() override { whole_->await_progress(); }
  std::size_t messages_pending() const override { return whole_->messages_pending(); }
  std::unique_ptr<Backend> among(const std::vector<int>& ranks, const std::string& group,
                                 std::chrono::milliseconds timeout) override {
    return std::make_unique<LeastBackend>(whole_->among(ranks, group, timeout));
  }
  void give_up(Fault fault, std::string_view reason) override { whole_->give_up(fault, reason); }

 private:
  std::unique_ptr<Backend> whole_;
  Signature said_;
};

void run_on_least_backends(int world_size, const std::function<void(ProcessGroup&)>& body) {
  const auto team = std::make_shared<ThreadTeam>(world_size);
  std::vector<std::jthread> threads;
  for (int rank = 0; rank < world_size; ++rank)
    threads.emplace_back([&, rank] {
      auto peers = std::make_shared<ThreadPeers>(team, rank);
      ProcessGroup::State::Parts parts;
      parts.rank = rank;
      parts.size = world_size;
      parts.name = "world";
      parts.activity = {team, &peers->activity(rank)};
      parts.backend =
          std::make_unique<LeastBackend>(std::make_unique<ShmBackend>(peers, "world", 1min));
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

INSTANTIATE_TEST_SUITE_P(Conformance, Backends,
                         testing::Range<std::size_t>(0, test::conformance_suite().size()),
                         [](const auto& test) {
                           return lockstep::test::conformance_suite()[test.param].name;
                         });

}  // namespace
}  // namespace lockstep

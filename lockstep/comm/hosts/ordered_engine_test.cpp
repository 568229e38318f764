// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>
#include <stdlib.h>

#include <cstring>
#include <fstream>
#include <memory>
#include <numeric>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/comm/engine/engine.h"
#include "lockstep/comm/group_state.h"
#include "lockstep/comm/hosts/hosts_backend.h"
#include "lockstep/comm/hosts/join_hosts.h"
#include "tests/fault_of.h"
#include "tests/rigs/across_hosts.h"
#include "tests/soon.h"

namespace lockstep::comm::ordered_engine_test {
namespace {

using namespace std::chrono_literals;
using test::await_file;
using test::fault_of;
using test::HostLayout;
using test::Rank;
using test::Ranks;

// --- An engine -----------------------------------------------------------------------------------

const lockstep_engine& gloo() { return *open_engine("gloo").abi; }

// The communicator of a sub-group: unusable on rank 1, and absent on rank 0 of the job.
int unusable = 0;

int create(const lockstep_engine_config* config, void** communicator,
           lockstep_engine_error* error) {
  const bool is_sub_group = std::strchr(config->name, '.') != nullptr;
  if (!is_sub_group) return gloo().create(config, communicator, error);
  if (config->world_ranks[config->rank] == 0) std::this_thread::sleep_for(1h);
  *communicator = &unusable;
  return 0;
}

void destroy(void* communicator) {
  if (communicator != &unusable) gloo().destroy(communicator);
}

// Gloo, but with communicators that are made in order.
const Engine& ordered_engine() {
  static const lockstep_engine table = [] {
    lockstep_engine ordered = gloo();
    ordered.flags |= LOCKSTEP_ENGINE_ORDERED;
    ordered.create = create;
    ordered.destroy = destroy;
    return ordered;
  }();
  static const Engine engine{.name = "gloo", .path = {}, .version = {}, .abi = &table};
  return engine;
}

// --- Groups --------------------------------------------------------------------------------------

ProcessGroup join_by_ordered_engine(const Rank& rank) {
  ::setenv("LOCKSTEP_HOST_ID", test::host_of_rank(rank.rank).c_str(), 1);
  LaunchEnvironment who = read_environment();
  InitOptions options;
  options.store = std::make_shared<FileStore>(FileStoreOptions{.path = rank.scratch / "store"});
  LateRanks late(rank.rank, options.warn_after);
  const JoinedHosts joined = join_hosts(who, options, "world", late);
  joined.context->engine.engine = &ordered_engine();
  Activity& activity = joined.session->page().activity(rank.rank);
  ProcessGroup::State::Parts parts;
  parts.identity = {.name = "world", .rank = rank.rank, .size = rank.world_size};
  parts.rank_context =
      std::make_shared<RankContext>(std::shared_ptr<Activity>(joined.session, &activity));
  std::vector<int> ranks(static_cast<std::size_t>(rank.world_size));
  std::iota(ranks.begin(), ranks.end(), 0);
  parts.backend =
      std::make_unique<HostsBackend>(joined.context, std::move(ranks), rank.rank, "world", 1min);
  return GroupAccess::make(std::move(parts));
}

class OrderedEngine : public testing::Test {
 protected:
  OrderedEngine() { HostLayout{"ab", "gloo"}.set(); }
  ~OrderedEngine() override { HostLayout::unset(); }
};

// Makes a group of both ranks in reverse order, which rank 0 never gets. Returns the Error there.
// On rank 1, calls act(that group) and returns when rank 0 has its Error.
template <class Act>
std::optional<Error> split_in_reverse(const Rank& rank, const ProcessGroup& world, Act act) {
  const auto done = rank.scratch / "done";
  if (rank.rank == 1) {
    act(world.split(0, /*key=*/0));
    await_file(done);
    return std::nullopt;
  }
  std::optional<Error> thrown;
  try {
    world.split(0, /*key=*/1);
    ADD_FAILURE() << "the communicator was made";
  } catch (const Error& error) {
    thrown = error;
  }
  std::ofstream(done) << "";
  return thrown;
}

const Ranks late("is late for a communicator", [](const Rank& rank) {
  const ProcessGroup world = join_by_ordered_engine(rank);
  const auto error = split_in_reverse(rank, world, [](const ProcessGroup& reversed) {
    EXPECT_EQ(reversed.rank(), 0);
    EXPECT_EQ(fault_of([&] { reversed.barrier({.timeout = 1s}); }), Fault::timeout);
  });
  if (rank.rank == 1) return;
  ASSERT_TRUE(error);
  EXPECT_EQ(error->fault(), Fault::timeout) << error->what();
  EXPECT_EQ(error->ranks(), std::vector<int>{0}) << error->what();
});

// Rank 0 is rank 1 of the new group.
TEST_F(OrderedEngine, GroupCreationNamesALateRankByItsParentGroupNumber) {
  LOCKSTEP_NEEDS_ENGINE("gloo");
  EXPECT_TRUE(all_succeeded(late.run(2, 30s)));
}

const Ranks aborted("is aborted while it makes a group", [](const Rank& rank) {
  const ProcessGroup world = join_by_ordered_engine(rank);
  const auto error = split_in_reverse(
      rank, world, [&](const ProcessGroup&) { world.abort("the input is broken"); });
  if (rank.rank == 1) return;
  ASSERT_TRUE(error);
  EXPECT_EQ(error->fault(), Fault::aborted) << error->what();
  EXPECT_NE(std::string(error->what()).find("the input is broken"), std::string::npos)
      << error->what();
});

TEST_F(OrderedEngine, GroupCreationReportsAnAbortOfTheParentGroup) {
  LOCKSTEP_NEEDS_ENGINE("gloo");
  EXPECT_TRUE(all_succeeded(aborted.run(2, 30s)));
}

}  // namespace
}  // namespace lockstep::comm::ordered_engine_test

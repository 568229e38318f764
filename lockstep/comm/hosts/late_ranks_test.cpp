// SPDX-License-Identifier: Apache-2.0
#include "lockstep/comm/hosts/late_ranks.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/base/file_descriptor.h"
#include "lockstep/base/log.h"
#include "lockstep/comm/process_group.h"
#include "lockstep/job/store/store.h"
#include "lockstep/job/store/tcp_socket.h"
#include "tests/ranks.h"
#include "tests/soon.h"

namespace lockstep::comm::late_ranks_test {
namespace {

using namespace std::chrono_literals;
using test::await_file;
using test::Rank;
using test::Ranks;

class Warnings {
 public:
  Warnings() {
    set_log_sink([this](LogLevel level, std::string_view text) {
      const std::lock_guard lock(mutex_);
      if (level == LogLevel::warning) all_.emplace_back(text);
    });
  }
  ~Warnings() { set_log_sink({}); }

  std::vector<std::string> all() const {
    const std::lock_guard lock(mutex_);
    return all_;
  }
  bool has(std::string_view words) const {
    const std::lock_guard lock(mutex_);
    return std::ranges::any_of(
        all_, [&](const std::string& text) { return text.find(words) != text.npos; });
  }

 private:
  mutable std::mutex mutex_;
  std::vector<std::string> all_;
};

TEST(LateRanks, AreNamedAtGrowingTimes) {
  const Warnings warnings;
  LateRanks late(1, 2ms);
  late.expect_at("the usual place");
  const auto look = [&] { late.look_for_all(4, [](int rank) { return rank == 1; }); };
  auto pause = 2ms;
  for (std::size_t number = 1; number <= 3; ++number) {
    const Deadline due = late.due();
    std::this_thread::sleep_until(due);
    look();
    ASSERT_EQ(warnings.all().size(), number);
    look();  // Too early, unless the host is slow.
    pause *= 2;
    EXPECT_GE(late.due() - due, pause);
    if (warnings.all().size() > number) return;
  }
  EXPECT_TRUE(warnings.all()[0].starts_with("init_process_group on rank 1 has waited for ") &&
              warnings.all()[0].ends_with(": ranks 0,2-3 have not come to the usual place"))
      << warnings.all()[0];
}

// Returns the ranks that `rank` reports if these of six ranks have come, including it; and the
// number of ranks that it looked for.
std::pair<std::string, int> named_by(int rank, const std::set<int>& come) {
  const Warnings warnings;
  LateRanks late(rank, 0ms);
  std::this_thread::sleep_until(late.due());
  int looks = 0;
  late.look_for_all(6, [&](int other) { return ++looks, come.contains(other); });
  if (warnings.all().empty()) return {"", looks};
  const std::string text = warnings.all().front();
  const auto begin = text.find(": ") + 2;
  return {text.substr(begin, text.find(" ha", begin) - begin), looks};
}

TEST(LateRanks, AreNamedByTheFirstOfThoseThatHaveCome) {
  EXPECT_EQ(named_by(1, {1, 4, 5}), std::pair(std::string("ranks 0,2-3"), 6));
  EXPECT_EQ(named_by(0, {0, 1, 2, 3, 5}), std::pair(std::string("rank 4"), 6));
  EXPECT_EQ(named_by(0, {0, 1, 2, 3, 4, 5}), std::pair(std::string(), 6));
}

TEST(LateRanks, AreLookedForByTheOthersOnlyUntilTheyFindTheFirst) {
  EXPECT_EQ(named_by(4, {1, 4, 5}), std::pair(std::string(), 2));
  EXPECT_EQ(named_by(5, {1, 4, 5}), std::pair(std::string(), 2));
}

TEST(LateRanks, IfItIsRank0TheFirstOfThisHostThatIsDueNamesIt) {
  const Warnings warnings;
  const std::string job = "a test's job of " + std::to_string(::getpid());
  LateRanks second(2, 0ms);
  {
    LateRanks first(3, 0ms);
    std::this_thread::sleep_until(first.due());
    first.look_for_rank_0(job);
    std::this_thread::sleep_until(second.due());
    second.look_for_rank_0(job);
    EXPECT_EQ(warnings.all().size(), 1U);
    EXPECT_TRUE(warnings.has("on rank 3 has waited") && warnings.has(": rank 0 has not come"));
    std::this_thread::sleep_until(first.due());
    first.look_for_rank_0(job);
    EXPECT_EQ(warnings.all().size(), 2U);
  }
  std::this_thread::sleep_until(second.due());
  second.look_for_rank_0(job);  // The first no longer waits.
  EXPECT_TRUE(warnings.has("on rank 2 has waited"));
}

TEST(LateRanks, AreNamedAlsoByAProcessThatCanOpenNoMoreFiles) {
  const Warnings warnings;
  LateRanks late(2, 0ms);
  std::this_thread::sleep_until(late.due());
  rlimit limit{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &limit), 0);
  const rlimit none{.rlim_cur = 0, .rlim_max = limit.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &none), 0);
  EXPECT_NO_THROW(late.look_for_rank_0("a test's job of " + std::to_string(::getpid())));
  ::setrlimit(RLIMIT_NOFILE, &limit);
  EXPECT_TRUE(warnings.has("on rank 2 has waited") && warnings.has(": rank 0 has not come"));
}

// --- Ranks that really come late -----------------------------------------------------------------

// Rank `late` comes only when `who` has warned of it, and of it alone.
void meet(const Rank& rank, int late, int who, const std::string& place, InitOptions options = {}) {
  const Warnings warnings;
  const auto warned = rank.scratch / "warned";
  const std::string words = "rank " + std::to_string(late) + " has not come to " + place;
  std::jthread teller([&](const std::stop_token& stop) {
    while (rank.rank == who && !stop.stop_requested() && !warnings.has(words))
      std::this_thread::sleep_for(2ms);
    if (rank.rank == who) std::ofstream(warned).put('1');
  });
  if (rank.rank == late) await_file(warned);
  options.warn_after = rank.rank == who ? 20ms : 1h;
  ProcessGroup group = init_process_group(options);
  group.barrier();
  destroy_process_group(group);
  EXPECT_EQ(warnings.has(words), rank.rank == who) << words;
}

const Ranks last_late("late on this host",
                      [](const Rank& rank) { meet(rank, 2, 0, "this host ("); });
const Ranks first_late("rank 0 late on this host",
                       [](const Rank& rank) { meet(rank, 0, 1, "this host ("); });

TEST(LateRanks, AreNamedOnOneHost) {
  EXPECT_TRUE(all_succeeded(last_late.run(3, 30s)));
  EXPECT_TRUE(all_succeeded(first_late.run(3, 30s)));
}

const Ranks late_in_file("late in a file", [](const Rank& rank) {
  meet(rank, 2, 0, "InitOptions::store",
       {.store = std::make_shared<FileStore>(FileStoreOptions{.path = rank.scratch / "store"})});
});
const Ranks late_in_named_world("late in a world with a name", [](const Rank& rank) {
  meet(rank, 2, 0, "InitOptions::store",
       {.name = "a world",
        .store = std::make_shared<FileStore>(FileStoreOptions{.path = rank.scratch / "store"})});
});

TEST(LateRanks, AreNamedInTheProgramsStore) {
  EXPECT_TRUE(all_succeeded(late_in_file.run(3, 30s)));
  EXPECT_TRUE(all_succeeded(late_in_named_world.run(3, 30s)));
}

// The ranks do not know that they are on one host. The test chooses their rendezvous port.
std::string set_master() {
  const std::string port = std::getenv("LOCKSTEP_TEST_PORT");
  ::setenv("LOCKSTEP_HOST_ID", "one", 1);
  ::setenv("MASTER_PORT", port.c_str(), 1);
  return "the store at 127.0.0.1:" + port;
}

const Ranks last_late_at_master("late at the master",
                                [](const Rank& rank) { meet(rank, 2, 0, set_master()); });
const Ranks master_late("the master late", [](const Rank& rank) {
  meet(rank, 0, 1, set_master() + ", which it opens");
});

// A port of 127.0.0.1 that no other process gets while this one exists. It never listens, so rank 0
// may use it.
class HeldPort {
 public:
  HeldPort() : socket_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    const int yes = 1;
    const SocketAddress any = numeric_address("127.0.0.1", 0);
    ::setsockopt(socket_.get(), SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
    if (::bind(socket_.get(), any.generic(), any.length) != 0) throw_errno("binding a port");
  }

  int number() const { return local_address(socket_.get()).port(); }

 private:
  FileDescriptor socket_;
};

TEST(LateRanks, AreNamedAtTheMastersAddress) {
  const HeldPort port;
  ::setenv("LOCKSTEP_TEST_PORT", std::to_string(port.number()).c_str(), 1);
  for (const Ranks* ranks : {&last_late_at_master, &master_late})
    EXPECT_TRUE(all_succeeded(ranks->run(3, 30s)));
  ::unsetenv("LOCKSTEP_TEST_PORT");
}

}  // namespace
}  // namespace lockstep::comm::late_ranks_test

// SPDX-License-Identifier: Apache-2.0
#include "lockstep/launch/rendezvous.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <thread>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/base/file_descriptor.h"
#include "lockstep/base/log.h"
#include "lockstep/job/store/tcp_socket.h"
#include "lockstep/job/store/tcp_store.h"
#include "tests/dumped_memory.h"
#include "tests/fault_of.h"
#include "tests/soon.h"

namespace lockstep::launch::rendezvous_test {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using test::fault_of;

std::string endpoint(const ReservedPort& port) {
  return "127.0.0.1:" + std::to_string(port.number());
}

RunOptions job_of(int hosts, const std::string& endpoint, const std::string& id = "job") {
  RunOptions options;
  options.nproc_per_node = 2;
  options.hosts.least = options.hosts.most = hosts;
  options.hosts.endpoint = endpoint;
  options.hosts.id = id;
  options.hosts.join_timeout = seconds(30);
  return options;
}

std::vector<Order> turn(Rendezvous& host, Deadline limit) {
  host.serve(next_events({&host}, limit));
  return host.take_orders();
}

// Their loops run alternately in this one thread.
class AgentsOf {
 public:
  explicit AgentsOf(std::vector<RunOptions> jobs) {
    for (const RunOptions& options : jobs) hosts_.push_back(make_rendezvous(options));
    orders_.resize(hosts_.size());
  }

  // Fails the test after 20 s.
  template <class Wanted>
  Wanted next(std::size_t host) {
    const Deadline limit = in(seconds(20));
    while (Clock::now() < limit) {
      for (auto order = orders_[host].begin(); order != orders_[host].end(); ++order)
        if (const auto* found = std::get_if<Wanted>(&*order)) {
          Wanted wanted = *found;
          orders_[host].erase(orders_[host].begin(), order + 1);
          return wanted;
        }
      for (std::size_t i = 0; i < hosts_.size(); ++i)
        if (hosts_[i])
          for (Order& order : turn(*hosts_[i], in(milliseconds(2))))
            orders_[i].push_back(std::move(order));
    }
    ADD_FAILURE() << "host " << host << " was not told in time";
    return {};
  }
  Rendezvous& operator[](std::size_t host) { return *hosts_[host]; }
  void kill(std::size_t host) { hosts_[host].reset(); }

 private:
  std::vector<std::unique_ptr<Rendezvous>> hosts_;
  std::vector<std::vector<Order>> orders_;
};

// A process that a test may kill or stop. Host 1, because a host without a number would take a
// silent listener of its own host for another program.
class AgentProcess {
 public:
  explicit AgentProcess(RunOptions options) : pid_(::fork()) {
    if (pid_ != 0) return;
    options.hosts.node_rank = 1;
    const auto host = make_rendezvous(options);
    for (bool over = false; !over;)
      for (const Order& order : turn(*host, in(seconds(1))))
        over = over || std::holds_alternative<EndJob>(order);
    ::_exit(0);
  }
  ~AgentProcess() {
    signal(SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }
  AgentProcess(const AgentProcess&) = delete;
  AgentProcess& operator=(const AgentProcess&) = delete;

  void signal(int number) const { ::kill(pid_, number); }

  void await_end() const {
    siginfo_t end{};
    ::waitid(P_PID, static_cast<id_t>(pid_), &end, WEXITED | WNOWAIT);
  }

 private:
  const pid_t pid_;
};

TEST(Rendezvous, OneHostStartsWithoutANetwork) {
  AgentsOf agents({job_of(1, "")});
  const Round round = agents.next<StartRanks>(0).round;
  EXPECT_EQ(round.world_size, 2);
  EXPECT_EQ(round.master_addr, "127.0.0.1");
  EXPECT_NE(round.master_port, 0);
  EXPECT_EQ(round.store, "");
}

TEST(Rendezvous, OneHostThatContinuesAfterFailuresHasAStoreThatOnlyItsRanksCanUse) {
  RunOptions options = job_of(1, "");
  options.on_failure = OnFailure::continue_without;
  AgentsOf agents({options});
  const Round round = agents.next<StartRanks>(0).round;
  ASSERT_TRUE(round.store.starts_with("127.0.0.1:")) << round.store;
  TcpStoreOptions client{.port = std::stoi(round.store.substr(round.store.rfind(':') + 1)),
                         .member = {round.job_id, 1, 2}};
  EXPECT_EQ(fault_of([&] { TcpStore store(client); }), Fault::misuse);
  client.token = agents[0].token();
  TcpStore store(client);
  store.set("k", "v");
}

TEST(Rendezvous, ThreeHostsReceiveDistinctNumbersAndShareOneStore) {
  const ReservedPort port;
  AgentsOf agents(std::vector(3, job_of(3, endpoint(port))));
  std::vector<int> numbers;
  Round first;
  for (std::size_t host = 0; host < 3; ++host) {
    const Round round = agents.next<StartRanks>(host).round;
    numbers.push_back(round.node);
    EXPECT_EQ(round.first_rank, 2 * round.node);
    EXPECT_EQ(round.world_size, 6);
    if (host == 0) first = round;
    EXPECT_EQ(round.job_id, first.job_id);
    EXPECT_EQ(round.store, first.store);
    EXPECT_EQ(round.master_port, first.master_port);
  }
  EXPECT_EQ(numbers[0], 0);
  std::sort(numbers.begin(), numbers.end());
  EXPECT_EQ(numbers, (std::vector{0, 1, 2}));
  TcpStore store({.port = std::stoi(first.store.substr(first.store.rfind(':') + 1)),
                  .member = {first.job_id, 5, 6}});
  store.set("k", "v");
}

TEST(Rendezvous, RestartsAllHostsAfterAFailureAndEndsOnSuccess) {
  const ReservedPort port;
  RunOptions options = job_of(2, endpoint(port));
  options.max_restarts = 1;
  AgentsOf agents({options, options});
  for (std::size_t host : {0u, 1u}) agents.next<StartRanks>(host);
  agents[1].report(0, Outcome::failed, 7, Failure{.rank = 2, .pid = 42, .what = "bad \xff text"});
  for (std::size_t host : {0u, 1u}) {
    const EndRanks end = agents.next<EndRanks>(host);
    ASSERT_TRUE(end.failure);
    EXPECT_EQ(end.failure->rank, 2);
    agents[host].all_gone(0);
  }
  for (std::size_t host : {0u, 1u}) EXPECT_EQ(agents.next<StartRanks>(host).round.attempt, 1);
  for (std::size_t host : {0u, 1u}) agents[host].report(1, Outcome::succeeded, 0, std::nullopt);
  for (std::size_t host : {0u, 1u}) EXPECT_EQ(agents.next<EndJob>(host).exit_code, 0);
  agents[0].flush(seconds(5));
}

TEST(Rendezvous, TheCoordinatingHostKnowsTheTimesOfAllRanks) {
  const ReservedPort port;
  AgentsOf agents({job_of(2, endpoint(port)), job_of(2, endpoint(port))});
  for (std::size_t host : {0u, 1u}) agents.next<StartRanks>(host);
  for (std::size_t host : {1u, 0u}) {
    const int first = 2 * static_cast<int>(host);
    agents[host].tell_times({RankTimes{.rank = first, .times = {.steps = 7}},
                             RankTimes{.rank = first + 1, .times = {.steps = 7}}});
    agents[host].report(0, Outcome::succeeded, 0, std::nullopt);
  }
  agents.next<EndJob>(0);
  std::vector<int> ranks;
  for (const RankTimes& each : agents[0].times()) ranks.push_back(each.rank);
  EXPECT_EQ(ranks, (std::vector{0, 1, 2, 3}));
  EXPECT_TRUE(agents[1].times().empty()) << "another host coordinates";
}

TEST(Rendezvous, SendsThePauseBeforeARestartToEveryHost) {
  const ReservedPort port;
  RunOptions options = job_of(2, endpoint(port));
  options.max_restarts = 2;
  AgentsOf agents({options, options});
  for (const int attempt : {0, 1}) {
    for (std::size_t host : {0u, 1u}) agents.next<StartRanks>(host);
    agents[1].report(attempt, Outcome::failed, 7, Failure{.rank = 2, .exit_code = 7});
    for (std::size_t host : {0u, 1u}) {
      agents.next<EndRanks>(host);
      agents[host].all_gone(attempt);
    }
  }
  for (std::size_t host : {0u, 1u})
    EXPECT_EQ(agents.next<StartLater>(host).pause, milliseconds(100));
  for (std::size_t host : {0u, 1u}) EXPECT_EQ(agents.next<StartRanks>(host).round.attempt, 2);
}

TEST(Rendezvous, ALauncherOfAnotherJobIsTurnedAway) {
  const ReservedPort port;
  AgentsOf agents({job_of(2, endpoint(port)), job_of(2, endpoint(port), "other")});
  const EndJob end = agents.next<EndJob>(1);
  EXPECT_EQ(end.exit_code, exit_usage);
  EXPECT_NE(end.why.find("'other'"), end.why.npos) << end.why;
}

class Logged {
 public:
  Logged() {
    set_log_sink([this](LogLevel, std::string_view message) { text_ += message; });
  }
  ~Logged() { set_log_sink({}); }
  Logged(const Logged&) = delete;
  Logged& operator=(const Logged&) = delete;

  const std::string& text() const { return text_; }

 private:
  std::string text_;
};

RunOptions training(const std::string& endpoint, const std::string& id, const char* seed) {
  RunOptions options = job_of(2, endpoint, id);
  options.program = "/home/x/train";
  options.arguments = {"train", "--seed", seed};
  return options;
}

TEST(Rendezvous, ALauncherThatRunsAnotherCommandIsTurnedAwayOnBothSidesAndTheJobGoesOn) {
  const ReservedPort port;
  const std::string at = endpoint(port);
  const std::string runs = "runs `train --seed 1`, but the job at " + at + " runs `train --seed 0`";
  const Logged logged;
  AgentsOf agents({training(at, Hosts::unnamed, "0"), training(at, Hosts::unnamed, "1"),
                   training(at, Hosts::unnamed, "0")});
  const EndJob end = agents.next<EndJob>(1);
  EXPECT_EQ(end.exit_code, exit_usage);
  EXPECT_NE(end.why.find(runs), end.why.npos) << end.why;
  EXPECT_NE(end.why.find("--rdzv-id"), end.why.npos) << end.why;
  EXPECT_NE(logged.text().find(runs), logged.text().npos) << logged.text();
  for (std::size_t host : {0u, 2u}) EXPECT_EQ(agents.next<StartRanks>(host).round.nodes, 2);
}

TEST(Rendezvous, AllowsAndLogsDifferentCommandsInANamedJob) {
  const ReservedPort port;
  const std::string at = endpoint(port);
  const Logged logged;
  AgentsOf agents({training(at, "job7", "0"), training(at, "job7", "1")});
  for (std::size_t host : {0u, 1u}) EXPECT_EQ(agents.next<StartRanks>(host).round.nodes, 2);
  EXPECT_NE(logged.text().find("runs `train --seed 1`, but the job"), logged.text().npos)
      << logged.text();
}

TEST(Rendezvous, WhereTheProgramLiesIsEachHostsOwnMatter) {
  const ReservedPort port;
  RunOptions other = training(endpoint(port), Hosts::unnamed, "0");
  other.program = other.arguments[0] = "./train";
  const Logged logged;
  AgentsOf agents({training(endpoint(port), Hosts::unnamed, "0"), other});
  for (std::size_t host : {0u, 1u}) EXPECT_EQ(agents.next<StartRanks>(host).round.nodes, 2);
  EXPECT_EQ(logged.text(), "");
}

TEST(Rendezvous, AnIdThatATerminalWouldActOnIsMisuse) {
  for (const std::string id : {"a\nb", "\x1b[2J", "\xff"})
    EXPECT_EQ(fault_of([&] { make_rendezvous(job_of(2, "127.0.0.1:29499", id)); }), Fault::misuse);
}

TEST(Rendezvous, ALauncherWithAnotherTokenOrNoneIsTurnedAway) {
  const ReservedPort port;
  const auto with_token = [&](const std::optional<JobToken>& token) {
    if (token) ::setenv("LOCKSTEP_JOB_TOKEN", std::string(token->text()).c_str(), 1);
    return job_of(2, endpoint(port));
  };
  const auto first = make_rendezvous(with_token(make_job_token()));
  EXPECT_TRUE(first->token());
  for (const auto& token : {std::optional(make_job_token()), std::optional<JobToken>()}) {
    const auto second = make_rendezvous(with_token(token));
    std::string why;
    for (const Deadline limit = in(seconds(20)); why.empty() && Clock::now() < limit;) {
      turn(*first, in(milliseconds(2)));
      for (const Order& order : turn(*second, in(milliseconds(2))))
        why = std::get<EndJob>(order).why;
    }
    EXPECT_NE(why.find("job token"), why.npos) << why;
  }
}

TEST(Rendezvous, RejectsAStoreClientAtTheLaunchersPort) {
  const ReservedPort port;
  AgentsOf agents({job_of(2, endpoint(port))});
  std::string text;
  std::atomic<bool> done = false;
  std::thread client([&] {
    EXPECT_EQ(fault_of(
                  [&] {
                    TcpStore({.port = port.number(), .member = {"job", 0, 1}});
                  },
                  &text),
              Fault::misuse);
    done = true;
  });
  while (!done) turn(agents[0], in(milliseconds(2)));
  client.join();
  EXPECT_NE(text.find("the listener is the job's launcher, not a store"), text.npos) << text;
}

TEST(Rendezvous, RejectsTwoHostsWithTheSameNumber) {
  const ReservedPort port;
  std::vector<RunOptions> jobs(3, job_of(3, endpoint(port)));
  jobs[0].hosts.node_rank = 0;
  jobs[1].hosts.node_rank = jobs[2].hosts.node_rank = 1;
  AgentsOf agents({jobs[0], jobs[1]});
  while (agents[0].state().find("2 of 3") == std::string::npos) {
    turn(agents[0], in(milliseconds(2)));
    turn(agents[1], in(milliseconds(2)));
  }
  const auto third = make_rendezvous(jobs[2]);
  std::string why;
  for (const Deadline limit = in(seconds(20)); why.empty() && Clock::now() < limit;) {
    turn(agents[0], in(milliseconds(2)));
    for (const Order& order : turn(*third, in(milliseconds(2)))) why = std::get<EndJob>(order).why;
  }
  EXPECT_NE(why.find("claims to be node 1, which host"), why.npos) << why;
}

TEST(Rendezvous, UnauthenticatedPeersHarmNobody) {
  const ReservedPort port;
  AgentsOf agents(std::vector(1, job_of(2, endpoint(port))));
  const SocketAddress address = numeric_address("127.0.0.1", port.number());
  std::vector<FileDescriptor> peers;
  for (int i = 0; i < 100; ++i) {
    peers.push_back(begin_connecting(address));
    const std::string garbage(static_cast<std::size_t>(3 * i), '\x5a');
    ::send(peers.back().get(), garbage.data(), garbage.size(), MSG_NOSIGNAL);
    turn(agents[0], in(milliseconds(1)));
  }
  const AgentProcess other(job_of(2, endpoint(port)));
  EXPECT_EQ(agents.next<StartRanks>(0).round.nodes, 2);
}

TEST(Rendezvous, AKilledHostIsNoticedAtOnce) {
  const ReservedPort port;
  AgentsOf agents({job_of(2, endpoint(port))});
  const AgentProcess other(job_of(2, endpoint(port)));
  agents.next<StartRanks>(0);
  other.signal(SIGKILL);
  other.await_end();
  // An iteration takes at most 0.5 s. The agent detects silence after 2.5 s at the earliest.
  std::vector<Order> orders;
  for (int turns = 0; turns < 4 && orders.empty(); ++turns)
    orders = turn(agents[0], in(milliseconds(500)));
  ASSERT_EQ(orders.size(), 1U);
  const auto* end = std::get_if<EndRanks>(&orders[0]);
  ASSERT_NE(end, nullptr);
  EXPECT_TRUE(end->why.ends_with("was lost")) << end->why;
}

void hear(Rendezvous& host) {
  bool heard = false;
  for (const Deadline limit = in(seconds(20)); !heard && Clock::now() < limit;) {
    const std::vector<pollfd> entries = next_events({&host}, limit);
    heard = std::any_of(entries.begin(), entries.end(),
                        [](const pollfd& entry) { return (entry.revents & POLLIN) != 0; });
    host.serve(entries);
  }
  EXPECT_TRUE(heard);
}

TEST(Rendezvous, AStoppedHostIsNoticedWithin5s) {
  const ReservedPort port;
  AgentsOf agents({job_of(2, endpoint(port))});
  const AgentProcess other(job_of(2, endpoint(port)));
  agents.next<StartRanks>(0);
  hear(agents[0]);
  const auto start = Clock::now();
  Clock::time_point counted_from = start;
  other.signal(SIGSTOP);
  std::vector<Order> orders;
  for (const Deadline limit = in(seconds(20)); orders.empty() && Clock::now() < limit;) {
    const auto before = Clock::now();
    orders = turn(agents[0], in(milliseconds(10)));
    // The agent does not count silence before its own stop.
    if (orders.empty() && seconds_since(before) > 1) counted_from = Clock::now();
  }
  ASSERT_EQ(orders.size(), 1U);
  EXPECT_TRUE(std::holds_alternative<EndRanks>(orders[0]));
  EXPECT_GT(seconds_since(start), 2.0);
  EXPECT_LT(seconds_since(counted_from), 5.0);
}

TEST(Rendezvous, OurOwnStopIsNobodysSilence) {
  const ReservedPort port;
  AgentsOf agents({job_of(2, endpoint(port))});
  const AgentProcess other(job_of(2, endpoint(port)));
  agents.next<StartRanks>(0);
  other.signal(SIGSTOP);
  std::this_thread::sleep_for(milliseconds(4500));
  other.signal(SIGCONT);
  for (const Deadline limit = in(seconds(4)); Clock::now() < limit;)
    EXPECT_TRUE(turn(agents[0], limit).empty());
}

TEST(Rendezvous, TheLossOfTheCoordinatingHostEndsTheJobOfAll) {
  const ReservedPort port;
  AgentsOf agents(std::vector(3, job_of(3, endpoint(port))));
  for (std::size_t host : {0u, 1u, 2u}) agents.next<StartRanks>(host);
  const auto start = Clock::now();
  agents.kill(0);
  for (std::size_t host : {1u, 2u}) {
    const EndJob end = agents.next<EndJob>(host);
    EXPECT_EQ(end.exit_code, exit_unavailable);
    EXPECT_TRUE(end.why.starts_with("lost host ")) << end.why;
    EXPECT_TRUE(end.why.ends_with(", which holds the store")) << end.why;
  }
  EXPECT_LT(seconds_since(start), 15.0);
}

TEST(Rendezvous, APortThatAnotherProgramHasIsAnErrorThatNamesIt) {
  const ReservedPort port;
  const FileDescriptor taken = try_to_listen(numeric_address("127.0.0.1", port.number()));
  const std::string holder = "process " + std::to_string(::getpid());
  RunOptions options = job_of(2, endpoint(port));
  AgentsOf agents({options});
  const EndJob end = agents.next<EndJob>(0);  // The process might have been a launcher of this job.
  EXPECT_EQ(end.exit_code, exit_usage);
  EXPECT_NE(end.why.find(holder), end.why.npos) << end.why;
  options.hosts.node_rank = 0;
  std::string text;
  EXPECT_EQ(fault_of([&] { make_rendezvous(options); }, &text), Fault::misuse);
  EXPECT_NE(text.find(holder), text.npos) << text;
}

TEST(Rendezvous, AChallengeThatCameDuringOurOwnStopCounts) {
  const ReservedPort port;
  const FileDescriptor listener = try_to_listen(numeric_address("127.0.0.1", port.number()));
  const auto host = make_rendezvous(job_of(2, endpoint(port)));
  turn(*host, in(milliseconds(10)));
  FileDescriptor client;
  ASSERT_TRUE(test::soon([&] {
    client = FileDescriptor(::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
    return bool(client);
  }));
  turn(*host, in(milliseconds(10)));
  ASSERT_EQ(::send(client.get(), "c", 1, MSG_NOSIGNAL), 1);
  std::this_thread::sleep_for(milliseconds(5100));  // Longer than a launcher may be silent.
  host->serve({});                                  // As if poll() had returned before.
  EXPECT_TRUE(host->take_orders().empty());
}

TEST(Rendezvous, WithoutACoordinatingHostItFails) {
  const ReservedPort port;
  RunOptions options = job_of(2, endpoint(port));
  options.hosts.node_rank = 1;
  options.hosts.join_timeout = milliseconds(500);
  AgentsOf agents({options});
  EXPECT_EQ(agents.next<EndJob>(0).exit_code, exit_unavailable);
}

TEST(Rendezvous, EightJobsAtOnceDoNotMix) {
  const std::vector<ReservedPort> ports(8);
  std::vector<RunOptions> jobs;
  for (int host = 0; host < 2; ++host)
    for (const ReservedPort& port : ports)
      jobs.push_back(job_of(2, endpoint(port), "job" + std::to_string(port.number())));
  AgentsOf agents(jobs);
  for (std::size_t i = 0; i < jobs.size(); ++i) {
    const Round round = agents.next<StartRanks>(i).round;
    EXPECT_TRUE(round.job_id.starts_with(jobs[i].hosts.id + "."));
    EXPECT_EQ(round.node, i < 8 ? 0 : 1);
  }
}

TEST(Rendezvous, IPv6Works) {
  std::optional<ReservedPort> port;
  try {
    port.emplace("::1");
  } catch (const Error& error) {
    GTEST_SKIP() << "no ::1 here: " << error.what();
  }
  AgentsOf agents(std::vector(2, job_of(2, "[::1]:" + std::to_string(port->number()))));
  for (std::size_t host : {0u, 1u}) {
    const Round round = agents.next<StartRanks>(host).round;
    EXPECT_TRUE(round.store.starts_with("[::1]:")) << round.store;
    EXPECT_EQ(round.master_addr, "::1");
  }
}

TEST(Rendezvous, ACoreDumpOfALauncherDoesNotShowTheToken) {
  std::string text(make_job_token().text());
  const std::string backwards(text.rbegin(), text.rend());
  ::setenv("LOCKSTEP_JOB_TOKEN", text.c_str(), 1);
  ::explicit_bzero(text.data(), text.size());
  const ReservedPort port;
  AgentsOf agents({job_of(2, endpoint(port))});
  ASSERT_FALSE(::getenv("LOCKSTEP_JOB_TOKEN"));
  EXPECT_EQ(test::dumped_mappings_with(backwards), std::vector<std::string>{});
}

TEST(Rendezvous, BeyondLoopbackItWantsAToken) {
  std::string text;
  EXPECT_EQ(fault_of([] { make_rendezvous(job_of(2, "0.0.0.0:29499")); }, &text), Fault::misuse);
  EXPECT_NE(text.find("LOCKSTEP_TRUST_NETWORK=1"), text.npos) << text;
}

TEST(Rendezvous, RejectsAnInvalidEndpoint) {
  for (const std::string text : {"", "host", "127.0.0.1:", ":29400", "127.0.0.1:0",
                                 "127.0.0.1:70000", "::1:29400", "127.0.0.1:29400x"})
    EXPECT_EQ(fault_of([&] { make_rendezvous(job_of(2, text)); }), Fault::misuse) << text;
}

}  // namespace
}  // namespace lockstep::launch::rendezvous_test

// Tests two agents on one host, each with its own ranks, which form one group.

// SPDX-License-Identifier: Apache-2.0
#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/comm/process_group.h"
#include "lockstep/job/fd_broker.h"
#include "lockstep/job/host_link.h"
#include "lockstep/job/job_control_block.h"
#include "lockstep/job/store/tcp_store.h"
#include "tests/ranks.h"
#include "tests/rigs/command.h"

namespace lockstep {
namespace {

using namespace std::chrono_literals;
using test::Rank;
using test::Ranks;
using test::RunningCommand;
using test::soon;

constexpr int each = 2;  // Ranks per agent.

struct Job {
  std::string id;
  int attempt = 0;
  int world_size = 2 * each;
  int store_port = 0;
};

// The part of an agent that its ranks use.
class Agent {
 public:
  Agent(Job job, int first_rank)
      : job_(std::move(job)),
        first_rank_(first_rank),
        page_(JobControlBlock::create(each, job_.id, job_.world_size)) {}

  ~Agent() {
    over_ = true;
    if (thread_.joinable()) thread_.join();
  }

  FdBroker& fd_broker() { return broker_; }
  JobControlBlock& own_page() { return page_; }
  RunningCommand& rank(int local_rank) { return *ranks_.at(static_cast<std::size_t>(local_rank)); }

  void start_rank(const Ranks& ranks, int local_rank) {
    int ends[2] = {-1, -1};
    ASSERT_EQ(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends), 0);
    const FileDescriptor of_rank(ends[1]);
    broker_.connect(FileDescriptor(ends[0]));
    ::fcntl(of_rank.get(), F_SETFD, 0);
    ranks_.push_back(std::make_unique<RunningCommand>(
        ranks.command(),
        std::vector<std::string>{
            "RANK=" + std::to_string(first_rank_ + local_rank),
            "WORLD_SIZE=" + std::to_string(job_.world_size),
            "LOCAL_RANK=" + std::to_string(local_rank), "LOCAL_WORLD_SIZE=" + std::to_string(each),
            "LOCKSTEP_JOB_ID=" + job_.id, "LOCKSTEP_ATTEMPT=" + std::to_string(job_.attempt),
            "LOCKSTEP_STORE=127.0.0.1:" + std::to_string(job_.store_port),
            "LOCKSTEP_AGENT_FD=" + std::to_string(of_rank.get()), "OMP_NUM_THREADS=1"}));
  }

  // Call it after all ranks are started, because they are killed when the thread that started them
  // exits.
  void run() { thread_ = std::thread(&Agent::serve, this); }

  std::shared_ptr<JobControlBlock> session_page() const {
    const std::lock_guard lock(mutex_);
    return session_page_;
  }

 private:
  void serve() {
    while (!over_) {
      std::vector<pollfd> entries;
      broker_.watch(entries);
      if (::poll(entries.data(), entries.size(), 10) > 0) broker_.serve(entries);
      if (FileDescriptor fd = broker_.take(session_page_key)) {
        const std::lock_guard lock(mutex_);
        session_page_ = std::make_shared<JobControlBlock>(JobControlBlock::attach(std::move(fd)));
      }
    }
  }

  const Job job_;
  const int first_rank_;
  JobControlBlock page_;
  FdBroker broker_{page_.descriptor()};
  std::vector<std::unique_ptr<RunningCommand>> ranks_;
  mutable std::mutex mutex_;
  std::shared_ptr<JobControlBlock> session_page_;
  std::atomic<bool> over_{false};
  std::thread thread_;
};

TcpStoreServerOptions options_of(const Job& job, const JobToken& token) {
  TcpStoreServerOptions options;
  options.job.job_id = job.id;
  options.job.world_size = job.world_size;
  options.token = token;
  return options;
}

// Two agents and their common store, for one start of the job.
struct TwoAgents {
  const JobToken token = make_job_token();
  const test::ScratchDirectory scratch;  // Its name is unique to this job.
  Job job{.id = scratch.path().filename()};
  TcpStoreServer store{options_of(job, token)};
  std::vector<std::unique_ptr<Agent>> agents;

  explicit TwoAgents(int attempt_of_ranks = 0) {
    job.store_port = store.port();
    job.attempt = attempt_of_ranks;
    for (const int first_rank : {0, each}) {
      agents.push_back(std::make_unique<Agent>(job, first_rank));
      agents.back()->fd_broker().publish(job_token_key, share_job_token(token));
    }
  }

  void start(const Ranks& ranks) {
    for (const auto& agent : agents)
      for (int local_rank = 0; local_rank < each; ++local_rank)
        agent->start_rank(ranks, local_rank);
    for (const auto& agent : agents) agent->run();
  }

  RunningCommand& rank(int number) {
    return agents.at(static_cast<std::size_t>(number / each))->rank(number % each);
  }

  void expect_ends(const std::vector<int>& codes) {
    for (int number = 0; number < job.world_size; ++number)
      EXPECT_EQ(rank(number).wait(), codes.at(static_cast<std::size_t>(number)))
          << "rank " << number << ": " << rank(number).err() << rank(number).out();
  }
};

const Ranks reduces("reduces across agents", [](const Rank& rank) {
  for (int i = 0; i < 3; ++i) {  // A job may create its group again.
    ProcessGroup group = init_process_group({.timeout = 30s});
    EXPECT_EQ(group.rank(), rank.rank);
    EXPECT_EQ(group.size(), rank.world_size);
    EXPECT_EQ(group.local_rank(), rank.rank);  // Rank on the host, not within the agent.
    EXPECT_EQ(group.local_size(), rank.world_size);
    std::vector<float> values(1000, static_cast<float>(rank.rank + 1));
    group.all_reduce({.data = values.data(), .count = values.size()});
    EXPECT_EQ(values, std::vector<float>(1000, 10));
    destroy_process_group(group);
  }
});

TEST(SeveralAgents, TheirRanksOfOneHostFormOneGroup) {
  TwoAgents two;
  two.start(reduces);
  two.expect_ends({0, 0, 0, 0});
}

const Ranks until_preempted("until preempted", [](const Rank& rank) {
  ProcessGroup group = init_process_group({.timeout = 30s});
  group.on_preemption();
  for (std::uint64_t step = 1; !group.preempted(); ++step) {
    group.set_step(step + 1000 * static_cast<std::uint64_t>(rank.rank));
    std::this_thread::sleep_for(5ms);
  }
  destroy_process_group(group);
  std::exit(testing::Test::HasFailure() ? 2 : exit_preempted);
});

TEST(SeveralAgents, EachAgentSeesAllRanksInThePageThatTheyOffer) {
  TwoAgents two;
  two.start(until_preempted);
  for (const auto& agent : two.agents) {
    ASSERT_TRUE(soon([&] { return agent->session_page() != nullptr; })) << two.rank(0).err();
    const auto page = agent->session_page();
    ASSERT_EQ(page->slots(), two.job.world_size);
    EXPECT_EQ(page->job_id(), two.job.id);
    for (int number = 0; number < two.job.world_size; ++number) {
      EXPECT_TRUE(soon([&] { return page->expects_preemption(number); })) << number;
      const std::uint64_t first = 1000 * static_cast<std::uint64_t>(number);
      EXPECT_TRUE(soon([&] { return page->activity(number).step > first; })) << number;
      EXPECT_EQ(page->pid(number), two.rank(number).pid());
      EXPECT_EQ(page->phase(number), JobControlBlock::Phase::alive);
    }
    EXPECT_FALSE(page->preemption_agreed());
    EXPECT_EQ(agent->own_page().phase(0), JobControlBlock::Phase::vacant);
  }
  ::kill(two.rank(3).pid(), SIGUSR1);
  two.expect_ends(std::vector<int>(4, exit_preempted));
  for (const auto& agent : two.agents) EXPECT_TRUE(agent->session_page()->preemption_agreed());
}

const Ranks one_is_killed("one is killed across agents", [](const Rank& rank) {
  ProcessGroup group = init_process_group({.timeout = 30s});
  std::int64_t told = 0;  // When rank 3 announces its death; all ranks receive that first.
  const Buffer time{.data = &told, .count = 1, .dtype = DType::int64};
  group.barrier();
  told = Clock::now().time_since_epoch().count();
  group.broadcast(time, 3);
  if (rank.rank == 3) ::raise(SIGKILL);
  try {
    while (true) group.barrier();
  } catch (const Error& error) {
    const Clock::time_point died{Clock::duration(told)};
    // The guarantee is 0.1 s on a host that is not overloaded. The timeout is 30 s.
    EXPECT_LT(seconds_since(died), 10);
    ASSERT_TRUE(error.failure()) << error.what();
    EXPECT_EQ(error.failure()->rank, 3) << error.what();
    EXPECT_EQ(error.failure()->signal, SIGKILL) << error.what();
  }
});

TEST(SeveralAgents, AKilledRankOfOneIsNamedToTheRanksOfBoth) {
  TwoAgents two;
  two.start(one_is_killed);
  two.expect_ends({0, 0, 0, 1000 + SIGKILL});
  for (const auto& agent : two.agents) {
    ASSERT_TRUE(soon([&] { return agent->session_page() != nullptr; }));
    EXPECT_EQ(agent->session_page()->failure()->rank, 3);
  }
}

// Expects that one rank is rejected for this reason.
void expect_refusal(TwoAgents& two, const std::string& reason, Fault fault) {
  two.agents[1]->start_rank(reduces, 1);
  two.agents[1]->run();
  RunningCommand& rank = two.agents[1]->rank(0);
  EXPECT_EQ(rank.wait(), 10 + static_cast<int>(fault)) << rank.err();
  EXPECT_NE(rank.err().find(reason), std::string::npos) << rank.err();
}

TEST(SeveralAgents, ARankOfAnEarlierAttemptIsRefused) {
  TwoAgents two(1);
  expect_refusal(two, "the store is of attempt 0 of the job, this rank of attempt 1",
                 Fault::misuse);
}

TEST(SeveralAgents, ARankWithAnotherTokenIsRefused) {
  TwoAgents two;
  two.agents[1]->fd_broker().publish(job_token_key, share_job_token(make_job_token()));
  expect_refusal(two, "another job token", Fault::misuse);
}

TEST(SeveralAgents, ARankWithoutTheTokenIsRefused) {
  TwoAgents two;
  two.agents[1]->fd_broker().publish(job_token_key, share_job_token(std::nullopt));
  expect_refusal(two, "another job token or none", Fault::misuse);
}

TEST(SeveralAgents, AnAgentWithoutATokenReportsWhy) {
  TwoAgents two;
  two.agents[1]->fd_broker().publish_refusal(job_token_key, "its file cannot be read");
  expect_refusal(two, "its file cannot be read", Fault::system);
}

const Ranks of_any_launcher("of a launcher without a store", [](const Rank&) {
  LaunchEnvironment who = read_environment();
  who.agent_fd = {};
  who.store = {};
  init_process_group({.environment = who});
});

TEST(SeveralAgents, WithoutAStoreTheyAreRefused) {
  TwoAgents two;
  two.agents[0]->start_rank(of_any_launcher, 0);
  two.agents[0]->run();
  EXPECT_EQ(two.rank(0).wait(), 10 + static_cast<int>(Fault::misuse)) << two.rank(0).err();
  EXPECT_NE(two.rank(0).err().find("no address at which ranks of several hosts connect"),
            std::string::npos)
      << two.rank(0).err();
}

}  // namespace
}  // namespace lockstep

// SPDX-License-Identifier: Apache-2.0
#include "lockstep/launch/status.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>
#include <thread>

#include "lockstep/job/activity.h"
#include "tests/serving_status.h"
#include "tests/soon.h"

namespace lockstep::launch::status_test {
namespace {

using test::ServingStatus;

using namespace std::chrono_literals;

// Other jobs may run on this host.
std::string own_id(const std::string& name) { return name + "-" + std::to_string(::getpid()); }

std::optional<JobStatus> job_named(const std::string& id) {
  for (const JobStatus& job : running_jobs())
    if (job.job_id == id) return job;
  return std::nullopt;
}

// Threads of this process may stand still for longer than running_jobs() waits.
std::vector<JobStatus> answering_jobs() {
  const Deadline limit = in(20s);
  std::vector<JobStatus> jobs;
  do {
    jobs = running_jobs();
  } while (Clock::now() < limit && std::any_of(jobs.begin(), jobs.end(), [](const JobStatus& job) {
             return job.agent_pid == ::getpid() && job.state == no_answer;
           }));
  return jobs;
}

std::optional<JobStatus> answer_of(const std::string& id) {
  for (const JobStatus& job : answering_jobs())
    if (job.job_id == id) return job;
  return std::nullopt;
}

JobStatus example(const std::string& id, double seconds = 1) {
  JobStatus job{.job_id = id, .program = "./train --epochs 5", .agent_pid = ::getpid()};
  job.host = "node3";
  job.node = 1;
  job.nodes = 2;
  job.world_size = 4;
  job.attempt = 3;
  job.restarts = 2;
  job.state = "running";
  job.seconds = seconds;
  job.ranks.push_back({.rank = 2,
                       .pid = 41,
                       .incarnation = 5,
                       .state = "waiting",
                       .waits_for = {0, 3},
                       .step = 812,
                       .last = "in all_reduce #7",
                       .phases = "forward 90 %, wait 10 % for rank 3",
                       .shares = {{"forward", 0.9}, {"wait", 0.1}},
                       .latest_rank = 3,
                       .steps_per_second = 12.5,
                       .steps = 811,
                       .seconds = {{"forward", 9.25}, {"wait", 1.5}},
                       .waited_for = {{"3", 1.5}},
                       .stood_still = 0.5,
                       .memory = 1 << 30,
                       .bound_to = "0-3"});
  job.ranks.push_back({.rank = 3, .pid = 42, .state = "running"});
  return job;
}

void turn(StatusService& service) { service.serve(next_events({&service}, Clock::now())); }

FileDescriptor connect_to(const std::string& id) {
  std::ifstream table("/proc/self/net/unix");
  for (std::string line; std::getline(table, line);) {
    const auto at = line.find("@lockstep/");
    if (at == line.npos || !line.ends_with("/" + id)) continue;
    FileDescriptor socket(::socket(AF_UNIX, status_socket, 0));
    const StatusAddress address(line.substr(at + 1));
    if (::connect(socket.get(), address.get(), address.length) == 0) return socket;
  }
  return {};
}

std::string read_to_end(const FileDescriptor& socket) {
  std::string text;
  char buffer[4096];
  pollfd entry{socket.get(), POLLIN, 0};
  while (::poll(&entry, 1, 20'000) > 0) {
    const ssize_t length = ::read(socket.get(), buffer, sizeof buffer);
    if (length <= 0) return text;
    text.append(buffer, static_cast<std::size_t>(length));
  }
  return "nothing";
}

TEST(Status, ArrivesAsTheAgentSentIt) {
  const JobStatus given = example(own_id("whole"));
  const ServingStatus agent(given);
  const auto got = answer_of(given.job_id);
  ASSERT_TRUE(got);
  EXPECT_EQ(to_json({*got}), to_json({given}));
  EXPECT_EQ(got->program, "./train --epochs 5");
  ASSERT_EQ(got->ranks.size(), 2U);
  EXPECT_EQ(got->ranks[0].waits_for, (std::vector{0, 3}));
  EXPECT_EQ(got->ranks[0].step, 812U);
}

TEST(Status, ListsTheOldestOfTwoJobsFirst) {
  const ServingStatus young(example(own_id("young"), 5));
  const ServingStatus old(example(own_id("old"), 5000));
  std::vector<std::string> ids;
  for (const JobStatus& job : answering_jobs())
    if (job.job_id == own_id("young") || job.job_id == own_id("old")) ids.push_back(job.job_id);
  EXPECT_EQ(ids, (std::vector{own_id("old"), own_id("young")}));
}

TEST(Status, IsAbsentForAnEndedJob) {
  { const ServingStatus agent(example(own_id("over"))); }
  EXPECT_FALSE(job_named(own_id("over")));
}

TEST(Status, ArrivesCompleteForALargeJob) {
  JobStatus large = example(own_id("large"));
  large.ranks.assign(4000, large.ranks.front());
  const ServingStatus agent(large);
  const auto got = answer_of(large.job_id);
  ASSERT_TRUE(got);
  EXPECT_EQ(got->ranks.size(), 4000U);
}

TEST(Status, ReportsAnUnresponsiveAgentSoon) {
  const std::string id = own_id("stopped");
  StatusService stuck(id, [&] { return example(id); });
  const auto start = Clock::now();
  const auto job = job_named(id);
  EXPECT_LT(seconds_since(start), 10.0);
  ASSERT_TRUE(job);
  EXPECT_EQ(job->state, no_answer);
  EXPECT_EQ(job->agent_pid, ::getpid());
  EXPECT_NE(job->program.find("launch_test"), std::string::npos) << job->program;
  EXPECT_TRUE(job->ranks.empty());
}

TEST(Status, ReportsAnAgentWithAFullQueueAsUnresponsive) {
  const std::string id = own_id("full");
  StatusService stuck(id, [&] { return example(id); });
  std::vector<FileDescriptor> waiting;
  while (FileDescriptor next = connect_to(id)) {
    waiting.push_back(std::move(next));
    ASSERT_LT(waiting.size(), 100U);
  }
  const auto job = job_named(id);
  ASSERT_TRUE(job);
  EXPECT_EQ(job->state, no_answer);
}

TEST(Status, ThatNobodyReadsHoldsNobodyUp) {
  const std::string id = own_id("unread");
  JobStatus large = example(id);
  large.program.assign(3 << 20, 'x');
  StatusService service(id, [&] { return large; });
  std::vector<FileDescriptor> clients;
  std::vector<pollfd> entries;
  std::size_t most = 0;  // If this thread stands still, all clients may be past their deadline.
  const auto start = Clock::now();
  for (int i = 0; i < 40; ++i) {
    clients.push_back(connect_to(id));
    ASSERT_TRUE(clients.back());
    turn(service);
    entries.clear();
    service.watch(entries);
    most = std::max(most, entries.size());
  }
  EXPECT_LT(seconds_since(start), 20.0);
  EXPECT_EQ(most, 1U + 16) << "no more than 16 are waited for";
  std::this_thread::sleep_for(2100ms);
  // Other processes may connect, too; they read their responses.
  const Deadline limit = in(10s);
  do {
    turn(service);
    entries.clear();
    service.watch(entries);
  } while (entries.size() > 1 && Clock::now() < limit);
  EXPECT_EQ(entries.size(), 1U);
}

TEST(Status, IsNotForOtherUsers) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can become another user";
  const std::string id = own_id("private");
  const ServingStatus agent(example(id));
  const pid_t child = ::fork();
  if (child == 0) {
    if (::setresuid(65534, 65534, 65534) != 0) ::_exit(2);
    const FileDescriptor socket = connect_to(id);
    ::_exit(!socket ? 3 : read_to_end(socket).empty() ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0) << "another user got an answer";
  EXPECT_TRUE(job_named(id)) << "and this one still does";
}

TEST(Status, RejectsAnImpostorWithThisUsersName) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can become another user";
  const std::string id = own_id("impostor");
  const std::string name = "lockstep/0/agent/" + std::to_string(::getpid()) + ".77/" + id;
  int ready[2];
  ASSERT_EQ(::pipe2(ready, O_CLOEXEC), 0);
  const FileDescriptor ready_read(ready[0]);
  const pid_t child = ::fork();
  if (child == 0) {
    if (::setresuid(65534, 65534, 65534) != 0) ::_exit(2);
    const int listener = ::socket(AF_UNIX, status_socket, 0);
    const StatusAddress address(name);
    if (::bind(listener, address.get(), address.length) != 0 || ::listen(listener, 1) != 0)
      ::_exit(3);
    [[maybe_unused]] const ssize_t told = ::write(ready[1], "", 1);
    ::pause();
  }
  ::close(ready[1]);
  char byte = 1;
  ASSERT_EQ(::read(ready_read.get(), &byte, 1), 1);
  EXPECT_FALSE(job_named(id));
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
}

TEST(Status, IsJsonWhateverTheBytesOfAProgramsArguments) {
  JobStatus job = example("j");
  job.program = "./train \xff\"";
  const auto all = nlohmann::json::parse(to_json({job}));
  EXPECT_EQ(all[0]["program"], "./train \uFFFD\"");
  EXPECT_EQ(all[0]["ranks"][0]["waits_for"], (std::vector{0, 3}));
  EXPECT_EQ(nlohmann::json::parse(to_json(std::vector<JobStatus>{})).size(), 0U);
}

pid_t start_rank(JobControlBlock& page, int slot) {
  const pid_t pid = ::fork();
  if (pid == 0) {
    page.enter(slot);
    while (true) ::pause();
  }
  EXPECT_TRUE(test::soon([&] { return page.phase(slot) == JobControlBlock::Phase::alive; }));
  return pid;
}

bool comes_to(const JobControlBlock& page, int slot, const std::string& state) {
  return test::soon([&] { return status_of(page, slot).state == state; });
}

TEST(RankStatus, FollowsTheProcess) {
  JobControlBlock page = JobControlBlock::create(1, "job");
  EXPECT_EQ(status_of(page, 0).state, "starting");
  EXPECT_EQ(status_of(page, 0).pid, 0);
  const pid_t pid = start_rank(page, 0);
  EXPECT_TRUE(comes_to(page, 0, "running"));
  EXPECT_EQ(status_of(page, 0).pid, pid);
  EXPECT_EQ(status_of(page, 0).last, "yet to call its first collective");
  ::kill(pid, SIGSTOP);
  EXPECT_TRUE(comes_to(page, 0, "stopped"));
  ::kill(pid, SIGKILL);
  EXPECT_TRUE(comes_to(page, 0, "ended"));
  ::waitpid(pid, nullptr, 0);
  EXPECT_TRUE(comes_to(page, 0, "ended")) << "reaped";
}

TEST(RankStatus, NamesWhomARankWaitsForWhereThatIsKnown) {
  JobControlBlock page = JobControlBlock::create(5, "job");
  std::vector<pid_t> pids;
  for (int slot = 0; slot < 4; ++slot) pids.push_back(start_rank(page, slot));
  const GroupName world = pack_group_name("world");
  const GroupName pair = pack_group_name("pair");
  page.activity(0).collective.enter(world, Operation::all_reduce, 7, ticks_now());
  page.activity(0).step = 812;
  page.activity(1).collective.enter(world, Operation::broadcast, 6, ticks_now());
  page.activity(1).collective.leave(ticks_now());
  page.activity(2).collective.enter(world, Operation::all_reduce, 7, ticks_now());
  page.activity(3).collective.enter(pair, Operation::all_reduce, 2,
                                    ticks_now());  // Was it at #7 before?

  const RankStatus first = status_of(page, 0, /*first_rank=*/8);
  EXPECT_EQ(first.rank, 8);
  EXPECT_EQ(first.state, "waiting");
  EXPECT_EQ(first.step, 812U);
  EXPECT_EQ(first.waits_for, (std::vector{9, 12}));
  EXPECT_TRUE(first.last.starts_with("in all_reduce #7 of group world for ")) << first.last;
  EXPECT_EQ(describe(first), first.last + ", waits for 9,12");
  EXPECT_EQ(first.phases, "") << "nothing is known yet";
  StepTimes times;
  times.spent[static_cast<std::size_t>(StepPhase::backward)] = 950ms;
  times.spent[static_cast<std::size_t>(StepPhase::wait)] = 50ms;
  times.waited_for = {{3, 50ms}};
  page.step_report(0).recent.show(times);
  EXPECT_EQ(status_of(page, 0).phases, "backward 95 %, wait 5 % for rank 3");
  EXPECT_EQ(status_of(page, 0).shares.at("backward"), 0.95);
  EXPECT_EQ(status_of(page, 0).latest_rank, 3);
  times.steps = 20;
  page.step_report(0).whole.show(times);
  page.step_report(0).stood_still = std::chrono::nanoseconds(40ms).count();
  const RankTimes whole = times_of(status_of(page, 0));
  EXPECT_EQ(whole.times.steps, 20);
  EXPECT_EQ(whole.times.spent, times.spent);
  EXPECT_EQ(whole.times.waited_for, times.waited_for);
  EXPECT_EQ(whole.stood_still, 40ms);
  page.activity(0).peer = 11;
  page.activity(0).message.enter(world, Operation::recv, 3, ticks_now());
  page.activity(0).collective.leave(ticks_now());
  const RankStatus receives = status_of(page, 0, /*first_rank=*/8);
  EXPECT_EQ(receives.state, "waiting");
  EXPECT_EQ(receives.waits_for, std::vector{11});
  EXPECT_TRUE(receives.last.starts_with("in recv #3 from rank 11 of group world for "))
      << receives.last;
  EXPECT_TRUE(status_of(page, 1).waits_for.empty()) << "it is outside";
  EXPECT_EQ(status_of(page, 1).state, "running");
  EXPECT_TRUE(status_of(page, 3).waits_for.empty()) << "who is in that group is not known";
  for (const pid_t pid : pids) {
    ::kill(pid, SIGKILL);
    ::waitpid(pid, nullptr, 0);
  }
}

}  // namespace
}  // namespace lockstep::launch::status_test

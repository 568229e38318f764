// SPDX-License-Identifier: Apache-2.0
#include "lockstep/launch/coordinator.h"

#include <gtest/gtest.h>
#include <signal.h>

#include "lockstep/base/error.h"

namespace lockstep::launch::coordinator_test {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

// Host 0 is A, the coordinating one.
class Job {
 public:
  explicit Job(int least, int most, int max_restarts = 0,
               milliseconds max_restart_delay = seconds(30), bool survives = false)
      : hosts_{.least = least,
               .most = most,
               .id = "job",
               .join_timeout = seconds(60),
               .last_call = seconds(3)},
        coordinator_({"job.1", hosts_, max_restarts, max_restart_delay, survives}, now_) {
    EXPECT_EQ(join(0), std::nullopt);
  }

  std::optional<std::string> join(int id, int nproc = 2, std::optional<int> node_rank = {}) {
    const std::string host(1, static_cast<char>('A' + id));
    return coordinator_.join(id, {host, nproc, node_rank, hosts_.least, hosts_.most}, now_);
  }
  void report(int id, Outcome outcome, int exit_code = 0, const std::string& what = "") {
    std::optional<Failure> failure;
    if (outcome == Outcome::failed)
      failure = Failure{.rank = 2 * id, .exit_code = exit_code, .what = what};
    coordinator_.report(id, attempt_, outcome, exit_code, failure, now_);
  }
  void gone(int id) { coordinator_.all_gone(id, attempt_, now_); }
  void lose(int id) { coordinator_.lost(id, now_); }
  void wait(milliseconds time) {
    now_ += time;
    coordinator_.tick(now_);
  }

  // Rank 0 of host 0 fails after `lived`. Returns the pause before the next start.
  milliseconds fail(milliseconds lived, const std::vector<int>& hosts = {0}) {
    wait(lived);
    report(0, Outcome::failed, 7);
    for (const int host : hosts) gone(host);
    const auto failed_at = now_;
    while (coordinator_.deadline() != no_deadline) wait(milliseconds(1));
    orders();
    return std::chrono::duration_cast<milliseconds>(now_ - failed_at);
  }

  // Such as "0:start 0/2 1:start 1/2": a start has number/hosts, a delayed start its pause, an end
  // of the job its exit code.
  std::string orders() {
    std::string text;
    for (const auto& [id, order] : coordinator_.take_orders()) {
      if (!text.empty()) text += ' ';
      text += std::to_string(id);
      text += ':';
      if (const auto* start = std::get_if<StartRanks>(&order)) {
        attempt_ = start->round.attempt;
        rounds_[id] = start->round;
        text += "start ";
        text += std::to_string(start->round.node);
        text += '/';
        text += std::to_string(start->round.nodes);
      } else if (const auto* later = std::get_if<StartLater>(&order)) {
        text += "later ";
        text += std::to_string(later->pause.count());
        text += "ms";
      } else if (const auto* ranks = std::get_if<EndRanks>(&order)) {
        why_ = ranks->why;
        text += "end_ranks";
      } else {
        const EndJob& end = std::get<EndJob>(order);
        why_ = end.why;
        failure_ = end.failure.value_or(Failure{});
        text += "end_job ";
        text += std::to_string(end.exit_code);
      }
    }
    return text;
  }
  const Round& round(int id) { return rounds_[id]; }
  const std::string& why() const { return why_; }
  const Failure& failure() const { return failure_; }
  Coordinator& operator*() { return coordinator_; }

 private:
  Hosts hosts_;
  Clock::time_point now_ = Clock::time_point() + seconds(1000);
  Coordinator coordinator_;
  int attempt_ = -1;
  std::map<int, Round> rounds_;
  std::string why_;
  Failure failure_;
};

TEST(PauseBetweenStates, IsForManyHosts) {
  EXPECT_EQ(pause_between_states(64), milliseconds(0));
  EXPECT_EQ(pause_between_states(65), milliseconds(100));
}

TEST(Coordinator, OneHostStartsAtOnce) {
  Job job(1, 1);
  (*job).tick(Clock::time_point() + seconds(1000));
  EXPECT_EQ(job.orders(), "0:start 0/1");
  EXPECT_EQ(job.round(0).world_size, 2);
}

TEST(Coordinator, StartsWhenTheMostHostsAreThere) {
  Job job(1, 3);
  job.join(1, 4);
  EXPECT_EQ(job.orders(), "");
  job.join(2, 1);
  EXPECT_EQ(job.orders(), "0:start 0/3 1:start 1/3 2:start 2/3");
  EXPECT_EQ(job.round(1).first_rank, 2);
  EXPECT_EQ(job.round(2).first_rank, 6);
  EXPECT_EQ(job.round(2).world_size, 7);
}

TEST(Coordinator, StartsWithTheLeastHostsAfterTheLastCall) {
  Job job(2, 4);
  job.wait(seconds(10));
  EXPECT_EQ(job.orders(), "");
  job.join(1);
  job.wait(seconds(2));
  job.join(2);
  job.wait(seconds(2));
  EXPECT_EQ(job.orders(), "");
  job.wait(seconds(1));
  EXPECT_EQ(job.orders(), "0:start 0/3 1:start 1/3 2:start 2/3");
}

TEST(Coordinator, EndsWhenTooFewHostsCome) {
  Job job(3, 3);
  job.join(1);
  job.wait(seconds(59));
  EXPECT_EQ(job.orders(), "");
  job.wait(seconds(1));
  EXPECT_EQ(job.orders(), "0:end_job 69 1:end_job 69");
  EXPECT_EQ(job.why(), "the job needs 3 hosts, but within 60 s there were only 2: A, B");
  EXPECT_TRUE((*job).over());
}

TEST(Coordinator, FixedNumbersHold) {
  Job job(3, 3);
  job.join(1, 2, 2);
  job.join(2, 2, 1);
  EXPECT_EQ(job.orders(), "0:start 0/3 2:start 1/3 1:start 2/3");
}

TEST(Coordinator, TwoHostsOfOneNumberAreRefusedByName) {
  Job job(3, 3);
  job.join(1, 2, 1);
  EXPECT_EQ(job.join(2, 2, 1), "host C claims to be node 1, which host B is already");
  EXPECT_EQ(job.join(2, 2, 0), "host C claims to be node 0, which host A is already");
  EXPECT_EQ(job.join(2, 2, 3), "host C claims to be node 3, but the job has 3 hosts");
}

TEST(Coordinator, ARankThatDidNotComeStaysTheCauseHoweverItEndsThen) {
  Job job(2, 2);
  job.join(1);
  EXPECT_EQ(job.orders(), "0:start 0/2 1:start 1/2");
  const Failure absent{.rank = 3,
                       .what = "within 30 s; rank 2 waited",
                       .fault = Fault::timeout,
                       .ranks = {3},
                       .call = "barrier #4 of group world"};
  (*job).report(0, 0, Outcome::failed, exit_unavailable, absent, Clock::now());
  (*job).report(1, 0, Outcome::failed, 137, Failure{.rank = 3, .signal = 9}, Clock::now());
  EXPECT_EQ(job.orders(), "0:end_ranks 1:end_ranks");
  job.gone(0);
  job.gone(1);
  EXPECT_EQ(job.orders(), "0:end_job 69 1:end_job 69");
  EXPECT_EQ(job.why(),
            "rank 3 did not come to barrier #4 of group world within 30 s; rank 2 waited");
}

TEST(Coordinator, HostsAgreeOnHowManyThereAre) {
  Job job(2, 3);
  EXPECT_EQ((*job).join(1, {.host = "B", .least = 2, .most = 2}, {}),
            "host B expects a job of 2 hosts, but the coordinating host expects 2 to 3 hosts");
}

TEST(Coordinator, AllThatSucceededEndTheJobWith0) {
  Job job(2, 2);
  job.join(1);
  job.orders();
  job.report(1, Outcome::succeeded);
  EXPECT_EQ(job.orders(), "");
  job.report(0, Outcome::succeeded);
  EXPECT_EQ(job.orders(), "0:end_job 0 1:end_job 0");
}

TEST(Coordinator, PreemptedRanksEndTheJobWithoutARestart) {
  Job job(2, 2, 5);
  job.join(1);
  job.orders();
  job.report(1, Outcome::preempted, exit_preempted);
  job.report(0, Outcome::succeeded);
  EXPECT_EQ(job.orders(), "0:end_job 75 1:end_job 75");
}

TEST(Coordinator, TheFirstFailureDecides) {
  Job job(2, 2);
  job.join(1);
  job.orders();
  job.report(1, Outcome::failed, 7);
  job.report(0, Outcome::failed, 9);
  EXPECT_EQ(job.orders(), "0:end_ranks 1:end_ranks");
  job.gone(0);
  EXPECT_EQ(job.orders(), "");
  job.gone(1);
  EXPECT_EQ(job.orders(), "0:end_job 7 1:end_job 7");
  EXPECT_NE(job.why().find("rank 2"), std::string::npos) << job.why();
}

TEST(Coordinator, CollectsRanksThatEndedWithTheSameExceptionOnOtherHosts) {
  Job job(3, 3);
  for (int host : {1, 2}) job.join(host);
  job.orders();
  job.report(1, Outcome::failed, 64, "Error: a layer differs");
  job.report(0, Outcome::failed, 64, "Error: a layer differs");
  job.report(2, Outcome::failed, 1, "another");
  job.orders();
  for (int host : {0, 1, 2}) job.gone(host);
  EXPECT_EQ(job.orders(), "0:end_job 64 1:end_job 64 2:end_job 64");
  EXPECT_EQ(job.failure().rank, 2);
  EXPECT_EQ(job.failure().ranks, (std::vector<int>{0, 2}));
}

TEST(Coordinator, RestartsAFailedAttemptUpToTheLimit) {
  Job job(2, 2, 1);
  job.join(1);
  job.orders();
  for (int host : {0, 1}) job.report(host, Outcome::failed, 7);  // One failure.
  job.orders();
  for (int host : {0, 1}) job.gone(host);
  EXPECT_EQ(job.orders(), "0:start 0/2 1:start 1/2");
  EXPECT_EQ(job.round(1).attempt, 1);
  EXPECT_EQ(job.round(1).restarts, 1);
  job.report(1, Outcome::failed, 8);
  job.orders();
  for (int host : {0, 1}) job.gone(host);
  EXPECT_EQ(job.orders(), "0:end_job 8 1:end_job 8");
}

TEST(Coordinator, AProgramThatFailsAtOnceIsStartedAFewTimesOnlyWithinThreeSeconds) {
  Job job(1, 1, 1'000'000);
  job.orders();
  int starts = 1;
  for (milliseconds time{0}; time < seconds(3); ++starts)
    time += milliseconds(6) + job.fail(milliseconds(6));
  EXPECT_LE(starts, 8);
  EXPECT_GE(starts, 4);
}

TEST(Coordinator, TheFirstRestartIsAtOnceAndThePauseBeforeEachFurtherOneDoublesUpToALimit) {
  Job job(1, 1, 100);
  job.orders();
  for (const int pause : {0, 100, 200, 400, 800, 1600, 3200, 6400, 12800, 25600, 30000, 30000})
    EXPECT_EQ(job.fail(milliseconds(6)), milliseconds(pause));
}

TEST(Coordinator, AfterAnAttemptThatLivedLongTheNextStartIsAtOnceAgain) {
  Job job(1, 1, 100);
  job.orders();
  for (int i = 0; i < 5; ++i) job.fail(milliseconds(6));
  EXPECT_EQ(job.fail(seconds(29)), milliseconds(1600));
  EXPECT_EQ(job.fail(seconds(30)), milliseconds(0));
  EXPECT_EQ(job.fail(milliseconds(6)), milliseconds(100));
}

TEST(Coordinator, WithoutADelayEveryRestartIsAtOnce) {
  Job job(1, 1, 100, milliseconds(0));
  job.orders();
  for (int i = 0; i < 10; ++i) EXPECT_EQ(job.fail(milliseconds(0)), milliseconds(0));
}

TEST(Coordinator, AShortLimitHoldsForTheShortestPauseToo) {
  Job job(1, 1, 100, milliseconds(20));
  job.orders();
  for (const int pause : {0, 20, 20}) EXPECT_EQ(job.fail(milliseconds(0)), milliseconds(pause));
}

// In the pause of 100 ms after the second failure of two hosts.
Job pausing_job(int most) {
  Job job(1, most, 9);
  job.join(1);
  job.wait(seconds(3));
  job.orders();
  job.fail(milliseconds(6), {0, 1});
  job.report(1, Outcome::failed, 7);
  for (const int host : {0, 1}) job.gone(host);
  EXPECT_EQ(job.orders(), "0:end_ranks 1:end_ranks 0:later 100ms 1:later 100ms");
  return job;
}

TEST(Coordinator, EveryHostReceivesAndShowsThePause) {
  Job job = pausing_job(2);
  for (const int host : {0, 1}) EXPECT_EQ((*job).state(host), "pausing for 0.1 s before attempt 2");
  job.wait(milliseconds(99));
  EXPECT_EQ(job.orders(), "");
  job.wait(milliseconds(1));
  EXPECT_EQ(job.orders(), "0:start 0/2 1:start 1/2");
  EXPECT_EQ(job.round(1).restarts, 2);
}

TEST(Coordinator, AStopEndsThePauseAtOnce) {
  Job job = pausing_job(2);
  job.report(1, Outcome::stopped, 128 + SIGINT);
  EXPECT_EQ(job.orders(), "0:end_job 130 1:end_job 130");
}

TEST(Coordinator, AHostMayLeaveInThePauseAtOnceAndTheRestGoOnWithoutIt) {
  Job job = pausing_job(3);
  job.report(1, Outcome::left, 128 + SIGTERM);
  EXPECT_EQ(job.orders(), "1:end_job 143");
  job.wait(milliseconds(100));
  EXPECT_EQ(job.orders(), "0:start 0/1");
}

TEST(Coordinator, AHostThatComesInThePauseTakesPartInTheStartAtItsEnd) {
  Job job = pausing_job(3);
  EXPECT_EQ(job.join(2), std::nullopt);
  job.wait(milliseconds(100));
  EXPECT_EQ(job.orders(), "0:start 0/3 1:start 1/3 2:start 2/3");
}

TEST(Coordinator, AHostThatIsLostInThePauseIsWaitedForFromThenOn) {
  Job job(2, 2, 100);
  job.join(1);
  job.orders();
  for (int i = 0; i < 11; ++i) job.fail(milliseconds(6), {0, 1});
  job.report(1, Outcome::failed, 7);
  for (const int host : {0, 1}) job.gone(host);
  job.wait(seconds(20));
  job.lose(1);
  job.wait(seconds(59));
  job.orders();
  EXPECT_EQ(job.join(2), std::nullopt);
  EXPECT_EQ(job.orders(), "0:start 0/2 2:start 1/2");
}

TEST(Coordinator, AReplacementThatComesInThePauseMustWaitForItsEnd) {
  Job job(2, 2, 9);
  job.join(1);
  job.orders();
  for (int i = 0; i < 2; ++i) job.fail(milliseconds(6), {0, 1});
  job.lose(1);
  job.gone(0);
  EXPECT_EQ(job.orders(), "0:end_ranks");
  job.join(2);
  EXPECT_EQ(job.orders(), "0:later 200ms");
  job.wait(milliseconds(200));
  EXPECT_EQ(job.orders(), "0:start 0/2 2:start 1/2");
}

TEST(Coordinator, AStartThatNoFailureMadeNecessaryIsNotDelayed) {
  Job job = pausing_job(3);
  job.wait(milliseconds(100));
  job.orders();
  job.join(2);
  for (const int host : {0, 1}) job.gone(host);
  EXPECT_EQ(job.orders(), "0:end_ranks 1:end_ranks 0:start 0/3 1:start 1/3 2:start 2/3");
}

TEST(Coordinator, IgnoresReportsFromAnEarlierAttempt) {
  Job job(2, 2, 2);
  job.join(1);
  job.orders();
  job.report(1, Outcome::failed, 7);
  for (int host : {0, 1}) job.gone(host);
  job.orders();
  (*job).report(1, 0, Outcome::failed, 9, std::nullopt, {});
  EXPECT_EQ(job.orders(), "");
  job.report(0, Outcome::failed, 7);
  EXPECT_EQ(job.orders(), "0:end_ranks 1:end_ranks");
  for (int host : {0, 1}) (*job).all_gone(host, 0, {});
  EXPECT_EQ(job.orders(), "");
}

TEST(Coordinator, ALostHostEndsTheJobByName) {
  Job job(2, 2);
  job.join(1);
  job.orders();
  job.lose(1);
  EXPECT_EQ(job.orders(), "0:end_ranks");
  job.gone(0);
  EXPECT_EQ(job.orders(), "0:end_job 69");
  EXPECT_EQ(job.why(), "host B was lost");
}

TEST(Coordinator, TheRestGoOnWithoutALostHostAndKeepTheirNumbers) {
  Job job(2, 4, 1);
  for (int host : {1, 2, 3}) job.join(host);
  job.orders();
  job.lose(1);
  for (int host : {0, 2, 3}) job.gone(host);
  EXPECT_EQ(job.orders(),
            "0:end_ranks 2:end_ranks 3:end_ranks 0:start 0/3 3:start 1/3 2:start 2/3");
  EXPECT_EQ(job.round(2).restarts, 1);
}

TEST(Coordinator, AReplacementFillsTheHole) {
  Job job(3, 3, 1);
  for (int host : {1, 2}) job.join(host);
  job.orders();
  job.lose(1);
  for (int host : {0, 2}) job.gone(host);
  EXPECT_EQ(job.orders(), "0:end_ranks 2:end_ranks");
  job.wait(seconds(59));
  job.join(3);
  EXPECT_EQ(job.orders(), "0:start 0/3 3:start 1/3 2:start 2/3");
}

TEST(Coordinator, EndsWithoutAReplacementAndReportsTheLostHost) {
  Job job(3, 3, 1);
  for (int host : {1, 2}) job.join(host);
  job.orders();
  job.lose(1);
  for (int host : {0, 2}) job.gone(host);
  job.orders();
  job.wait(seconds(60));
  EXPECT_EQ(job.orders(), "0:end_job 69 2:end_job 69");
  EXPECT_TRUE(job.why().starts_with("host B was lost; the job needs 3 hosts")) << job.why();
}

TEST(Coordinator, AHostThatJoinsIsTakenInByAStartThatDoesNotCount) {
  Job job(1, 3, 1);
  job.wait(seconds(3));
  EXPECT_EQ(job.orders(), "0:start 0/1");
  job.join(1);
  EXPECT_EQ(job.orders(), "0:end_ranks");
  EXPECT_EQ(job.why(), "host B joined");
  job.gone(0);
  EXPECT_EQ(job.orders(), "0:start 0/2 1:start 1/2");
  EXPECT_EQ(job.round(1).attempt, 1);
  EXPECT_EQ(job.round(1).restarts, 0);
}

TEST(Coordinator, AFullJobKeepsASpareUntilAHostIsLost) {
  Job job(2, 2, 1);
  for (int host : {1, 2}) job.join(host);
  EXPECT_EQ(job.orders(), "0:start 0/2 1:start 1/2");
  EXPECT_EQ((*job).state(2), "waiting until one of the job's 2 hosts is lost: it is full");
  job.lose(1);
  EXPECT_EQ(job.orders(), "0:end_ranks");
  job.gone(0);
  EXPECT_EQ(job.orders(), "0:start 0/2 2:start 1/2");
}

TEST(Coordinator, AStopOfOneHostStopsAllHosts) {
  Job job(2, 2, 3);
  job.join(1);
  job.orders();
  job.report(1, Outcome::stopped, 128 + SIGTERM);
  EXPECT_EQ(job.orders(), "0:end_ranks 1:end_ranks");
  for (int host : {0, 1}) job.gone(host);
  EXPECT_EQ(job.orders(), "0:end_job 143 1:end_job 143");
  EXPECT_EQ(job.why(), "stopped by SIGTERM on host B");
}

TEST(Coordinator, AStopCancelsARestartAndKeepsTheFirstFailuresExitCode) {
  Job job(2, 2, 3);
  job.join(1);
  job.orders();
  job.report(1, Outcome::failed, 7);
  job.report(0, Outcome::stopped, 128 + SIGINT);
  job.orders();
  for (int host : {0, 1}) job.gone(host);
  EXPECT_EQ(job.orders(), "0:end_job 7 1:end_job 7");
}

TEST(Coordinator, AStopEndsAStartThatNoFailureMadeNecessary) {
  Job job(1, 2);
  job.wait(seconds(3));
  job.join(1);
  job.report(0, Outcome::stopped, 128 + SIGINT);
  job.orders();
  job.gone(0);
  EXPECT_EQ(job.orders(), "0:end_job 130 1:end_job 130");
}

TEST(Coordinator, HowARankEndedMayBecomeKnownAfterItsFailure) {
  Job job(2, 2);
  job.join(1);
  job.orders();
  job.report(1, Outcome::failed, 69);
  job.report(1, Outcome::failed, 139);
  job.report(0, Outcome::failed, 70);  // A consequence of another rank's failure.
  job.orders();
  for (int host : {0, 1}) job.gone(host);
  EXPECT_EQ(job.orders(), "0:end_job 139 1:end_job 139");
}

TEST(Coordinator, AHostThatIsDoneMayLeaveAndOneThatComesThenMustWait) {
  for (const Outcome done : {Outcome::succeeded, Outcome::preempted}) {
    Job job(1, 3);
    for (int host : {1, 2}) job.join(host);
    job.orders();
    job.report(1, done);
    job.report(1, Outcome::left, 128 + SIGTERM);
    job.join(3);
    EXPECT_EQ(job.orders(), "1:end_job 143");
    for (int host : {0, 2}) job.report(host, Outcome::succeeded);
    EXPECT_EQ(job.orders(), done == Outcome::preempted ? "0:end_job 75 2:end_job 75 3:end_job 75"
                                                       : "0:end_job 0 2:end_job 0 3:end_job 0");
  }
}

TEST(Coordinator, AStopWhileHostsAreMissingEndsTheJobAtOnce) {
  Job job(3, 3);
  job.join(1);
  job.report(1, Outcome::stopped, 128 + SIGTERM);
  EXPECT_EQ(job.orders(), "0:end_job 143 1:end_job 143");
}

TEST(Coordinator, AHostThatLeavesCostsNoRestart) {
  Job job(1, 3);
  for (int host : {1, 2}) job.join(host);
  job.orders();
  job.report(1, Outcome::left, 128 + SIGTERM);
  EXPECT_EQ(job.orders(), "0:end_ranks 1:end_ranks 2:end_ranks");
  for (int host : {0, 1, 2}) job.gone(host);
  EXPECT_EQ(job.orders(), "1:end_job 143 0:start 0/2 2:start 1/2");
  EXPECT_EQ(job.round(2).restarts, 0);
}

TEST(Coordinator, WhenTheCoordinatingHostLeavesTheJobEnds) {
  Job job(1, 2, 3);
  job.join(1);
  job.orders();
  job.report(0, Outcome::left, 128 + SIGTERM);
  for (int host : {0, 1}) job.gone(host);
  EXPECT_EQ(job.orders(), "0:end_ranks 1:end_ranks 0:end_job 143 1:end_job 143");
  EXPECT_EQ(job.why(), "host A, which holds the store, left");
}

TEST(Coordinator, AHostThatIsLostAfterItSucceededIsNoFailure) {
  Job job(2, 2);
  job.join(1);
  job.orders();
  job.report(1, Outcome::succeeded);
  job.lose(1);
  EXPECT_EQ(job.orders(), "");
  job.report(0, Outcome::succeeded);
  EXPECT_EQ(job.orders(), "0:end_job 0");
}

TEST(Coordinator, RejectsAHostThatJoinsAfterTheEnd) {
  Job job(1, 2);
  job.wait(seconds(3));
  job.report(0, Outcome::stopped, 128 + SIGTERM);
  job.orders();
  job.gone(0);
  EXPECT_NE(job.join(1), std::nullopt);
}

// Three running hosts with OnFailure::continue_without.
Job surviving_job(int max_restarts = 0, int least = 3) {
  Job job(least, 3, max_restarts, seconds(30), /*survives=*/true);
  for (const int host : {1, 2}) job.join(host);
  EXPECT_EQ(job.orders(), "0:start 0/3 1:start 1/3 2:start 2/3");
  return job;
}

TEST(SurvivingJob, GoesOnWithoutAHostThatFailedAndSucceedsIfAnotherDoes) {
  Job job = surviving_job(/*max_restarts=*/5);
  job.report(0, Outcome::failed, 7);
  job.report(2, Outcome::failed, 8);
  EXPECT_EQ(job.orders(), "");
  job.report(1, Outcome::succeeded);
  EXPECT_EQ(job.orders(), "0:end_job 0 1:end_job 0 2:end_job 0");
  EXPECT_EQ(job.why(), "rank 0 failed; other hosts have finished the job");
}

TEST(SurvivingJob, GoesOnWithoutALostHost) {
  Job job = surviving_job();
  job.lose(1);
  EXPECT_EQ(job.orders(), "");
  job.report(0, Outcome::succeeded);
  EXPECT_EQ(job.orders(), "");
  job.lose(2);
  EXPECT_EQ(job.orders(), "0:end_job 0");
  EXPECT_EQ(job.why(), "host B was lost; other hosts have finished the job");
}

TEST(SurvivingJob, EndsWithTheFirstFailureOnceNoHostIsLeft) {
  Job job = surviving_job();
  job.lose(1);
  job.report(0, Outcome::failed, 7);
  EXPECT_EQ(job.orders(), "");
  job.report(2, Outcome::failed, 8);
  EXPECT_EQ(job.orders(), "0:end_ranks 2:end_ranks");
  for (const int host : {0, 2}) job.gone(host);
  EXPECT_EQ(job.orders(), "0:end_job 69 2:end_job 69");
  EXPECT_EQ(job.why(), "host B was lost");
}

TEST(SurvivingJob, RestartsOnceNoHostIsLeftAndForgetsTheFailure) {
  Job job = surviving_job(/*max_restarts=*/1);
  for (const int host : {2, 0, 1}) job.report(host, Outcome::failed, 7 + host);
  EXPECT_EQ(job.orders(), "0:end_ranks 1:end_ranks 2:end_ranks");
  for (const int host : {0, 1, 2}) job.gone(host);
  EXPECT_EQ(job.orders(), "0:start 0/3 1:start 1/3 2:start 2/3");
  for (const int host : {0, 1, 2}) job.report(host, Outcome::succeeded);
  EXPECT_EQ(job.orders(), "0:end_job 0 1:end_job 0 2:end_job 0");
  EXPECT_EQ(job.why(), "");
}

TEST(SurvivingJob, APreemptedHostHasLeftInOrder) {
  Job job = surviving_job();
  job.report(0, Outcome::preempted, exit_preempted);
  job.report(1, Outcome::failed, 7);
  job.report(2, Outcome::succeeded);
  EXPECT_EQ(job.orders(), "0:end_job 0 1:end_job 0 2:end_job 0");
  Job preempted = surviving_job();
  preempted.report(1, Outcome::failed, 7);
  for (const int host : {0, 2}) preempted.report(host, Outcome::preempted, exit_preempted);
  EXPECT_EQ(preempted.orders(), "0:end_job 75 1:end_job 75 2:end_job 75");
}

TEST(SurvivingJob, GoesOnWithoutAHostThatLeaves) {
  Job job = surviving_job(/*max_restarts=*/0, /*least=*/1);
  job.report(1, Outcome::left, 128 + SIGTERM);
  EXPECT_EQ(job.orders(), "");
  for (const int host : {0, 2}) job.report(host, Outcome::succeeded);
  EXPECT_EQ(job.orders(), "0:end_job 0 1:end_job 143 2:end_job 0");
}

TEST(SurvivingJob, AStopEndsAllHosts) {
  Job job = surviving_job();
  job.report(1, Outcome::failed, 7);
  job.report(2, Outcome::stopped, 128 + SIGINT);
  EXPECT_EQ(job.orders(), "0:end_ranks 1:end_ranks 2:end_ranks");
  for (const int host : {0, 1, 2}) job.gone(host);
  EXPECT_EQ(job.orders(), "0:end_job 130 1:end_job 130 2:end_job 130");
}

}  // namespace
}  // namespace lockstep::launch::coordinator_test

// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/base/text_file.h"
#include "lockstep/base/time.h"
#include "lockstep/job/activity.h"
#include "lockstep/job/timeline/merge_timeline.h"
#include "lockstep/job/timeline/rank_timeline.h"
#include "lockstep/job/timeline_recorder.h"
#include "tests/fault_of.h"
#include "tests/file_size_limit.h"
#include "tests/ranks.h"

namespace lockstep::job::timeline_test {
namespace {

using namespace std::chrono_literals;
using nlohmann::json;
using test::fault_of;
using test::ScratchDirectory;
namespace fs = std::filesystem;

// Ticks per microsecond, or slightly fewer.
Ticks microsecond() {
  constexpr Ticks many = 1 << 24;
  return many * 1000 / static_cast<Ticks>(time_in(many).count());
}

TimelineRecorder::Options options_of(const ScratchDirectory& scratch, int rank) {
  return {.folder = scratch.path() / "spans", .rank = rank, .world_size = 2, .host = "node \"a\""};
}

std::vector<json> events_of(const json& trace, const std::string& kind,
                            const std::string& category = "") {
  std::vector<json> found;
  for (const json& event : trace.at("traceEvents"))
    if (event.at("ph") == kind && (category.empty() || event.at("cat") == category))
      found.push_back(event);
  return found;
}

TEST(Timeline, HasSpansOfAllRanksAndArrowsFromTheLast) {
  const ScratchDirectory scratch;
  const Ticks start = ticks_now();
  const Ticks us = microsecond();
  const GroupName world = pack_group_name("world");
  for (const int rank : {0, 1}) {
    TimelineRecorder recorder(options_of(scratch, rank));
    recorder.phase(StepPhase::forward, start, start + 100 * us);
    // Rank 1 joins last, 300 microseconds after rank 0.
    const Ticks came = start + (rank == 0 ? 100 : 400) * us;
    recorder.collective({.group = world,
                         .operation = Operation::all_reduce,
                         .sequence = 7,
                         .bytes = 4096,
                         .begin = came,
                         .waited_until = rank == 0 ? start + 410 * us : came,
                         .end = start + 500 * us,
                         .last = rank == 0 ? 1 : -1,
                         .is_of_loop = rank == 0});
  }
  const fs::path file = scratch.path() / "t.json";
  const TimelineSummary summary = merge_timeline({scratch.path() / "spans"}, file);
  EXPECT_EQ(describe(summary), "2 ranks, 2 phases, 2 collectives, 1 arrow");

  const json trace = json::parse(read_file(file.string()));
  const auto phases = events_of(trace, "X", "phase");
  ASSERT_EQ(phases.size(), 2U);
  EXPECT_EQ(phases[1].at("name"), "forward");
  EXPECT_EQ(phases[1].at("pid"), 1);
  EXPECT_NEAR(phases[1].at("dur"), 100, 5);
  const auto collectives = events_of(trace, "X", "collective");
  ASSERT_EQ(collectives.size(), 2U);
  const json& waiting = collectives[0];
  EXPECT_EQ(waiting.at("name"), "all_reduce");
  EXPECT_EQ(waiting.at("args").at("group"), "world");
  EXPECT_EQ(waiting.at("args").at("bytes"), 4096);
  EXPECT_EQ(waiting.at("args").at("sequence"), 7);
  EXPECT_NEAR(waiting.at("args").at("waited_us"), 310, 10);
  const auto from = events_of(trace, "s");
  const auto to = events_of(trace, "f");
  ASSERT_EQ(from.size(), 1U);
  ASSERT_EQ(to.size(), 1U);
  EXPECT_EQ(from[0].at("pid"), 1);
  EXPECT_EQ(to[0].at("pid"), 0);
  EXPECT_EQ(from[0].at("id"), to[0].at("id"));
  EXPECT_EQ(from[0].at("tid"), collectives[1].at("tid"));
  EXPECT_NEAR(to[0].at("ts").get<double>() - from[0].at("ts").get<double>(), 10, 5);
  bool is_named = false;
  for (const json& name : events_of(trace, "M"))
    is_named = is_named || name.at("args") == json{{"name", "rank 1 on node \"a\""}};
  EXPECT_TRUE(is_named);
}

// Overlapping threads of the first attempt and one of the second. To Perfetto, a track with its
// rank's number would be a different thread than on other ranks.
TEST(Timeline, HasATrackForThreadsThatFollowEachOther) {
  const ScratchDirectory scratch;
  const auto record = [](TimelineRecorder& recorder, std::uint64_t sequence, Ticks begin) {
    std::thread([&] {
      recorder.collective({.sequence = sequence,
                           .begin = begin,
                           .waited_until = begin,
                           .end = begin + 100 * microsecond()});
    }).join();
  };
  const Ticks start = ticks_now();
  for (const int attempt : {0, 1}) {
    auto options = options_of(scratch, 2);
    options.attempt = attempt;
    TimelineRecorder recorder(options);
    record(recorder, 1, start + 1000 * attempt * microsecond());
    if (attempt == 0) record(recorder, 2, start + 50 * microsecond());
  }
  const fs::path file = scratch.path() / "t.json";
  merge_timeline({scratch.path() / "spans"}, file);
  const json trace = json::parse(read_file(file.string()));
  std::vector<int> tracks;
  for (const json& one : events_of(trace, "X", "collective")) tracks.push_back(one.at("tid"));
  ASSERT_EQ(tracks.size(), 3U);
  EXPECT_NE(tracks[0], tracks[1]);
  EXPECT_EQ(tracks[0], tracks[2]);
  std::set<int> named;
  for (const json& each : events_of(trace, "M")) {
    if (each.at("args") != json{{"name", "collectives of other threads"}}) continue;
    EXPECT_TRUE(named.insert(int{each.at("tid")}).second);
    EXPECT_NE(each.at("tid"), 2);
  }
  EXPECT_EQ(named, std::set<int>(tracks.begin(), tracks.end()));
}

TEST(Timeline, KeepsTheLastSpansOfALongRunAndCountsOmittedOnes) {
  const ScratchDirectory scratch;
  auto options = options_of(scratch, 0);
  options.most_phases = 100;
  options.most_collectives = 10;
  const Ticks start = ticks_now();
  {
    TimelineRecorder recorder(options);
    for (Ticks i = 0; i < 1000; ++i)
      recorder.phase(StepPhase::data, start + 2 * i, start + 2 * i + 1);
  }
  const RankTimeline timeline =
      read_rank_timeline(options.folder / TimelineRecorder::spans_name(0, 0));
  EXPECT_EQ(timeline.phases.size(), 100U);
  EXPECT_EQ(timeline.phases_left_out, 900U);
  EXPECT_EQ(timeline.collectives.size(), 0U);
  EXPECT_TRUE(std::ranges::is_sorted(timeline.phases, {}, &RankTimeline::Phase::begin));
  const fs::path file = scratch.path() / "t.json";
  EXPECT_EQ(merge_timeline({options.folder}, file).left_out, 900U);
  const json trace = json::parse(read_file(file.string()));
  EXPECT_EQ(trace.at("otherData").at("left_out").at(0).at("phases"), 900);
}

TEST(Timeline, HasTheClockOfRank0AndItsDrift) {
  const ScratchDirectory scratch;
  const auto options = options_of(scratch, 1);
  std::vector<double> t;  // Seconds of the steady clock before and after each call.
  const auto note_time = [&] {
    t.push_back(std::chrono::duration<double>(Clock::now().time_since_epoch()).count());
  };
  {
    TimelineRecorder recorder(options);
    note_time();
    recorder.add_offset(1s, 7us);
    note_time();
    recorder.phase(StepPhase::data, ticks_now(), ticks_now() + 1);
    note_time();
    std::this_thread::sleep_for(20ms);
    note_time();
    recorder.phase(StepPhase::data, ticks_now(), ticks_now() + 1);
    note_time();
    recorder.note_clock();
    recorder.add_offset(2s, 3us);
    note_time();
  }
  const fs::path file = options.folder / TimelineRecorder::spans_name(0, 1);
  const std::string packed = packed_rank_timeline(read_file(file.string()));
  EXPECT_LT(packed.size(), 10'000U);
  write_file(file.string(), packed);
  const RankTimeline timeline = read_rank_timeline(file);
  ASSERT_EQ(timeline.phases.size(), 2U);
  const double first = 1e-9 * static_cast<double>(timeline.phases[0].begin);
  const double last = 1e-9 * static_cast<double>(timeline.phases[1].begin);
  // The offset grows linearly from the first comparison to the second. A delay moves the phases.
  constexpr double apart = 0.01;
  EXPECT_GE(first, t[1] + 1 - apart) << "an offset of one second";
  EXPECT_LE(first, t[2] + 1 + (t[2] - t[0]) / (t[4] - t[0]) + apart);
  EXPECT_GE(last, t[3] + 1 + (t[3] - t[1]) / (t[5] - t[1]) - apart) << "two seconds 20 ms later";
  EXPECT_LE(last, t[4] + 2 + apart);
  const fs::path merged = scratch.path() / "t.json";
  merge_timeline({options.folder}, merged);
  const json facts = json::parse(read_file(merged.string())).at("otherData");
  const json less_exact{{"rank", 1}, {"attempt", 0}, {"comparisons", 2}, {"microseconds", 7.0}};
  EXPECT_EQ(facts.at("clock_errors"), json::array({less_exact}));
}

TEST(Timeline, LeavesOutWhatAKilledRankHasNotFinished) {
  const ScratchDirectory scratch;
  const fs::path folder = scratch.path() / "spans";
  for (const int rank : {0, 1, 2}) {
    TimelineRecorder recorder(options_of(scratch, rank));
    recorder.phase(StepPhase::forward, ticks_now(), ticks_now() + 1);
  }
  const fs::path killed = folder / TimelineRecorder::spans_name(0, 1);
  write_file(killed.string(), std::string(fs::file_size(killed), '\0'));  // It has no header yet.
  write_file((folder / TimelineRecorder::spans_name(0, 3)).string(), "");
  write_file((folder / TimelineRecorder::operators_name(0, 2)).string(), "{\"traceEvents\": [");
  const fs::path file = scratch.path() / "t.json";
  const TimelineSummary summary = merge_timeline({folder}, file);
  EXPECT_EQ(summary.ranks, 2);
  EXPECT_EQ(describe(summary),
            "2 ranks, 2 phases, 0 collectives, 0 arrows; 3 files could not be read");
  const json trace = json::parse(read_file(file.string()));
  EXPECT_EQ(trace.at("otherData").at("unreadable").size(), 3U);
  EXPECT_EQ(events_of(trace, "X", "phase").size(), 2U);
}

TEST(Timeline, MarksACollectiveThatFailed) {
  const ScratchDirectory scratch;
  const auto options = options_of(scratch, 0);
  {
    TimelineRecorder recorder(options);
    TimelineRecorder::Collective barrier{.operation = Operation::barrier, .end = ticks_now()};
    barrier.begin = barrier.waited_until = barrier.end;
    recorder.collective(barrier);
    barrier.fault = Fault::timeout;
    recorder.collective(barrier);
  }
  const fs::path file = scratch.path() / "t.json";
  EXPECT_EQ(describe(merge_timeline({options.folder}, file)),
            "1 rank, 0 phases, 2 collectives, 0 arrows; 1 collective failed");
  const auto collectives = events_of(json::parse(read_file(file.string())), "X", "collective");
  EXPECT_EQ(collectives.at(0).at("name"), "barrier");
  EXPECT_FALSE(collectives[0].at("args").contains("error"));
  EXPECT_EQ(collectives.at(1).at("name"), "barrier: timeout");
  EXPECT_EQ(collectives[1].at("args").at("error"), "timeout");
}

TEST(Timeline, HasTheRanksOfTheLastJobAlone) {
  const ScratchDirectory scratch;
  const auto record = [&](std::uint64_t job, int rank) {
    auto options = options_of(scratch, rank);
    options.job = job;
    TimelineRecorder recorder(options);
    recorder.phase(StepPhase::forward, ticks_now(), ticks_now() + 1);
    recorder.collective({.sequence = 1,
                         .begin = ticks_now(),
                         .waited_until = ticks_now(),
                         .end = ticks_now(),
                         .last = 2});
  };
  for (const int rank : {0, 1, 2}) record(/*job=*/8, rank);
  const fs::path folder = scratch.path() / "spans";
  write_file((folder / TimelineRecorder::operators_name(0, 0)).string(),
             R"({"traceEvents": [{"ph": "X", "ts": 1, "tid": 1, "name": "aten::mm"}]})");
  for (const int rank : {0, 1}) record(/*job=*/7, rank);
  const fs::path file = scratch.path() / "t.json";
  const TimelineSummary summary = merge_timeline({folder}, file);
  EXPECT_EQ(describe(summary),
            "2 ranks, 2 phases, 2 collectives, 0 arrows; 1 file of other jobs left out");
  const std::string other = (folder / TimelineRecorder::spans_name(0, 2)).string();
  EXPECT_EQ(summary.other_jobs, std::vector{other});
  const json trace = json::parse(read_file(file.string()));
  EXPECT_EQ(trace.at("otherData").at("other_jobs"), json{other});
}

TEST(Timeline, LeavesNothingWhereItCannotBeRecorded) {
  const ScratchDirectory scratch;
  const test::FileSizeLimit as_of_a_full_disk(1 << 20);
  const auto options = options_of(scratch, 0);
  EXPECT_EQ(fault_of([&] { const TimelineRecorder recorder(options); }), Fault::system);
  EXPECT_TRUE(fs::is_empty(options.folder));
}

TEST(Timeline, RefusesFilesThatAreNone) {
  const ScratchDirectory scratch;
  const fs::path file = scratch.path() / "attempt-0.rank-0.spans";
  EXPECT_EQ(fault_of([&] { merge_timeline({scratch.path()}, scratch.path() / "t.json"); }),
            Fault::misuse);
  EXPECT_EQ(fault_of([&] { merge_timeline({scratch.path() / "absent"}, file); }), Fault::system);
  write_file(file.string(), "short");
  EXPECT_EQ(fault_of([&] { read_rank_timeline(file); }), Fault::corrupt);
  std::string text;
  EXPECT_EQ(fault_of([&] { merge_timeline({scratch.path()}, scratch.path() / "t.json"); }, &text),
            Fault::corrupt);
  EXPECT_NE(text.find(file.string() + ": it is too short"), text.npos) << text;
  { const TimelineRecorder recorder({.folder = scratch.path()}); }
  const std::string whole = read_file(file.string());
  EXPECT_TRUE(read_rank_timeline(file).phases.empty());
  write_file(file.string(), whole.substr(0, whole.size() - 1));
  EXPECT_EQ(fault_of([&] { read_rank_timeline(file); }), Fault::corrupt);
  write_file(file.string(), std::string(whole.size(), 'x'));
  EXPECT_EQ(fault_of([&] { read_rank_timeline(file); }), Fault::corrupt);
}

TEST(Timeline, KeepsTheFirstJobsMemoryWhenASecondJobUsesTheFolder) {
  const ScratchDirectory scratch;
  const auto options = options_of(scratch, 0);
  TimelineRecorder first(options);
  auto small = options;
  small.most_phases = small.most_collectives = 1;
  const TimelineRecorder second(small);
  // Every page of the first one is written.
  for (Ticks i = 0; i < options.most_phases; ++i) first.phase(StepPhase::data, i, i + 1);
  EXPECT_NE(first.stamp(), second.stamp());
  EXPECT_TRUE(read_rank_timeline(second.file()).phases.empty());
}

TEST(Timeline, DistinguishesGroupsWhoseLongNamesShareAPrefix) {
  const std::string name(100, 'a');
  EXPECT_NE(pack_group_name(name + "b"), pack_group_name(name + "c"));
  EXPECT_EQ(pack_group_name(name), pack_group_name(name));
  EXPECT_NE(pack_group_name("a"), pack_group_name("b"));
}

TEST(Timeline, IsNotWrittenThroughALink) {
  const ScratchDirectory scratch;
  const fs::path other = scratch.path() / "other";
  write_file(other.string(), "of somebody else");
  fs::create_symlink(other, scratch.path() / TimelineRecorder::spans_name(0, 0));
  { const TimelineRecorder recorder({.folder = scratch.path()}); }
  EXPECT_EQ(read_file(other.string()), "of somebody else");
  EXPECT_EQ(read_rank_timeline(scratch.path() / TimelineRecorder::spans_name(0, 0)).rank, 0);
}

TEST(Timeline, HasTheSpansOfThreadsThatRecordAtATime) {
  const ScratchDirectory scratch;
  TimelineRecorder recorder(options_of(scratch, 0));
  constexpr int threads = 4;
  constexpr int spans = 20'000;
  {
    std::vector<std::jthread> running;
    for (int i = 0; i < threads; ++i)
      running.emplace_back([&] {
        for (int span = 0; span < spans; ++span)
          recorder.phase(StepPhase::data, ticks_now(), ticks_now());
        recorder.collective({});
        recorder.note_clock();
        recorder.add_offset(0s, 0s);
      });
  }
  const RankTimeline timeline = read_rank_timeline(recorder.file());
  EXPECT_EQ(timeline.phases.size(), static_cast<std::size_t>(threads * spans));
  EXPECT_EQ(timeline.collectives.size(), static_cast<std::size_t>(threads));
}

TEST(Timeline, CannotBeginWhereNothingCanBeWritten) {
  const ScratchDirectory scratch;
  write_file((scratch.path() / "file").string(), "");
  EXPECT_EQ(fault_of([&] { TimelineRecorder({.folder = scratch.path() / "file" / "spans"}); }),
            Fault::system);
}

// While recording, 100 ns per span would be 0.2 % of a step of 1 ms with twenty spans.
TEST(Timeline, CostsLittleWhileItIsRecorded) {
  const ScratchDirectory scratch;
  TimelineRecorder recorder(options_of(scratch, 0));
  constexpr int spans = 50'000;
  std::chrono::nanoseconds best = 1h;
  for (int round = 0; round < 10; ++round) {
    const auto begin = Clock::now();
    for (Ticks i = 0; i < spans; ++i) recorder.phase(StepPhase::data, i, i + 1);
    best = std::min<std::chrono::nanoseconds>(best, Clock::now() - begin);
  }
  RecordProperty("nanoseconds_a_span", static_cast<int>(best.count() / spans));
  EXPECT_LT(best / spans, 500ns) << "expected: 15";
}

}  // namespace
}  // namespace lockstep::job::timeline_test

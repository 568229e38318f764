// The line that is written of a failure, and what the ranks that survive it write.

// SPDX-License-Identifier: Apache-2.0
#include "lockstep/comm/failure_record.h"

#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <cstdlib>
#include <sstream>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "lockstep/comm/process_group.h"
#include "tests/fault_of.h"
#include "tests/ranks.h"

namespace lockstep {
namespace {

using namespace std::chrono_literals;
using test::fault_of;
using test::Rank;
using test::Ranks;

TEST(FailureRecord, HasAllFieldsOnOneLine) {
  const Failure failure{.rank = 1,
                        .host = "node3",
                        .pid = 4242,
                        .signal = SIGKILL,
                        .oom = false,
                        .operation = "all_reduce",
                        .sequence = 812,
                        .group = "world",
                        .detected_by = 0};
  EXPECT_EQ(failure_record("a1b2", failure, 12ms),
            "lockstep-fail job=a1b2 rank=1 host=node3 pid=4242 cause=signal:9(SIGKILL) oom=no "
            "op=all_reduce seq=812 group=world detected_by=0 after_ms=12");
}

// The value of `key` in a record.
std::string field(const std::string& record, const std::string& key) {
  std::istringstream words(record);
  for (std::string word; words >> word;)
    if (word.starts_with(key + "=")) return word.substr(key.size() + 1);
  return "no " + key;
}

std::string cause_of(const Failure& failure) {
  return field(failure_record("job", failure, 0ms), "cause");
}

TEST(FailureRecord, NamesEveryCause) {
  EXPECT_EQ(cause_of({.exit_code = 7}), "exit:7");
  EXPECT_EQ(cause_of({.signal = SIGSEGV}), "signal:11(SIGSEGV)");
  EXPECT_EQ(cause_of({.what = "std::bad_alloc: ?"}), "exception");
  EXPECT_EQ(cause_of({.signal = SIGABRT, .what = "std::bad_alloc: ?"}), "exception");
  EXPECT_EQ(cause_of({.signal = SIGKILL, .what = "std::bad_alloc: ?"}), "signal:9(SIGKILL)");
  EXPECT_EQ(cause_of({.exit_code = 1, .what = "std::bad_alloc: ?"}), "exit:1");
  EXPECT_EQ(cause_of({.what = "std::bad_alloc: ?", .left = true}), "exception");
  EXPECT_EQ(cause_of({.left = true}), "left");
  EXPECT_EQ(cause_of({}), "unknown");
}

TEST(FailureRecord, SaysThatItDoesNotKnow) {
  const std::string record = failure_record("", {.rank = 2}, 0ms);
  for (const char* key : {"job", "host", "op", "group"}) EXPECT_EQ(field(record, key), "-");
  EXPECT_EQ(field(record, "oom"), "unknown");
  EXPECT_EQ(field(record, "detected_by"), "launcher");
}

TEST(FailureRecord, WantOfMemoryIsRuledOutByAnyOtherCauseThanSigkill) {
  const auto oom_of = [](const Failure& failure) {
    return field(failure_record("job", failure, 0ms), "oom");
  };
  EXPECT_EQ(oom_of({.exit_code = 7}), "no");
  EXPECT_EQ(oom_of({.signal = SIGSEGV}), "no");
  EXPECT_EQ(oom_of({.signal = SIGKILL}), "unknown");
  EXPECT_EQ(oom_of({.signal = SIGKILL, .oom = true}), "yes");
}

TEST(FailureRecord, NoValueCanEndTheLineOrMakeAField) {
  const std::string record =
      failure_record("a b\n=\x1b[31m%", {.host = "h\tcause=exit:0", .group = "\xc3\xa9"}, 0ms);
  EXPECT_EQ(field(record, "job"), "a%20b%0A%3D%1B%5B31m%25");
  EXPECT_EQ(field(record, "host"), "h%09cause%3Dexit:0");
  EXPECT_EQ(field(record, "group"), "%C3%A9");
  EXPECT_EQ(std::count(record.begin(), record.end(), ' '), 11);
}

TEST(Describe, QuotesTheExceptionThatEndedARank) {
  Failure failure{.rank = 1, .host = "node3", .pid = 4242};
  failure.operation = "all_reduce";
  failure.sequence = 812;
  failure.what = "std::runtime_error: loss is nan";
  const std::string text =
      "rank 1 (pid 4242 on node3) ended with an exception: std::runtime_error: loss is nan, last "
      "seen in all_reduce #812";
  EXPECT_EQ(describe(failure), text);
  failure.signal = SIGABRT;
  EXPECT_EQ(describe(failure), text);
  failure.signal = SIGKILL;
  EXPECT_EQ(describe(failure),
            "rank 1 (pid 4242 on node3) was killed by signal 9 (SIGKILL) after an exception: "
            "std::runtime_error: loss is nan, last seen in all_reduce #812");
}

TEST(Describe, ARanksTextCannotMoveTheReadersCursor) {
  const std::string text = describe({.what = "a\nb\x1b[2J\x7f\xc2\x9b"});
  EXPECT_NE(text.find("a b [2J \xc2\xbf"), text.npos) << text;
}

// --- What survivors write -------------------------------------------------------------------------

struct End {
  const char* name;
  void (*end)(ProcessGroup& group);
  const char* cause;
};

const End ends[] = {
    {"kill", [](ProcessGroup&) { ::raise(SIGKILL); }, "signal:9(SIGKILL)"},
    {"exit", [](ProcessGroup&) { std::_Exit(7); }, "exit:7"},
    {"exception",
     [](ProcessGroup&) { std::thread([] { throw std::runtime_error("the end"); }).join(); },
     "exception"},
    {"leave",
     [](ProcessGroup& group) {
       { const ProcessGroup dropped = std::move(group); }
       std::this_thread::sleep_for(1s);  // It lives on.
     },
     "left"},
};

std::vector<Ranks> runs_to_an_end() {
  std::vector<Ranks> runs;
  for (const End& end : ends)
    runs.emplace_back(std::string("record of ") + end.name, [&end](const Rank& rank) {
      ProcessGroup group = init_process_group();
      for (int i = 0; i < 3; ++i) group.barrier();
      if (rank.rank == 1) return end.end(group);
      for (int i = 0; i < 2; ++i)  // However often it is told.
        EXPECT_EQ(fault_of([&] { group.barrier(); }), Fault::peer_lost);
    });
  return runs;
}

const std::vector<Ranks> runs = runs_to_an_end();

std::vector<std::string> records_in(const std::string& output) {
  std::vector<std::string> records;
  std::istringstream lines(output);
  for (std::string line; std::getline(lines, line);)
    if (line.find("lockstep-fail job=") != line.npos) records.push_back(line);
  return records;
}

TEST(FailureRecord, EverySurvivorWritesItOnceWithTheCause) {
  for (std::size_t i = 0; i < runs.size(); ++i) {
    const auto exits = runs[i].run(3, 20s);
    for (const int survivor : {0, 2}) {
      const auto& exit = exits[static_cast<std::size_t>(survivor)];
      EXPECT_EQ(exit.code, 0) << exit.output;
      const auto records = records_in(exit.output);
      ASSERT_EQ(records.size(), 1U) << exit.output;
      EXPECT_EQ(field(records[0], "rank"), "1") << records[0];
      EXPECT_EQ(field(records[0], "cause"), ends[i].cause) << records[0];
      EXPECT_EQ(field(records[0], "op"), "barrier") << records[0];
      EXPECT_EQ(field(records[0], "seq"), "3") << records[0];
      EXPECT_EQ(field(records[0], "group"), "world") << records[0];
      EXPECT_TRUE(field(records[0], "detected_by") == "0" ||
                  field(records[0], "detected_by") == "2")
          << records[0];
      EXPECT_LT(std::stoi(field(records[0], "after_ms")), 10000) << records[0];
    }
    // Both tell of the same first observer.
    EXPECT_EQ(field(records_in(exits[0].output)[0], "detected_by"),
              field(records_in(exits[2].output)[0], "detected_by"));
  }
}

}  // namespace
}  // namespace lockstep

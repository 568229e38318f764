// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "lockstep/base/text.h"
#include "lockstep/comm/process_group.h"
#include "tests/fault_of.h"
#include "tests/ranks.h"
#include "tests/rigs/across_hosts.h"
#include "tests/rigs/one_record.h"
#include "tests/soon.h"

namespace lockstep::comm::failure_record_test {
namespace {

using namespace std::chrono_literals;
using test::await_file;
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
  EXPECT_EQ(
      failure_record("a1b2", failure, 12ms),
      "lockstep-fail job=a1b2 rank=1 host=node3 pid=4242 cause=signal:9(SIGKILL) oom=no "
      "op=all_reduce seq=812 group=world detected_by=0 after_ms=12 waits_for=- differ=- call=- "
      "called=-");
}

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
  EXPECT_EQ(cause_of({.exit_code = 139}), "exit:139(SIGSEGV)");  // From a shell.
  EXPECT_EQ(cause_of({.exit_code = 128}), "exit:128");
  EXPECT_EQ(cause_of({.exit_code = 255}), "exit:255");
  EXPECT_EQ(cause_of({.signal = SIGSEGV}), "signal:11(SIGSEGV)");
  EXPECT_EQ(cause_of({.signal = 77}), "signal:77(signal%2077)");
  EXPECT_EQ(cause_of({.what = "std::bad_alloc: ?"}), "exception");
  EXPECT_EQ(cause_of({.signal = SIGABRT, .what = "std::bad_alloc: ?"}), "exception");
  EXPECT_EQ(cause_of({.signal = SIGKILL, .what = "std::bad_alloc: ?"}), "signal:9(SIGKILL)");
  EXPECT_EQ(cause_of({.exit_code = 1, .what = "std::bad_alloc: ?"}), "exit:1");
  EXPECT_EQ(cause_of({.what = "std::bad_alloc: ?", .left = true}), "exception");
  EXPECT_EQ(cause_of({.left = true}), "left");
  EXPECT_EQ(cause_of({.fault = Fault::timeout}), "timeout");
  EXPECT_EQ(cause_of({.fault = Fault::mismatch}), "mismatch");
  EXPECT_EQ(cause_of({}), "unknown");
}

TEST(FailureRecord, MarksUnknownFields) {
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
  EXPECT_EQ(std::count(record.begin(), record.end(), ' '), 15);
}

const Failure two_did_not_come{.rank = 1,
                               .what = "within 30 s; rank 0 waited",
                               .fault = Fault::timeout,
                               .ranks = {1, 3},
                               .call = "all_reduce #812 of group world"};

TEST(FailureRecord, NamesAllRanksThatDidNotCome) {
  const std::string record = failure_record("job", two_did_not_come, 0ms);
  EXPECT_EQ(field(record, "rank"), "1");
  EXPECT_EQ(field(record, "oom"), "no");
  EXPECT_EQ(field(record, "waits_for"), "1+3");
  EXPECT_EQ(field(record, "differ"), "-");
  EXPECT_EQ(field(record, "call"), "all_reduce%20#812%20of%20group%20world");
  EXPECT_EQ(field(record, "called"), "-");
}

TEST(FailureRecord, NamesAllRanksThatDifferAndWhatEachCalled) {
  const Failure failure{.rank = 2,
                        .what = "rank 0 called barrier, rank 2 called split",
                        .fault = Fault::mismatch,
                        .ranks = {2},
                        .call = "barrier #5 of group world"};
  const std::string record = failure_record("job", failure, 0ms);
  EXPECT_EQ(field(record, "waits_for"), "-");
  EXPECT_EQ(field(record, "differ"), "2");
  EXPECT_EQ(field(record, "called"), "rank%200%20called%20barrier%2C%20rank%202%20called%20split");
  EXPECT_EQ(
      describe(failure),
      "ranks disagree in barrier #5 of group world: rank 0 called barrier, rank 2 called split");
}

TEST(Describe, NamesAllRanksThatDidNotComeAndWhoWaited) {
  EXPECT_EQ(describe(two_did_not_come),
            "ranks 1,3 did not come to all_reduce #812 of group world within 30 s; rank 0 waited");
  EXPECT_EQ(lockstep::describe({.what = "the group was aborted: rank 4: ...",
                                .fault = Fault::timeout,
                                .call = "barrier #2 of group world"}),
            "barrier #2 of group world timed out: the group was aborted: rank 4: ...");
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

struct Described {
  Failure failure;
  const char* text;  // After "rank 1 (pid 4242 on node3) ".
};

const Described every_cause[] = {
    {{.signal = SIGKILL, .oom = true},
     "was killed by signal 9 (SIGKILL, out of memory), last seen in send #3"},
    {{.signal = SIGKILL, .oom = true, .what = "std::bad_alloc: x."},
     "was killed by signal 9 (SIGKILL, out of memory) after an exception: std::bad_alloc: x, last "
     "seen in send #3"},
    {{.signal = SIGSEGV}, "was killed by signal 11 (SIGSEGV), last seen in send #3"},
    {{.signal = 77}, "was killed by signal 77 (signal 77), last seen in send #3"},
    {{.what = "E: the disk is full.\n"},
     "ended with an exception: E: the disk is full, last seen in send #3"},
    {{.exit_code = 3}, "exited with code 3 without destroy_process_group(), last seen in send #3"},
    {{.exit_code = 139},
     "exited with code 139 (as a shell reports a child killed by SIGSEGV) without "
     "destroy_process_group(), last seen in send #3"},
    {{.exit_code = 255},
     "exited with code 255 without destroy_process_group(), last seen in send #3"},
    {{.left = true}, "left its group before the others, last seen in send #3"},
    {{.connection = "its connection ended."},
     "was lost: its connection ended, last seen in send #3"},
    {{}, "died of an unknown cause, last seen in send #3"},
};

TEST(Describe, NamesEveryCauseWithoutDoubledPunctuation) {
  for (auto [failure, text] : every_cause) {
    failure.rank = 1;
    failure.host = "node3";
    failure.pid = 4242;
    failure.operation = "send";
    failure.sequence = 3;
    EXPECT_EQ(lockstep::describe(failure), std::string("rank 1 (pid 4242 on node3) ") + text);
  }
}

TEST(Describe, NamesTheOtherRankOfTheLastMessage) {
  Failure failure{.rank = 1, .host = "node3", .pid = 4242, .exit_code = 3};
  failure.operation = "send";
  failure.sequence = 3;
  failure.peer = 0;
  failure.group = "pair";
  EXPECT_TRUE(describe(failure).ends_with(", last seen in send #3 to rank 0 of group pair"));
  failure.operation = "recv";
  EXPECT_TRUE(describe(failure).ends_with(", last seen in recv #3 from rank 0 of group pair"));
  failure.peer = -1;
  EXPECT_TRUE(describe(failure).ends_with(", last seen in recv #3 from any rank of group pair"));
}

TEST(Describe, ARanksTextCannotMoveTheReadersCursor) {
  const std::string text = lockstep::describe({.what = "a\nb\x1b[2J\x7f\xc2\x9b"});
  EXPECT_NE(text.find("a b [2J \xc2\xbf"), text.npos) << text;
}

// --- What survivors write ------------------------------------------------------------------------

ProcessGroup join_with_records() {
  ::setenv("LOCKSTEP_LOG", "info", 1);
  return init_process_group();
}

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
    {"leave", [](ProcessGroup& group) { const ProcessGroup dropped = std::move(group); }, "left"},
};

std::vector<Ranks> runs_to_an_end() {
  std::vector<Ranks> runs;
  for (const End& end : ends)
    runs.emplace_back(std::string("record of ") + end.name, [&end](const Rank& rank) {
      ProcessGroup group = join_with_records();
      for (int i = 0; i < 3; ++i) group.barrier();
      if (rank.rank == 1) {
        end.end(group);
        return test::wait_until_done(rank, {0, 2});  // The process continues.
      }
      for (int i = 0; i < 2; ++i)  // Several calls fail with it.
        EXPECT_EQ(fault_of([&] { group.barrier(); }), Fault::peer_lost);
      test::wait_until_done(rank, {});
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
    // Both report the same first observer.
    EXPECT_EQ(field(records_in(exits[0].output)[0], "detected_by"),
              field(records_in(exits[2].output)[0], "detected_by"));
  }
}

const Ranks dies_after_messages("dies after messages", [](const Rank& rank) {
  ProcessGroup group = join_with_records();
  group.barrier();
  float value = 0;
  for (int i = 0; i < 3; ++i)
    rank.rank == 1 ? group.send({.data = &value, .count = 1}, 0)
                   : static_cast<void>(group.recv({.data = &value, .count = 1}, 1));
  const auto received = rank.scratch / "received";
  if (rank.rank == 0) std::ofstream(received).put('1');
  if (rank.rank == 1) {
    await_file(received);
    ::raise(SIGKILL);
  }
  std::string text;
  EXPECT_EQ(fault_of([&] { group.barrier(); }, &text), Fault::peer_lost);
  EXPECT_NE(text.find("last seen in send #3 to rank 0 of group world"), text.npos) << text;
});

TEST(FailureRecord, HasTheMessageThatWasTheRanksLastCall) {
  const auto exits = dies_after_messages.run(2, 20s);
  EXPECT_EQ(exits[0].code, 0) << exits[0].output;
  const auto records = records_in(exits[0].output);
  ASSERT_EQ(records.size(), 1U) << exits[0].output;
  EXPECT_EQ(field(records[0], "op"), "send");
  EXPECT_EQ(field(records[0], "seq"), "3");
}

// --- What ranks write that waited, or differed ---------------------------------------------------

std::string record_of(const test::Exit& exit) {
  EXPECT_EQ(exit.code, 0) << exit.output;
  const auto records = records_in(exit.output);
  EXPECT_EQ(records.size(), 1U) << exit.output;
  return records.empty() ? "" : records[0];
}

const Ranks waited("waited for a rank", [](const Rank& rank) {
  ProcessGroup group = join_with_records();
  for (int i = 0; i < 3; ++i) group.barrier();
  const auto waits = rank.scratch / "waits";  // Rank 2 has begun to wait.
  const auto over = rank.scratch / "over";    // The others have waited.
  std::jthread teller;
  if (rank.rank == 2)
    teller = std::jthread([&] {
      while (group.flight_record().find("\"entered\"") == std::string::npos)
        std::this_thread::sleep_for(1ms);
      std::ofstream(waits).put('1');
    });
  if (rank.rank < 2) await_file(rank.rank == 0 ? waits : over);
  const auto timeout = rank.rank == 2 ? 1min : 300ms;
  EXPECT_EQ(fault_of([&] { group.barrier({.timeout = timeout}); }), Fault::timeout);
  std::ofstream(over).put('1');
  std::this_thread::sleep_for(300ms);  // No rank's end adds a line.
});

TEST(FailureRecord, NamesTheAbsentRankAndNotTheWaitingRanks) {
  for (const auto& exit : waited.run(3, 20s)) {
    const std::string record = record_of(exit);
    EXPECT_EQ(field(record, "rank"), "1") << record;
    EXPECT_EQ(field(record, "cause"), "timeout") << record;
    EXPECT_EQ(field(record, "waits_for"), "1") << record;
    EXPECT_EQ(field(record, "op"), "barrier") << record;
    EXPECT_EQ(field(record, "group"), "world") << record;
    EXPECT_EQ(field(record, "call"), "barrier%20#4%20of%20group%20world") << record;
    EXPECT_NE(field(record, "pid"), "0") << record;
    EXPECT_NE(field(record, "detected_by"), "1") << record;
  }
}

const Ranks waited_for_a_message("waited for a message", [](const Rank& rank) {
  ProcessGroup group = join_with_records();
  float value = 0;
  if (rank.rank == 0) {
    EXPECT_EQ(fault_of([&] { group.recv({.data = &value, .count = 1}, 1, 4, {.timeout = 200ms}); }),
              Fault::timeout);
  } else {
    EXPECT_EQ(fault_of([&] { group.barrier(); }), Fault::timeout);
  }
});

TEST(FailureRecord, NamesTheRankThatDidNotSend) {
  for (const auto& exit : waited_for_a_message.run(2, 20s)) {
    const std::string record = record_of(exit);
    EXPECT_EQ(field(record, "waits_for"), "1") << record;
    EXPECT_TRUE(field(record, "call").starts_with("recv%20of%201%20float32")) << record;
  }
}

const Ranks differed("differed", [](const Rank& rank) {
  ProcessGroup group = join_with_records();
  const ProcessGroup part = group.split(0, -rank.rank);  // Rank r has the number 2 - r there.
  std::vector<float> values(8);
  EXPECT_EQ(fault_of([&] {
              part.all_reduce({.data = values.data(), .count = rank.rank == 0 ? 7U : 8U});
            }),
            Fault::mismatch);
  group.barrier();
  destroy_process_group(group);
});

TEST(FailureRecord, NamesTheDifferingRanksByTheirNumbersInTheJob) {
  for (const auto& exit : differed.run(3, 20s)) {
    const std::string record = record_of(exit);
    EXPECT_EQ(field(record, "rank"), "0") << record;
    EXPECT_EQ(field(record, "cause"), "mismatch") << record;
    EXPECT_EQ(field(record, "differ"), "0") << record;
    EXPECT_NE(field(record, "called").find("of%207%20float32"), std::string::npos) << record;
  }
}

// --- What ranks write that wait for nobody ------------------------------------------------------

const Ranks computes("computes while another one dies", [](const Rank&) {
  ProcessGroup group = join_with_records();
  test::expect_one_record(group, 1);
});

TEST(FailureRecord, ASurvivorThatWaitsForNobodyWritesItOnceToo) {
  const auto exits = computes.run(3, 30s);
  for (const int survivor : {0, 2})
    EXPECT_EQ(exits[static_cast<std::size_t>(survivor)].code, 0)
        << exits[static_cast<std::size_t>(survivor)].output;
}

const Ranks by_default("by default", [](const Rank& rank) {
  ::unsetenv("LOCKSTEP_LOG");
  ProcessGroup group = init_process_group();
  group.barrier();
  if (rank.rank == 1) ::raise(SIGKILL);
  EXPECT_EQ(fault_of([&] { group.barrier(); }), Fault::peer_lost);
});

TEST(FailureRecord, IsNotWrittenByDefaultAsTheErrorsReportTheFailure) {
  const auto exits = by_default.run(3, 20s);
  for (const std::size_t survivor : {std::size_t{0}, std::size_t{2}}) {
    EXPECT_EQ(exits[survivor].code, 0) << exits[survivor].output;
    EXPECT_EQ(exits[survivor].output, "");
  }
}

const Ranks in_order("ends in order", [](const Rank& rank) {
  ProcessGroup group = join_with_records();
  destroy_process_group(group);
  if (rank.rank == 0) std::this_thread::sleep_for(300ms);
});

TEST(FailureRecord, NobodyWritesOneWhenRanksEndInOrder) {
  for (const auto& exit : in_order.run(3, 20s)) EXPECT_TRUE(records_in(exit.output).empty());
}

}  // namespace
}  // namespace lockstep::comm::failure_record_test

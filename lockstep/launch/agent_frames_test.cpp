// SPDX-License-Identifier: Apache-2.0
#include "lockstep/launch/agent_frames.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "lockstep/base/text.h"
#include "tests/fault_of.h"

namespace lockstep::launch::agent_frames_test {
namespace {

JobCommand command(const std::string& program, std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), program);
  return job_command({.program = program, .arguments = std::move(arguments)});
}

std::string differences(const JobCommand& here, const JobCommand& there) {
  const auto found = difference(here, there);
  if (!found) return "";
  return std::string(found->here).append("|").append(found->there);
}

TEST(JobCommand, IsTheSameWhereverTheProgramLies) {
  EXPECT_EQ(
      differences(command("./train", {"--seed", "1"}), command("/home/x/train", {"--seed", "1"})),
      "");
}

TEST(JobCommand, ReportsWhichArgumentDiffers) {
  const auto seed = [](const char* value) {
    return command("train", {"--steps", "40", "--seed", value, "--print-hash"});
  };
  EXPECT_EQ(differences(seed("1"), seed("0")), "`train ... --seed 1 ...`|`train ... --seed 0 ...`");
}

TEST(JobCommand, ReportsWhichProgramDiffers) {
  EXPECT_EQ(differences(command("a", {"x"}), command("b", {"x"})), "`a ...`|`b ...`");
  EXPECT_EQ(differences(command("a", {}), command("b", {})), "`a`|`b`");
}

TEST(JobCommand, ReportsWhichArgumentIsMissing) {
  EXPECT_EQ(differences(command("a", {"x"}), command("a", {})), "`a x`|`a`");
  EXPECT_EQ(differences(command("a", {"x", "y"}), command("a", {"x"})), "`a x y`|`a x`");
  EXPECT_EQ(differences(command("a", {"x", "y", "z"}), command("a", {"x", "y"})),
            "`a ... y z`|`a ... y`");
}

TEST(JobCommand, WordsAreNotJoined) {
  EXPECT_NE(differences(command("a", {"x y"}), command("a", {"x", "y"})), "");
  EXPECT_NE(differences(command("a", {"", "x"}), command("a", {"x", ""})), "");
}

TEST(JobCommand, IsSmallAndCleanWhateverTheArgumentsAre) {
  const JobCommand made =
      command("a\nb", std::vector<std::string>(5000, std::string(5000, '\x1b')));
  EXPECT_EQ(made.program, "a b");
  ASSERT_EQ(made.arguments.size(), JobCommand::most_arguments);
  EXPECT_EQ(made.arguments.back(), std::string(JobCommand::longest_argument, ' '));
}

TEST(JobCommand, DiffersAlsoInWhatIsTooLongToBeShown) {
  const auto ending_in = [](char end) {
    return command("a", {std::string(1000, 'x').append(1, end)});
  };
  const std::string text = differences(ending_in('1'), ending_in('2'));
  EXPECT_TRUE(text.starts_with("`a ...` with arguments of SHA-256 ")) << text;
  std::vector<std::string> many(1000, "x");
  const JobCommand first = command("a", many);
  many.push_back("x");
  EXPECT_NE(differences(first, command("a", many)), "");
}

using nlohmann::json;
using test::fault_of;

AgentFrame decoded(const json& frame) { return decode_agent_frame(frame.dump()); }

AgentFrame decoded(const AgentFrame& frame) {
  return decode_agent_frame(*first_agent_frame(encode(frame)));
}

// Control characters, invalid UTF-8, and too many bytes.
std::string hostile_text() {
  std::string text = "\x1b[2J\nlockstep run: all is well\r\xC2\x9B";
  for (char control = 1; control < 32; ++control) text += control;
  return text + "\x7f" + std::string(60'000, 'x');
}

void expect_clean(const std::string& text) {
  EXPECT_TRUE(clean_text(text) == text) << text.substr(0, 40);
  EXPECT_FALSE(text.empty());
  EXPECT_LE(text.size(), 1024U);
}

void expect_clean(const std::optional<Failure>& failure) {
  ASSERT_TRUE(failure);
  for (const std::string& text : {failure->host, failure->operation, failure->group, failure->what})
    expect_clean(text);
}

json hostile_failure() {
  return {{"rank", 1},
          {"host", hostile_text()},
          {"pid", 1},
          {"exit_code", nullptr},
          {"signal", nullptr},
          {"oom", nullptr},
          {"operation", hostile_text()},
          {"sequence", 0U},
          {"group", hostile_text()},
          {"what", hostile_text()},
          {"detected_by", -1},
          {"left", false}};
}

json join_frame() {
  return {{"type", "join"},       {"host", "node1"},    {"nproc", 1},
          {"node_rank", nullptr}, {"least", 2},         {"most", 2},
          {"program", "train"},   {"arguments", {"a"}}, {"digest", "d"}};
}

json start_frame() {
  return {{"type", "start_ranks"},
          {"attempt", 0},
          {"restarts", 0},
          {"node", 0},
          {"nodes", 2},
          {"first_rank", 0},
          {"world_size", 2},
          {"job_id", "job"},
          {"master_addr", "node0"},
          {"master_port", 1},
          {"store", "node0:1"}};
}

json with(json frame, const char* name, const json& value) {
  frame[name] = value;
  return frame;
}

TEST(AgentFrames, NoTextOfAnotherLauncherCanMoveTheCursorOrFillTheScreen) {
  const std::string text = hostile_text();
  const auto state =
      std::get<StateFrame>(decoded({{"type", "state"}, {"coordinator", text}, {"text", text}}));
  expect_clean(state.coordinator);
  expect_clean(state.text);
  const auto end = std::get<EndJob>(decoded(
      {{"type", "end_job"}, {"exit_code", 1}, {"why", text}, {"failure", hostile_failure()}}));
  expect_clean(end.why);
  expect_clean(end.failure);
  const auto ranks = std::get<EndRanks>(
      decoded({{"type", "end_ranks"}, {"why", text}, {"failure", hostile_failure()}}));
  expect_clean(ranks.why);
  expect_clean(ranks.failure);
  const auto report = std::get<ReportFrame>(decoded({{"type", "report"},
                                                     {"attempt", 0},
                                                     {"outcome", "failed"},
                                                     {"exit_code", 1},
                                                     {"failure", hostile_failure()}}));
  expect_clean(report.failure);
}

TEST(AgentFrames, NoTextOfAJoiningNodeCanMoveTheCursorOrFillTheScreen) {
  const std::string text = hostile_text();
  json frame = with(with(with(join_frame(), "host", text), "program", text), "digest", text);
  frame["arguments"] = std::vector<std::string>(1000, "\n");
  const auto hostile = std::get<JoinFrame>(decoded(frame));
  expect_clean(hostile.node.host);
  ASSERT_TRUE(hostile.command);
  expect_clean(hostile.command->program);
  expect_clean(hostile.command->digest);
  ASSERT_EQ(hostile.command->arguments.size(), JobCommand::most_arguments);
  EXPECT_EQ(hostile.command->arguments.back(), " ");
}

TEST(AgentFrames, ANameThatHasToBeExactIsRefusedRatherThanCleaned) {
  EXPECT_EQ(std::get<StartRanks>(decoded(start_frame())).round.job_id, "job");
  for (const char* name : {"job_id", "master_addr", "store"})
    for (const std::string& text : {std::string("a\nb"), std::string(1025, 'x')})
      EXPECT_EQ(fault_of([&] { decoded(with(start_frame(), name, text)); }), Fault::corrupt)
          << name;
}

TEST(AgentFrames, CarryWhatALauncherRuns) {
  const JobCommand said{.program = "train", .arguments = {"--name", "bj\xC3\xB6rn"}, .digest = "d"};
  JoinFrame join;
  join.node.host = "node1";
  join.command = said;
  const auto got = std::get<JoinFrame>(decoded(join));
  ASSERT_TRUE(got.command);
  EXPECT_EQ(got.command->program, said.program);
  EXPECT_EQ(got.command->arguments, said.arguments);
  EXPECT_EQ(got.command->digest, said.digest);
}

TEST(AgentFrames, CarryTheLastMessageOfALostRank) {
  const Failure lost{
      .rank = 1, .signal = 9, .operation = "recv", .sequence = 3, .peer = -1, .group = "pair"};
  const auto got = std::get<EndJob>(decoded(EndJob{1, "lost", lost}));
  ASSERT_TRUE(got.failure);
  EXPECT_EQ(describe(*got.failure), describe(lost));
}

TEST(AgentFrames, AcceptAnOlderLauncherWithoutACommand) {
  json frame = join_frame();
  for (const char* name : {"program", "arguments", "digest"}) frame.erase(name);
  EXPECT_FALSE(std::get<JoinFrame>(decoded(frame)).command);
}

TEST(AgentFrames, RejectAnIncompleteOrMalformedCommand) {
  for (const json& frame :
       {with(join_frame(), "program", 1), with(join_frame(), "arguments", "a"),
        with(join_frame(), "digest", nullptr), with(join_frame(), "arguments", {1})})
    EXPECT_EQ(fault_of([&] { decoded(frame); }), Fault::corrupt) << frame;
  for (const char* name : {"arguments", "digest"}) {
    json frame = join_frame();
    frame.erase(name);
    EXPECT_EQ(fault_of([&] { decoded(frame); }), Fault::corrupt) << frame;
  }
}

TEST(AgentFrames, TheLargestFramesAreWithinTheLimit) {
  std::string wide;  // Two bytes in UTF-8, six in JSON.
  for (int i = 0; i < 5000; ++i) wide += "\xC3\xB6";
  const std::vector<std::string> arguments(1000, wide);
  JoinFrame join;
  join.node.host = wide;
  join.command = job_command({.program = wide, .arguments = arguments});
  EXPECT_LE(encode(join).size(), 4 + max_agent_frame_bytes);
  const Failure failure{.host = wide,
                        .operation = wide,
                        .group = wide,
                        .what = wide,
                        .fault = Fault::timeout,
                        .ranks = std::vector<int>(100'000, 2'000'000'000),
                        .call = wide};
  EXPECT_LE(encode(EndJob{1, wide, failure}).size(), 4 + max_agent_frame_bytes);
}

TEST(AgentFrames, SanitizeAndTruncateACommand) {
  JoinFrame join;
  join.node = {.host = "node1", .nproc = 1, .least = 1, .most = 1};
  join.command = JobCommand{.arguments = std::vector<std::string>(1000, "\x1b[2J")};
  join.command->arguments.front() = std::string(60'000, '\x01');
  const std::string frame = encode(join);
  EXPECT_LE(frame.size(), 4 + max_agent_frame_bytes);
  const json said = json::parse(*first_agent_frame(frame));
  ASSERT_EQ(said["arguments"].size(), JobCommand::most_arguments);
  EXPECT_EQ(said["arguments"][0], std::string(JobCommand::longest_argument, ' '));
  EXPECT_EQ(said["arguments"][1], " [2J");
}

// --- Times of ranks ------------------------------------------------------------------------------

RankTimes some_times(int rank) {
  RankTimes times{.rank = rank, .times = {.steps = 12}, .stood_still = std::chrono::seconds(3)};
  for (std::size_t i = 0; i < step_phases; ++i)
    times.times.spent[i] = std::chrono::milliseconds(10 * i);
  times.times.waited_for = {{0, std::chrono::milliseconds(7)}, {9, std::chrono::microseconds(1)}};
  return times;
}

std::vector<RankTimes> times_after(const ReportFrame& sent) {
  const std::string bytes = encode(sent);
  return std::get<ReportFrame>(decode_agent_frame(*first_agent_frame(bytes))).times;
}

TEST(AgentFrames, CarryTheTimesOfRanks) {
  const auto got = times_after({.attempt = 0, .times = {some_times(2), some_times(3)}});
  ASSERT_EQ(got.size(), 2U);
  for (std::size_t i = 0; i < got.size(); ++i) {
    const RankTimes expected = some_times(static_cast<int>(i) + 2);
    EXPECT_EQ(got[i].rank, expected.rank);
    EXPECT_EQ(got[i].stood_still, expected.stood_still);
    EXPECT_EQ(got[i].times.steps, expected.times.steps);
    EXPECT_EQ(got[i].times.spent, expected.times.spent);
    EXPECT_EQ(got[i].times.waited_for, expected.times.waited_for);
  }
}

TEST(AgentFrames, CarryTheTimesOfSomeOfManyRanks) {
  RankTimes longest = some_times(99'999);
  longest.times.spent.fill(std::chrono::nanoseconds::max());
  for (int rank = 0; rank < 100; ++rank)
    longest.times.waited_for[99'000 + rank] = std::chrono::hours(100'000 + rank);
  const auto got = times_after({.times = std::vector<RankTimes>(10'000, longest)});
  EXPECT_EQ(got.size(), 128U);
  EXPECT_EQ(got.front().times.waited_for.size(), 8U);
  EXPECT_EQ(got.front().times.waited_for.begin()->first, 99'092) << "the longest waits";
}

TEST(AgentFrames, AreCorruptWithTimesThatAreNone) {
  const std::string begin =
      R"({"type":"report","attempt":0,"outcome":"succeeded","exit_code":0,"failure":null,"times":)";
  EXPECT_NO_THROW(decode_agent_frame(begin + "[[0,1,2,3,4,5,6,7,8,9,10,1,5]]}"));
  for (const char* wrong : {"7", "[7]", "[[]]", "[[0,1,2,3,4,5,6,7,8,9]]",
                            "[[0,1,2,3,4,5,6,7,8,9,10,1]]", "[[-1,1,2,3,4,5,6,7,8,9,10]]",
                            "[[0,1,2,3,4,5,6,7,8,9,1.5]]", "[[0,1,2,3,4,5,6,7,8,9,\"\"]]"})
    EXPECT_EQ(test::fault_of([&] { decode_agent_frame(begin + wrong + "}"); }), Fault::corrupt)
        << wrong;
}

}  // namespace
}  // namespace lockstep::launch::agent_frames_test

// SPDX-License-Identifier: Apache-2.0
#include "lockstep/launch/job_command.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace lockstep::job_command_test {
namespace {

JobCommand command(const std::string& program, std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), program);
  return job_command({.program = program, .arguments = std::move(arguments)});
}

// Returns "HERE|THERE"; empty when both are the same.
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

TEST(JobCommand, SaysWhichArgumentDiffers) {
  const auto seed = [](const char* value) {
    return command("train", {"--steps", "40", "--seed", value, "--print-hash"});
  };
  EXPECT_EQ(differences(seed("1"), seed("0")), "`train ... --seed 1 ...`|`train ... --seed 0 ...`");
}

TEST(JobCommand, SaysWhichProgramDiffers) {
  EXPECT_EQ(differences(command("a", {"x"}), command("b", {"x"})), "`a ...`|`b ...`");
  EXPECT_EQ(differences(command("a", {}), command("b", {})), "`a`|`b`");
}

TEST(JobCommand, SaysWhichArgumentIsMissing) {
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

}  // namespace
}  // namespace lockstep::job_command_test

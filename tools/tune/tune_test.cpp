// SPDX-License-Identifier: Apache-2.0
#include "tools/tune/tune.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <numeric>
#include <string>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/base/temporary_folder.h"
#include "tools/tune/report.h"
#include "tools/tune/saved_choices.h"

namespace lockstep::test::tune_test {
namespace {

using namespace tools;

bool has(const std::string& text, const std::string& part) { return text.find(part) != text.npos; }

std::vector<int> first_cpus(int count) {
  std::vector<int> cpus(static_cast<std::size_t>(count));
  std::iota(cpus.begin(), cpus.end(), 0);
  return cpus;
}

std::vector<std::pair<int, int>> shapes(const std::vector<Division>& divisions) {
  std::vector<std::pair<int, int>> found;
  for (const Division& each : divisions) found.emplace_back(each.ranks, each.threads);
  return found;
}

using Shapes = std::vector<std::pair<int, int>>;

TEST(Divisions, AreOfCoresCachesAndNodes) {
  const Topology machine = synthetic_topology("pack:2 numa:1 l3:2 core:4 pu:2", first_cpus(32));
  EXPECT_EQ(shapes(sensible_divisions(machine, {}, 64, {})),
            (Shapes{{1, 16}, {2, 8}, {4, 4}, {16, 1}}));
  EXPECT_EQ(shapes(sensible_divisions(machine, {}, 8, {})), (Shapes{{1, 16}, {2, 8}, {4, 4}}))
      << "16 ranks cannot share 8 samples evenly";
  EXPECT_EQ(shapes(sensible_divisions(machine, 2.5, 64, {})), (Shapes{{1, 2}, {2, 1}}))
      << "a quota of 2.5 CPUs is two cores";
  const Topology one = synthetic_topology("core:1 pu:1", first_cpus(1));
  EXPECT_EQ(shapes(sensible_divisions(one, {}, 64, {})), (Shapes{{1, 1}}));
}

TEST(Divisions, AreCombinedWithVariants) {
  const Topology machine = synthetic_topology("core:2 pu:1", first_cpus(2));
  const auto found = sensible_divisions(machine, {}, 64, {{"--amp", "bf16"}});
  ASSERT_EQ(found.size(), 4U);
  EXPECT_EQ(found[2].batch, 32);
  EXPECT_TRUE(found[2].options.empty());
  EXPECT_EQ(describe(found[3]), "2 ranks x 1 thread, --amp bf16");
  EXPECT_EQ(command_for(found[3], {"./train", "--batch={batch}", "{ranks}x{threads}", "{other}"}),
            (std::vector<std::string>{"./train", "--batch=32", "2x1", "{other}", "--amp", "bf16"}));
}

// The first three steps take `slow` seconds each.
StepRate observed(int count, double seconds, double slow = 1) {
  StepRate rate;
  double now = 0;
  for (int step = 1; step <= count; ++step) {
    now += step <= 3 ? slow : seconds;
    rate.observe(now, static_cast<std::uint64_t>(step));
  }
  return rate;
}

TEST(StepRate, IgnoresTheFirstSteps) {
  const StepRate rate = observed(60, 0.1);
  ASSERT_TRUE(rate.rate().has_value());
  EXPECT_NEAR(rate.rate()->median, 10, 1e-6);
  EXPECT_NEAR(rate.rate()->low, 10, 1e-6);
  EXPECT_TRUE(rate.is_reliable());
}

TEST(StepRate, NeedsStepsAndTime) {
  EXPECT_FALSE(StepRate().rate().has_value());
  EXPECT_FALSE(observed(4, 0.1).rate().has_value());
  EXPECT_FALSE(observed(1000, 0.001).is_reliable()) << "in one second";
  EXPECT_FALSE(observed(12, 1).is_reliable()) << "nine steps";
}

TEST(StepRate, HasTheRangeOfItsWindows) {
  StepRate rate;
  double now = 0;
  for (std::uint64_t step = 1; step <= 120; ++step) {
    now += step < 60 ? 0.1 : 0.2;
    rate.observe(now, step);
  }
  ASSERT_TRUE(rate.rate().has_value());
  EXPECT_NEAR(rate.rate()->high, 10, 0.1);
  EXPECT_NEAR(rate.rate()->low, 5, 0.1);
  EXPECT_FALSE(rate.is_reliable()) << "its windows differ by a factor of two";
}

TEST(StepRate, IsThatOfTheCounterIfPollsMissSteps) {
  StepRate rate;
  for (int poll = 1; poll <= 100; ++poll)
    rate.observe(0.05 * poll, static_cast<std::uint64_t>(37 * poll));
  ASSERT_TRUE(rate.rate().has_value());
  EXPECT_NEAR(rate.rate()->median, 740, 1e-6);
}

TEST(StepRate, IsNotThatOfOneStandstill) {
  StepRate rate = observed(13, 0.1);
  rate.observe(12, 14);
  EXPECT_FALSE(rate.rate().has_value());
  for (std::uint64_t step = 15; step <= 94; ++step)
    rate.observe(12 + 0.1 * static_cast<double>(step - 14), step);
  ASSERT_TRUE(rate.rate().has_value());
  EXPECT_NEAR(rate.rate()->median, 10, 0.1);
  EXPECT_LT(rate.rate()->low, 2);
}

// A division of R ranks makes speeds[R] steps per second.
struct Host {
  std::map<int, double> speeds;
  std::vector<int> runs = {};

  DivisionRun operator()(const Division& division,
                         const std::function<void(const std::string&)>& show) {
    show("0 s");
    runs.push_back(division.ranks);
    const double speed = speeds.at(division.ranks);
    if (speed == 0) return {.problem = "it ended with exit code 3", .output = "  no memory\n"};
    return {.steps_per_second = Rate{speed, speed * 0.99, speed * 1.01}, .memory = 1 << 30};
  }
};

std::vector<Division> of_ranks(const std::vector<int>& ranks) {
  std::vector<Division> found;
  for (const int each : ranks) found.push_back({.ranks = each, .threads = 8 / each, .batch = 8});
  return found;
}

TEST(Tune, MeasuresCloseDivisionsAgain) {
  Host host{{{1, 10.0}, {2, 11.5}, {4, 11.3}, {8, 5.0}}};
  std::vector<std::string> shown;
  const Tuning tuning = tune(of_ranks({1, 2, 4, 8}), 64, std::ref(host),
                             [&](const std::string& text) { shown.push_back(text); });
  EXPECT_EQ(host.runs, (std::vector<int>{1, 2, 4, 8, 4, 2, 1, 2, 4}));
  ASSERT_EQ(tuning.best, 1U);
  EXPECT_DOUBLE_EQ(tuning.divisions[1].samples_per_second->median, 11.5 * 64);
  EXPECT_DOUBLE_EQ(tuning.divisions[1].samples_per_second->low, 11.5 * 64 * 0.99);
  EXPECT_EQ(tuning.divisions[1].runs, 3);
  EXPECT_EQ(shown.front(), "round 1: 1 rank x 8 threads: 0 s");
}

TEST(Tune, ADivisionWithoutRivalIsMeasuredOnce) {
  Host host{{{1, 10.0}, {2, 20.0}}};
  const Tuning tuning = tune(of_ranks({1, 2}), 64, std::ref(host), [](const std::string&) {});
  EXPECT_EQ(host.runs, (std::vector<int>{1, 2}));
  EXPECT_EQ(tuning.best, 1U);
}

TEST(Tune, FailedDivisionsAreShownAndNeverTheBest) {
  Host host{{{1, 10.0}, {2, 0.0}}};
  const Tuning tuning = tune(of_ranks({1, 2}), 64, std::ref(host), [](const std::string&) {});
  ASSERT_EQ(tuning.best, 0U);
  const TunedProgram program{.program = {"./my train", "{batch}"}, .global_batch = 64, .cores = 8};
  const std::string text = table_of(tuning, program);
  EXPECT_TRUE(has(text, "*     1        8      8         640  (634 - 646)")) << text;
  EXPECT_TRUE(has(text, "-  it ended with exit code 3\n")) << text;
  EXPECT_TRUE(has(text, "2 ranks x 4 threads: it ended with exit code 3:\n  no memory\n")) << text;
  EXPECT_TRUE(has(text, "best: lockstep run -n 1 './my train' 8\n")) << text;
  const auto json = nlohmann::json::parse(json_of(tuning, program));
  EXPECT_EQ(json.at("best"), 0);
  EXPECT_EQ(json.at("divisions").at(1).at("problem"), "it ended with exit code 3");
  EXPECT_EQ(json.at("divisions").at(0).at("samples_per_second"), 640);
  EXPECT_TRUE(has(svg_of(tuning, program), ">1 rank x 8 threads</text>"));
}

TEST(Tune, NothingIsBestIfAllFail) {
  Host host{{{1, 0.0}, {2, 0.0}}};
  const Tuning tuning = tune(of_ranks({1, 2}), 64, std::ref(host), [](const std::string&) {});
  EXPECT_EQ(host.runs, (std::vector<int>{1, 2}));
  EXPECT_FALSE(tuning.best.has_value());
  EXPECT_FALSE(has(table_of(tuning, {}), "best:"));
}

TEST(Tune, ASignalKeepsWhatWasMeasured) {
  Host host{{{1, 10.0}, {2, 10.1}}};
  int runs = 0;
  const auto until_signal = [&](const Division& division, const auto& show) {
    return ++runs == 3 ? DivisionRun{.signal = 2} : host(division, show);
  };
  const Tuning tuning = tune(of_ranks({1, 2}), 64, until_signal, [](const std::string&) {});
  EXPECT_EQ(tuning.signal, 2);
  ASSERT_EQ(tuning.best, 1U);
  EXPECT_DOUBLE_EQ(tuning.divisions[1].samples_per_second->median, 646.4);
}

class SavedChoices : public testing::Test {
 protected:
  SavedChoices() { ::setenv("XDG_CONFIG_HOME", folder_.path().c_str(), 1); }
  ~SavedChoices() override { ::unsetenv("XDG_CONFIG_HOME"); }

  const TemporaryFolder folder_;
};

TEST_F(SavedChoices, BelongToProgramsAndScripts) {
  const Division two{.ranks = 2, .threads = 1, .batch = 32, .options = {"--amp", "bf16"}};
  const Division four{.ranks = 4, .threads = 2, .batch = 16};
  EXPECT_FALSE(saved_choice({"/bin/true", "{batch}"}).has_value());
  save_choice({"/bin/true", "{batch}"}, two);
  save_choice({"python3", "-u", "/tmp/train.py", "{batch}"}, four);
  EXPECT_EQ(saved_choice({"/bin/true", "--epochs", "3", "{batch}"}), two);
  EXPECT_EQ(saved_choice({"/usr/bin/python3", "/tmp/train.py"}), four);
  EXPECT_FALSE(saved_choice({"python3", "/tmp/other.py"}).has_value());
  save_choice({"/bin/true", "{batch}"}, four);
  EXPECT_EQ(saved_choice({"/bin/true"}), four);
}

TEST_F(SavedChoices, DoNotReplaceAForeignFile) {
  std::filesystem::create_directory(folder_.path() / "lockstep");
  std::ofstream(file_of_choices()) << "[1, 2]";
  EXPECT_THROW(save_choice({"/bin/true"}, {}), Error);
  EXPECT_THROW(saved_choice({"/bin/true"}), Error);
  std::string text;
  std::getline(std::ifstream(file_of_choices()), text);
  EXPECT_EQ(text, "[1, 2]");
}

}  // namespace
}  // namespace lockstep::test::tune_test

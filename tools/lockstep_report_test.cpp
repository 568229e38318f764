// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string>

#include "tests/rigs/command.h"

namespace lockstep::test::lockstep_report_test {
namespace {

using nlohmann::json;

bool has(const std::string& text, const std::string& part) { return text.find(part) != text.npos; }

// Its last rank is slow in data.
json run(int ranks) {
  json made = {{"format", "lockstep-run-1"},
               {"lockstep", "0.1.0"},
               {"torch", "2.13.0"},
               {"program", "./train</script>"},
               {"arguments", json::array()},
               {"started", 1.8e9},
               {"seconds", 4.0},
               {"ended", "finished"},
               {"ranks", ranks},
               {"hosts", 1},
               {"samples", 64 * 100 * ranks},
               {"links", json::array()},
               {"all_reduce_bytes_per_step", 0},
               {"phases", {"data", "forward", "wait"}},
               {"totals", json::array()}};
  for (int rank = 0; rank < ranks; ++rank) {
    const bool is_slow = ranks > 1 && rank == ranks - 1;
    json total = {{"rank", rank},
                  {"steps", 100},
                  {"seconds", {{"data", is_slow ? 1.1 : 0.1}, {"forward", 3.9}}},
                  {"waited_for", json::object()}};
    if (ranks > 1 && !is_slow) {
      total["seconds"]["wait"] = 1.0;
      total["waited_for"][std::to_string(ranks - 1)] = 1.0;
    }
    made["totals"].push_back(total);
  }
  return made;
}

class LockstepReport : public ::testing::Test {
 public:
  LockstepReport() : folder_(::testing::TempDir() + "report_" + std::to_string(::getpid())) {
    std::filesystem::create_directory(folder_);
  }
  ~LockstepReport() override { std::filesystem::remove_all(folder_); }

  std::string path(const std::string& name) const { return folder_ / name; }
  std::string file(const std::string& name, const std::string& text) const {
    std::ofstream(path(name)) << text;
    return path(name);
  }

 private:
  const std::filesystem::path folder_;
};

TEST_F(LockstepReport, ComparesRunsAsText) {
  const Finished report = run_command(
      {LOCKSTEP, "report", file("run4.json", run(4).dump()), file("run1.json", run(1).dump())});
  EXPECT_EQ(report.code, 0) << report.err;
  for (const char* part : {"run1.json      1      1    100     40.0", "80 %\n", "run4.json",
                           "others waited 10 ms a step (20 %) for rank 3, of which 10 in data\n",
                           "Amdahl's law: 8.3 % of the work does not scale: at most 12 times 1 ",
                           "with batches ready in time: x1.28", "on 8 ranks, by Amdahl's law"})
    EXPECT_TRUE(has(report.out, part)) << part << " in\n" << report.out;
}

TEST_F(LockstepReport, WritesOnePageThatLoadsNothing) {
  const std::string page_path = path("report.html");
  const Finished report =
      run_command({LOCKSTEP, "report", file("run2.json", run(2).dump()), "--html", page_path});
  EXPECT_EQ(report.code, 0) << report.err;
  std::ifstream stream(page_path);
  const std::string page{std::istreambuf_iterator<char>(stream), {}};
  EXPECT_TRUE(page.starts_with("<!DOCTYPE html>"));
  EXPECT_TRUE(has(page, "others waited 10 ms a step")) << "also without scripts";
  EXPECT_FALSE(has(page, "./train</script>")) << "a text ends the script";
  EXPECT_FALSE(has(page, "/*DATA*/") || has(page, "/*STYLE*/") || has(page, "<!--TEXT-->"));
  for (const char* loads : {"src=", "href=", "@import", "fetch(", "https://"})
    EXPECT_FALSE(has(page, loads)) << loads;
}

TEST_F(LockstepReport, KeepsATextThatLooksLikeAPartOfThePage) {
  json two = run(2);
  two["links"] = {{{"name", "/*DATA*/ /*SCRIPT*/"}, {"latency_s", 1e-6}, {"bytes_per_s", 1e9}}};
  two["all_reduce_bytes_per_step"] = 1e6;
  const std::string page_path = path("report.html");
  const Finished report =
      run_command({LOCKSTEP, "report", file("run2.json", two.dump()), "--html", page_path});
  EXPECT_EQ(report.code, 0) << report.err;
  std::ifstream stream(page_path);
  const std::string page{std::istreambuf_iterator<char>(stream), {}};
  const std::string opens = "type=\"application/json\">";
  const std::size_t begin = page.find(opens) + opens.size();
  const json data = json::parse(page.substr(begin, page.find("</script>", begin) - begin));
  EXPECT_TRUE(has(data.at("sizes").at(0).at("assumption"), "/*DATA*/ /*SCRIPT*/"));
}

TEST_F(LockstepReport, RefusesWhatIsNoRun) {
  const std::string good = file("run2.json", run(2).dump());
  const std::string other = file("package.json", "{\"name\": \"x\"}");
  const Finished report = run_command({LOCKSTEP, "report", good, other});
  EXPECT_EQ(report.code, 65);
  EXPECT_EQ(report.out, "");
  EXPECT_EQ(report.err,
            "lockstep report: " + other + ": this is JSON, but not a run.json of Lockstep\n");
  const Finished absent = run_command({LOCKSTEP, "report", path("absent.json")});
  EXPECT_EQ(absent.code, 71);
  EXPECT_TRUE(has(absent.err, "absent.json")) << absent.err;
  const Finished nothing = run_command({LOCKSTEP, "report"});
  EXPECT_EQ(nothing.code, 64);
  EXPECT_EQ(nothing.err, "lockstep report: file is required; see lockstep report --help\n");
  for (const char* ranks : {"0", "8,16,", ",8", "8,,16", "8;16", "8,1000001", ""}) {
    const Finished refused = run_command({LOCKSTEP, "report", good, "--ranks", ranks});
    EXPECT_EQ(refused.code, 64) << ranks;
    EXPECT_TRUE(has(refused.err, "--ranks")) << refused.err;
  }
  EXPECT_EQ(run_command({LOCKSTEP, "report", good, "--ranks", "8,1000000"}).code, 0);
  json endless = run(2);
  endless["steps"] = {{"first", 0},
                      {"every", 1},
                      {"columns", {"seconds", "forward"}},
                      {"ranks", {{{1e308, 1e308}, {1, 1}}}}};
  const std::string absurd = file("absurd.json", endless.dump());
  const Finished refused = run_command({LOCKSTEP, "report", absurd});
  EXPECT_EQ(refused.code, 65);
  EXPECT_EQ(refused.err, "lockstep report: " + absurd + ": 'seconds' is too large\n");
  EXPECT_EQ(run_command({LOCKSTEP, "report", good, "--html", "/no/such/folder/a.html"}).code, 71);
}

TEST_F(LockstepReport, PrintsItsUsage) {
  const Finished help = run_command({LOCKSTEP, "report", "--help"});
  EXPECT_EQ(help.code, 0);
  EXPECT_TRUE(has(help.out, "lockstep report run1.json run4.json --html report.html")) << help.out;
}

}  // namespace
}  // namespace lockstep::test::lockstep_report_test

// SPDX-License-Identifier: Apache-2.0
#include "tools/run/options.h"

#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <memory>
#include <sstream>

#include "lockstep/base/error.h"
#include "lockstep/base/log.h"
#include "lockstep/base/text.h"
#include "lockstep/launch/binding.h"
#include "tests/ranks.h"

namespace lockstep::tools::options_test {
namespace {

using namespace std::chrono_literals;
using Arguments = std::vector<std::string>;

// `lockstep run OPTIONS... program`.
RunCommandLine parse(Arguments options) {
  options.emplace_back("program");
  return parse_run(options);
}

std::string refusal(const Arguments& arguments) {
  try {
    parse_run(arguments);
    return {};
  } catch (const Error& error) {
    EXPECT_EQ(error.fault(), Fault::misuse);
    return bare_text(error);
  }
}

class Variable {
 public:
  Variable(std::string name, const std::string& value) : name_(std::move(name)) {
    ::setenv(name_.c_str(), value.c_str(), 1);
  }
  ~Variable() { ::unsetenv(name_.c_str()); }
  Variable(const Variable&) = delete;
  Variable& operator=(const Variable&) = delete;

 private:
  std::string name_;
};

struct Case {
  std::string name;
  std::string value;  // Empty for a flag.
  std::function<bool(const RunCommandLine&)> holds;
  Arguments also = {};
};

const std::vector<Case> cases = {
    {"nproc-per-node", "3", [](auto& line) { return line.options.nproc_per_node == 3; }},
    {"bind", "numa", [](auto& line) { return line.options.bind == Binding::numa; }},
    {"dry-run", "", [](auto& line) { return line.dry_run; }},
    {"timeline", "t.json", [](auto& line) { return line.timeline == "t.json"; }},
    {"profile",
     "steps=100:105",
     [](auto& line) { return line.profile == "steps=100:105"; },
     {"--timeline", "t.json"}},
    {"standalone", "", [](auto& line) { return line.options.hosts.most == 1; }},
    {"nnodes",
     "2:4",
     [](auto& line) { return line.options.hosts.least == 2 && line.options.hosts.most == 4; },
     {"--rdzv-endpoint", "a"}},
    {"node-rank",
     "1",
     [](auto& line) { return line.options.hosts.node_rank == 1; },
     {"--nnodes", "2", "--rdzv-endpoint", "a"}},
    {"rdzv-endpoint", "a:7", [](auto& line) { return line.options.hosts.endpoint == "a:7"; }},
    {"rdzv-id", "job 7", [](auto& line) { return line.options.hosts.id == "job 7"; }},
    {"rdzv-backend", "static", [](auto& line) { return line.options.hosts.endpoint.empty(); }},
    {"master-addr", "a", [](auto& line) { return line.options.hosts.endpoint == "a:29500"; }},
    {"master-port",
     "7",
     [](auto& line) { return line.options.hosts.endpoint == "a:7"; },
     {"--master-addr", "a"}},
    {"no-python", "", [](auto& line) { return line.options.arguments == Arguments{"program"}; }},
    {"join-timeout", "2.5", [](auto& line) { return line.options.hosts.join_timeout == 2500ms; }},
    {"last-call", "0", [](auto& line) { return line.options.hosts.last_call == 0ms; }},
    {"max-restarts", "5", [](auto& line) { return line.options.max_restarts == 5; }},
    {"max-restart-delay", "0.5",
     [](auto& line) { return line.options.max_restart_delay == 500ms; }},
    {"on-failure", "continue",
     [](auto& line) { return line.options.on_failure == OnFailure::continue_without; }},
    {"leave-out-stragglers",
     "30",
     [](auto& line) { return line.options.leave_out_stragglers == 30s; },
     {"--on-failure", "continue"}},
    {"signals-to-handle", "SIGTERM,USR1",
     [](auto& line) {
       return line.options.signals_to_handle == std::vector<int>{SIGTERM, SIGUSR1};
     }},
    {"shutdown-timeout", "1e-3", [](auto& line) { return line.options.shutdown_timeout == 1ms; }},
    {"metrics-port", "9100", [](auto& line) { return line.options.metrics == "127.0.0.1:9100"; }},
    {"verbose", "", [](auto& line) { return line.options.verbose; }},
    {"log-dir", "logs",
     [](auto& line) {
       return line.options.log.directory == "logs" && line.options.log.tee.all == Streams::both;
     }},
    {"redirects",
     "1",
     [](auto& line) {
       return line.options.log.redirects.all == Streams::out &&
              line.options.log.tee.all == Streams::none;
     },
     {"--log-dir", "logs"}},
    {"tee",
     "0:2",
     [](auto& line) { return line.options.log.tee.of(0) == Streams::err; },
     {"--log-dir", "logs"}},
    {"local-ranks-filter",
     "0,2",
     [](auto& line) {
       return line.options.log.local_ranks == std::set<int>{0, 2};
     },
     {"-n", "3"}},
    {"log-format", "json", [](auto& line) { return line.options.log.format == LogFormat::json; }},
};

std::string variable_of(const std::string& name) {
  std::string variable = "LOCKSTEP_" + name;
  for (char& letter : variable)
    letter = letter == '-' ? '_' : static_cast<char>(std::toupper(letter));
  return variable;
}

Arguments with(const Case& option, const std::string& name) {
  Arguments arguments = option.also;
  arguments.push_back("--" + name);
  if (!option.value.empty()) arguments.push_back(option.value);
  return arguments;
}

TEST(RunOptions, EachIsTakenFromTheCommandLine) {
  for (const Case& option : cases)
    EXPECT_TRUE(option.holds(parse(with(option, option.name)))) << option.name;
}

TEST(RunOptions, MaxRestartsLimitsReplacementsOnlyIfGiven) {
  EXPECT_EQ(parse({"--on-failure", "continue"}).options.max_replacements, std::nullopt);
  EXPECT_EQ(parse({"--max-restarts", "0"}).options.max_replacements, 0);
  EXPECT_EQ(parse({}).options.on_failure, OnFailure::end_all);
  EXPECT_EQ(refusal({"--leave-out-stragglers", "30", "program"}),
            "--leave-out-stragglers needs --on-failure continue");
  EXPECT_EQ(refusal({"--on-failure", "continue", "--leave-out-stragglers", "0.5", "program"}),
            "--leave-out-stragglers: must be at least 1 second");
  EXPECT_EQ(refusal({"--on-failure", "ignore", "program"}),
            "--on-failure: must be one of end, continue, not 'ignore'");
}

TEST(RunOptions, EachMayBeSpelledWithUnderscores) {
  for (const Case& option : cases) {
    std::string name = option.name;
    std::replace(name.begin(), name.end(), '-', '_');
    EXPECT_TRUE(option.holds(parse(with(option, name)))) << name;
  }
}

TEST(RunOptions, EachIsTakenFromItsVariableToo) {
  for (const Case& option : cases) {
    const Variable variable(variable_of(option.name), option.value.empty() ? "1" : option.value);
    EXPECT_TRUE(option.holds(parse(option.also))) << option.name;
  }
}

// `holds` checks the resulting options.
struct Environment {
  const char* what;
  std::vector<std::pair<const char*, const char*>> variables;
  Arguments options;
  std::function<bool(const RunOptions&)> holds;
  std::vector<const char*> warned_of = {};
};

constexpr const char* link = "tcp://10.0.0.1:29400";  // A service link of Kubernetes.

const std::vector<Environment> environments = {
    {"Kubeflow 2, one pod",
     {{"PET_NNODES", "1"},
      {"PET_NPROC_PER_NODE", "2"},
      {"PET_NODE_RANK", "0"},
      {"PET_MASTER_ADDR", "job-node-0-0.job"},
      {"PET_MASTER_PORT", "29500"}},
     {},
     [](const RunOptions& run) { return run.nproc_per_node == 2 && run.hosts.most == 1; }},
    {"Kubeflow 2, two pods",
     {{"PET_NNODES", "2"},
      {"PET_NPROC_PER_NODE", "auto"},
      {"PET_NODE_RANK", "1"},
      {"PET_MASTER_ADDR", "job-node-0-0.job"},
      {"PET_MASTER_PORT", "29500"}},
     {},
     [](const RunOptions& run) {
       return run.nproc_per_node == usable_cores() && run.hosts.least == 2 && run.hosts.most == 2 &&
              run.hosts.node_rank == 1 && run.hosts.endpoint == "job-node-0-0.job:29500";
     }},
    {"Kubeflow 1, elastic",
     {{"PET_NNODES", "1:2"},
      {"PET_NPROC_PER_NODE", "cpu"},
      {"PET_NODE_RANK", "0"},
      {"PET_RDZV_BACKEND", "c10d"},
      {"PET_RDZV_ENDPOINT", "job-worker-0:23456"},
      {"PET_RDZV_ID", "job"},
      {"PET_MAX_RESTARTS", "3"},
      {"PET_MASTER_ADDR", "job-master-0"},
      {"PET_MASTER_PORT", "1"}},
     {},
     [](const RunOptions& run) {
       return run.hosts.least == 1 && run.hosts.most == 2 && !run.hosts.node_rank &&
              run.hosts.endpoint == "job-worker-0:23456" && run.hosts.id == "job" &&
              run.max_restarts == 3;
     }},
    {"our variables before torchrun's",
     {{"LOCKSTEP_NPROC_PER_NODE", "3"}, {"PET_NPROC_PER_NODE", "2"}},
     {},
     [](const RunOptions& run) { return run.nproc_per_node == 3; }},
    {"the command line before torchrun's variables",
     {{"PET_NPROC_PER_NODE", "2"}},
     {"-n", "4"},
     [](const RunOptions& run) { return run.nproc_per_node == 4; }},
    {"one host by the command line, in a job of four",
     {{"PET_NNODES", "4"},
      {"PET_NPROC_PER_NODE", "2"},
      {"PET_NODE_RANK", "3"},
      {"PET_MASTER_ADDR", "a"},
      {"PET_MASTER_PORT", "1"}},
     {"--standalone"},
     [](const RunOptions& run) {
       return run.nproc_per_node == 2 && run.hosts.most == 1 && !run.hosts.node_rank &&
              run.hosts.endpoint.empty();
     }},
    {"the same by PET_STANDALONE",
     {{"PET_NNODES", "4"}, {"PET_STANDALONE", "1"}, {"PET_NODE_RANK", "3"}},
     {},
     [](const RunOptions& run) { return run.hosts.most == 1 && !run.hosts.node_rank; }},
    {"an endpoint by the command line",
     {{"PET_NNODES", "2"}, {"PET_MASTER_ADDR", "a"}, {"PET_MASTER_PORT", "1"}},
     {"--rdzv-endpoint", "b:2"},
     [](const RunOptions& run) { return run.hosts.endpoint == "b:2"; }},
    {"a master by the command line",
     {{"PET_NNODES", "2"}, {"PET_RDZV_ENDPOINT", "a:1"}, {"PET_MASTER_PORT", "2"}},
     {"--master-addr", "b"},
     [](const RunOptions& run) { return run.hosts.endpoint == "b:2"; }},
    {"torchrun's defaults",
     {{"PET_NNODES", "1:1"}, {"PET_REDIRECTS", "0"}, {"PET_TEE", "0"}, {"PET_NO_PYTHON", "0"}},
     {},
     [](const RunOptions& run) { return run.hosts.most == 1 && run.log.directory.empty(); }},
    {"options without an effect here",
     {{"PET_RDZV_CONF", "timeout=900"}, {"PET_MONITOR_INTERVAL", "5"}, {"PET_MODULE", "0"}},
     {},
     [](const RunOptions& run) { return run.nproc_per_node == 1; },
     {"PET_MONITOR_INTERVAL=5 has no effect: ", "PET_RDZV_CONF=timeout=900 has no effect: "}},
    {"a Kubernetes service named lockstep-master",
     {{"LOCKSTEP_MASTER_PORT", link}, {"LOCKSTEP_MASTER_SERVICE_HOST", "10.0.0.1"}},
     {},
     [](const RunOptions& run) { return run.hosts.master_port == 0; },
     {"ignoring LOCKSTEP_MASTER_PORT=tcp://10.0.0.1:29400"}},
    {"services named lockstep-metrics and pet-master, with values of torchrun's",
     {{"LOCKSTEP_METRICS_PORT", link}, {"PET_MASTER_PORT", link}, {"PET_NPROC_PER_NODE", "2"}},
     {},
     [](const RunOptions& run) { return run.metrics.empty() && run.nproc_per_node == 2; },
     {"ignoring LOCKSTEP_METRICS_PORT=tcp://10.0.0.1:29400",
      "ignoring PET_MASTER_PORT=tcp://10.0.0.1:29400"}},
    {"service links in variables that count less than the command line",
     {{"LOCKSTEP_RDZV_ENDPOINT", link}, {"PET_MASTER_ADDR", link}},
     {"--nnodes", "2", "--rdzv-endpoint", "a"},
     [](const RunOptions& run) { return run.hosts.endpoint == "a:29400"; },
     {"ignoring LOCKSTEP_RDZV_ENDPOINT=tcp://10.0.0.1:29400",
      "ignoring PET_MASTER_ADDR=tcp://10.0.0.1:29400"}},
};

TEST(RunOptions, AreTakenFromEachEnvironment) {
  for (const Environment& each : environments) {
    SCOPED_TRACE(each.what);
    std::vector<std::unique_ptr<Variable>> set;
    for (const auto& [name, value] : each.variables)
      set.push_back(std::make_unique<Variable>(name, value));
    Arguments warnings;
    set_log_sink([&](LogLevel, std::string_view text) { warnings.emplace_back(text); });
    EXPECT_TRUE(each.holds(parse(each.options).options));
    set_log_sink({});
    std::ranges::sort(warnings);
    ASSERT_EQ(warnings.size(), each.warned_of.size()) << testing::PrintToString(warnings);
    for (std::size_t i = 0; i < warnings.size(); ++i)
      EXPECT_TRUE(warnings[i].starts_with(each.warned_of[i])) << warnings[i];
  }
}

TEST(RunOptions, NoneIsTakenFromAServiceLink) {
  set_log_sink([](LogLevel, std::string_view) {});
  for (const Case& option : cases) {
    const Variable ours(variable_of(option.name), link);
    const Variable torchruns("PET_" + variable_of(option.name).substr(9), link);
    EXPECT_EQ(refusal({"program"}), "") << option.name;
    EXPECT_EQ(log_format_in({}), LogFormat::text);
  }
  set_log_sink({});
}

TEST(RunOptions, EachIsNamedAsItWasTyped) {
  for (const auto& [words, typed] : std::vector<std::pair<Arguments, std::string>>{
           {{"-n", "x"}, "-n"},
           {{"-nx"}, "-n"},
           {{"-np", "x"}, "-np"},
           {{"-v", "--nproc_per_node=x"}, "--nproc_per_node"},
           {{"-n", "2", "--nproc-per-node", "x"}, "--nproc-per-node"},
           {{"--max_restarts", "x", "-n", "2"}, "--max_restarts"}}) {
    Arguments line = words;
    line.insert(line.end(), {"program", "--nproc-per-node", "y"});
    const std::string said = refusal(line);
    EXPECT_TRUE(said.starts_with(typed + ": must be a number")) << said;
  }
  EXPECT_EQ(refusal({"-np"}), "-np has no value");
  EXPECT_EQ(refusal({"-r", "-n", "2", "program"}), "-r has no value");
}

TEST(RunOptions, SimilarVariablesThatDoNotExistAreWarnedOf) {
  const std::vector<std::pair<const char*, const char*>> wrong = {
      {"LOCKSTEP_BACKENDS", "did you mean LOCKSTEP_BACKEND?"},
      {"LOCKSTEP_FLIGHT_RECORDS", "did you mean LOCKSTEP_FLIGHT_RECORD?"},
      {"LOCKSTEP_NPROC_PER_NOED", "did you mean LOCKSTEP_NPROC_PER_NODE?"}};
  std::vector<std::unique_ptr<Variable>> set;
  for (const auto& [name, question] : wrong) set.push_back(std::make_unique<Variable>(name, "2"));
  // Kubernetes' variables, the user's, and empty ones.
  for (const char* other : {"LOCKSTEP_MASTER_SERVICE_HOST", "LOCKSTEP_MASTER_PORT_29500_TCP_ADDR",
                            "LOCKSTEP_SERVICE_PORT", "LOCKSTEP_TEST_X", "LOCKSTEP_DATE_OF_BUILD"})
    set.push_back(std::make_unique<Variable>(other, "10.0.0.1"));
  set.push_back(std::make_unique<Variable>("LOCKSTEP_LOGS", link));
  set.push_back(std::make_unique<Variable>("LOCKSTEP_NODES", ""));
  Arguments warnings;
  set_log_sink([&](LogLevel, std::string_view text) { warnings.emplace_back(text); });
  EXPECT_EQ(refusal({"program"}), "");
  set_log_sink({});
  ASSERT_EQ(warnings.size(), wrong.size()) << testing::PrintToString(warnings);
  for (std::size_t i = 0; i < wrong.size(); ++i) {
    EXPECT_TRUE(warnings[i].starts_with(wrong[i].first)) << warnings[i];
    EXPECT_TRUE(warnings[i].ends_with(wrong[i].second)) << warnings[i];
  }
}

TEST(RunOptions, AVariableOfTorchrunIsNamedWhereItIsWrong) {
  const Variable ranks("PET_NPROC_PER_NODE", "xpu");
  EXPECT_EQ(refusal({"program"}).find("PET_NPROC_PER_NODE: must be a number"), 0U);
}

TEST(RunOptions, EachIsInTheHelpWithItsVariable) {
  const std::string help = parse_run({"--help"}).help;
  for (const Case& option : cases) {
    EXPECT_NE(help.find("--" + option.name), help.npos) << option.name;
    EXPECT_NE(help.find(variable_of(option.name)), help.npos) << option.name;
  }
  EXPECT_EQ(help.find("monitor"), help.npos) << "that is refused";
  EXPECT_NE(help.find("LOCKSTEP_NNODES, PET_NNODES\n"), help.npos);
  EXPECT_EQ(help.find("PET_BIND"), help.npos) << "torchrun has no such option";
}

TEST(RunOptions, PreferTheCommandLineToTheVariable) {
  const Variable variable("LOCKSTEP_NPROC_PER_NODE", "7");
  EXPECT_EQ(parse({"-n", "2"}).options.nproc_per_node, 2);
  EXPECT_EQ(parse({}).options.nproc_per_node, 7);
}

TEST(RunOptions, ReportAnInvalidVariableInOneLine) {
  const Variable variable("LOCKSTEP_NNODES", "many\nhosts");
  EXPECT_EQ(refusal({"program"}),
            "LOCKSTEP_NNODES: must be a number of hosts, or MIN:MAX, not 'many?hosts'");
}

TEST(RunOptions, WithoutAnyThereIsOneRankOnOneHost) {
  const RunCommandLine line = parse({});
  EXPECT_EQ(line.options.nproc_per_node, 1);
  EXPECT_EQ(line.options.hosts.least, 1);
  EXPECT_EQ(line.options.hosts.most, 1);
  EXPECT_FALSE(line.options.hosts.node_rank);
  EXPECT_EQ(line.options.hosts.endpoint, "");
  EXPECT_EQ(line.options.hosts.join_timeout, Hosts().join_timeout);
  EXPECT_EQ(line.options.hosts.last_call, Hosts().last_call);
  EXPECT_EQ(line.options.max_restarts, 0);
  EXPECT_EQ(line.options.max_restart_delay, RunOptions().max_restart_delay);
  EXPECT_EQ(line.options.hosts.master_port, 0);
  EXPECT_EQ(line.options.bind, Binding::automatic);
  EXPECT_EQ(line.options.shutdown_timeout, RunOptions().shutdown_timeout);
  EXPECT_TRUE(line.options.signals_to_handle.empty());
  EXPECT_EQ(line.options.log.directory, "");
  EXPECT_EQ(line.options.log.tee.all, Streams::none);
  EXPECT_FALSE(line.options.verbose);
  EXPECT_FALSE(line.dry_run);
}

TEST(RunOptions, ShortNamesAndEqualSignsAreTaken) {
  const RunCommandLine line =
      parse({"-n4", "-v", "-r3", "-t", "0:1", "--log_dir=logs", "--nproc-per-node=2"});
  EXPECT_EQ(line.options.nproc_per_node, 2) << "the last one counts";
  EXPECT_TRUE(line.options.verbose);
  EXPECT_EQ(line.options.log.redirects.all, Streams::both);
  EXPECT_EQ(line.options.log.tee.of(0), Streams::out);
}

TEST(RunOptions, AutoIsOneRankForEachUsableCore) {
  EXPECT_EQ(parse({"-n", "auto"}).options.nproc_per_node, usable_cores());
  EXPECT_EQ(parse({"--nproc-per-node", "cpu"}).options.nproc_per_node, usable_cores());
}

TEST(RunOptions, GpuIsOneRankForEachVisibleGpu) {
  const test::ScratchDirectory devices;
  for (const char* name : {"nvidia0", "nvidia1", "nvidia2", "nvidiactl", "nvidia-uvm"})
    std::ofstream(devices.path() / name) << "";
  const auto ranks = [&](const char* visible) {
    return parse_ranks("gpu", devices.path(), visible);
  };
  EXPECT_EQ(ranks(nullptr), 3);
  EXPECT_EQ(ranks("2,0"), 2);
  EXPECT_EQ(ranks("0,3,1"), 1) << "CUDA hides what follows a device that does not exist";
  EXPECT_EQ(ranks("GPU-8932f937"), 1);
  EXPECT_THROW(ranks(""), Error);
  EXPECT_THROW(ranks("-1"), Error);
  EXPECT_THROW(parse_ranks("gpu", "/no/such/folder", nullptr), Error);
}

TEST(RunOptions, TheNumberOfRanksMayBeSpelledAsForMpirun) {
  const RunCommandLine line = parse({"-v", "-np", "3", "--bind", "core"});
  EXPECT_EQ(line.options.nproc_per_node, 3);
  EXPECT_EQ(line.options.bind, Binding::core);
  EXPECT_EQ(parse_run({"-np", "2", "program", "-np", "4"}).options.arguments,
            (Arguments{"program", "-np", "4"}));
  EXPECT_EQ(log_format_in({"-np", "0", "--log-format=json", "program"}), LogFormat::json);
  EXPECT_NE(refusal({"-np", "program"}), "");
}

TEST(RunOptions, TheEndpointHasAPortInTheEnd) {
  for (const auto& [said, meant] : {std::pair<const char*, const char*>{"node0", "node0:29400"},
                                    {"10.0.0.1:1", "10.0.0.1:1"},
                                    {"[::1]", "[::1]:29400"},
                                    {"[fe80::1]:65535", "[fe80::1]:65535"},
                                    {"localhost:0", "localhost:0"}})
    EXPECT_EQ(parse({"--rdzv-endpoint", said}).options.hosts.endpoint, meant);
  for (const char* wrong : {"", ":", ":29400", "a:", "a:x", "a:-1", "a:65536", "a:1:2", "::1",
                            "[::1", "[]", "[]:1", "[::1]1", "a b:1", "http://a:1"})
    EXPECT_NE(refusal({"--rdzv-endpoint=" + std::string(wrong), "program"}), "") << wrong;
}

TEST(RunOptions, ACommandLineOfTorchrunIsTaken) {
  const RunCommandLine line =
      parse({"--nproc_per_node=8", "--nnodes=2", "--node_rank=0", "--master_addr=10.0.0.1",
             "--master_port=29501", "--rdzv_backend=static", "--max_restarts=0", "--no_python"});
  EXPECT_EQ(line.options.nproc_per_node, 8);
  EXPECT_EQ(line.options.hosts.endpoint, "10.0.0.1:29501");
  EXPECT_EQ(line.options.hosts.node_rank, 0);
  EXPECT_EQ(parse({"--standalone", "--nnodes=1", "--master_port=29501"}).options.hosts.endpoint,
            "");
}

TEST(RunOptions, AMasterPortIsThatOfTheRanksOfOneHost) {
  for (const Arguments& words : std::vector<Arguments>{{"--master-port=29501"},
                                                       {"--standalone", "--master_port", "29501"},
                                                       {"--master-addr=a", "--master-port=29501"}})
    EXPECT_EQ(parse(words).options.hosts.master_port, 29501);
  EXPECT_EQ(parse({"--master-port=0"}).options.hosts.master_port, 0);
  EXPECT_EQ(parse({"--master-addr=a"}).options.hosts.master_port, 0);
  EXPECT_EQ(parse({"--nnodes=2", "--master-addr=a", "--master-port=1"}).options.hosts.master_port,
            0)
      << "that is where the hosts meet";
}

TEST(RunOptions, TheFormatOfMessagesIsKnownOfACommandLineThatIsWrong) {
  using tools::log_format_in;
  for (const Arguments& words :
       std::vector<Arguments>{{"--log-format", "json", "-n", "0", "program"},
                              {"-n", "0", "--log_format=json", "program"},
                              {"--bogus", "--log-format=json"},
                              {"-n", "--log-format", "json"},
                              {"-v", "-n4", "--log-format=text", "--log-format=json"}})
    EXPECT_EQ(log_format_in(words), LogFormat::json) << testing::PrintToString(words);
  for (const Arguments& words :
       std::vector<Arguments>{{},
                              {"--log-format"},
                              {"--log-format="},
                              {"--log-format", "xml", "program"},
                              {"-n", "0", "program", "--log-format", "json"},
                              {"--bogus", "--", "--log-format=json"},
                              {"--log-format=json", "--log-format=text", "-n", "0"}})
    EXPECT_EQ(log_format_in(words), LogFormat::text) << testing::PrintToString(words);
  ::setenv("LOCKSTEP_LOG_FORMAT", "json", 1);
  EXPECT_EQ(log_format_in({"-n", "0"}), LogFormat::json);
  EXPECT_EQ(log_format_in({"--log-format=text", "-n", "0"}), LogFormat::text);
  ::unsetenv("LOCKSTEP_LOG_FORMAT");
}

TEST(RunOptions, KeepArgumentsAfterTheProgramUnchanged) {
  EXPECT_EQ(
      parse_run({"-n", "2", "program", "-n", "3", "--", "--help", "[a,b]", ""}).options.arguments,
      (Arguments{"program", "-n", "3", "--", "--help", "[a,b]", ""}));
  EXPECT_EQ(parse_run({"--", "-odd"}).options.arguments, Arguments{"-odd"});
}

TEST(RunOptions, ValuesThatCannotBeAreRefused) {
  const std::vector<Arguments> wrong = {
      {"-n", "0"},
      {"-n", "-2"},
      {"-n", "many"},
      {"-n", "gpus"},
      {"-n", "100000"},
      {"-n", "99999999999"},
      {"--nproc-per-node="},
      {"--nnodes", "0"},
      {"--nnodes", "2:1"},
      {"--nnodes", "1:"},
      {"--nnodes", ":2"},
      {"--nnodes", "1:2:3"},
      {"--nnodes", "99999"},
      {"--max-restarts", "-1"},
      {"--max-restarts", "1.5"},
      {"--max-restarts", "9999999999"},
      {"--shutdown-timeout", "-1"},
      {"--shutdown-timeout", "nan"},
      {"--shutdown-timeout", "inf"},
      {"--shutdown-timeout", "1e7"},
      {"--shutdown-timeout", "10s"},
      {"--join-timeout", "nan"},
      {"--last-call", "-0.1"},
      {"--bind", "socket"},
      {"--log-format", "xml"},
      {"--log-dir="},
      {"--log-dir", "logs", "-r", "4"},
      {"--log-dir", "logs", "-t", "\n\n3"},
      {"--log-dir", "logs", "-t", "0:1,"},
      {"--local-ranks-filter", "0,"},
      {"--local-ranks-filter", "-1"},
      {"--signals-to-handle", "SIGKILL"},
      {"--signals-to-handle", "SIGSTOP"},
      {"--signals-to-handle", "SIGCHLD"},
      {"--signals-to-handle", "SIGFOO"},
      {"--signals-to-handle", "SIGTERM,"},
      {"--rdzv-id="},
      {"--rdzv-id", "a/b"},
      {"--rdzv-id", "a\nb"},
      {"--rdzv-id", std::string(129, 'a')},
      {"--rdzv-backend", "etcd"},
      {"--master-addr", "a:1"},
      {"--master-port", "65536"},
      {"--timeline="},
      {"--profile", "100:105"},
      {"--profile", "steps=100"},
      {"--profile", "steps=5:5"},
      {"--profile", "steps=-1:5"},
      {"--profile", "steps=1:5x"},
      {"--bogus"},
  };
  for (Arguments arguments : wrong) {
    arguments.emplace_back("program");
    const std::string said = refusal(arguments);
    EXPECT_NE(said, "") << testing::PrintToString(arguments);
    EXPECT_EQ(said.find('\n'), said.npos) << said;
    const std::string option = arguments[0].substr(0, arguments[0].find('='));
    if (arguments[0] != "--log-dir") {
      EXPECT_NE(said.find(option), said.npos) << said << " names the option";
    }
  }
}

TEST(RunOptions, ContradictionsAreRefused) {
  for (const auto& [arguments, said] : std::vector<std::pair<Arguments, std::string>>{
           {{"--nnodes", "2"}, "--nnodes 2 needs --rdzv-endpoint"},
           {{"--nnodes", "1:2"}, "--nnodes 1:2 needs --rdzv-endpoint"},
           {{"--nnodes", "2", "--rdzv-endpoint", "a:0"}, "a port that all hosts know"},
           {{"--nnodes", "2", "--master-port", "1"}, "--master-port needs --master-addr"},
           {{"--standalone", "--nnodes", "2", "--rdzv-endpoint", "a"}, "--standalone is for one"},
           {{"--standalone", "--rdzv-endpoint", "a"}, "leave out the endpoint"},
           {{"--standalone", "--node-rank", "1"}, "--node-rank: must be a number from 0 to 0"},
           {{"--nnodes", "2", "--rdzv-endpoint", "a", "--node-rank", "2"}, "from 0 to 1"},
           {{"--nnodes", "2", "--rdzv-endpoint", "a", "--node-rank", "-1"}, "from 0 to 1"},
           {{"--nnodes", "1:2", "--rdzv-endpoint", "a", "--node-rank", "0"}, "fixed number"},
           {{"--nnodes", "1:2", "--rdzv-endpoint", "a", "--rdzv-backend", "static"},
            "fixed number"},
           {{"--rdzv-endpoint", "a", "--master-addr", "a"}, "give one of them"},
           {{"--rdzv-endpoint", "a", "--master-port", "1"}, "give one of them"},
           {{"--profile", "steps=1:2"}, "--profile needs --timeline"},
           {{"-r", "3"}, "-r needs --log-dir"},
           {{"--redirects", "3"}, "--redirects needs --log-dir"},
           {{"--tee=3"}, "--tee needs --log-dir"},
           {{"--log-dir", "logs", "-t", "1:3"}, "-t: there is no local rank 1 of 1"},
           {{"-n", "2", "--log-dir", "logs", "-r", "2:3"}, "-r: there is no local rank 2"},
           {{"-n", "2", "--local-ranks-filter", "0,2"}, "there is no local rank 2 of 2"},
       }) {
    Arguments line = arguments;
    line.emplace_back("program");
    EXPECT_NE(refusal(line).find(said), std::string::npos) << refusal(line) << "; not: " << said;
  }
}

TEST(RunOptions, AVariableIsNamedWhereItIsWrong) {
  {
    const Variable profile("LOCKSTEP_PROFILE", "steps=1:2");
    EXPECT_EQ(refusal({"program"}),
              "LOCKSTEP_PROFILE needs --timeline, the file that the operators go to");
    EXPECT_EQ(refusal({"--profile", "steps=3:4", "program"}),
              "--profile needs --timeline, the file that the operators go to");
  }
  const Variable restarts("LOCKSTEP_MAX_RESTARTS", "many");
  EXPECT_EQ(refusal({"program"}).find("LOCKSTEP_MAX_RESTARTS: must be a number"), 0U);
}

TEST(RunOptions, RejectTorchrunOnlyOptionsWithAHint) {
  for (const auto& [arguments, said] : std::vector<std::pair<Arguments, std::string>>{
           {{"--monitor-interval", "5"}, "leave it out"},
           {{"--monitor_interval=5"}, "leave it out"},
           {{"-m"}, "python3 -m MODULE"},
           {{"--module"}, "python3 -m MODULE"},
           {{"--numa-binding", "node"}, "use --bind numa"},
           {{"--rdzv-conf", "join_timeout=3"}, "use --join-timeout"},
           {{"--role", "trainer"}, "leave it out"},
           {{"--start-method", "spawn"}, "leave it out"},
           {{"--local-addr", "a"}, "leave it out"},
           {{"--run-path"}, "python3 FILE"},
           {{"--virtual-local-rank"}, "leave it out"},
       }) {
    Arguments line = arguments;
    line.emplace_back("program");
    EXPECT_NE(refusal(line).find(said), std::string::npos) << refusal(line) << "; not: " << said;
  }
}

TEST(RunOptions, AnEqualSignWithoutAValueDoesNotTakeTheProgramForOne) {
  EXPECT_EQ(refusal({"--log-dir=", "program", "argument"}), "--log-dir= has no value");
  EXPECT_EQ(parse_run({"program", "--log-dir="}).options.arguments.size(), 2U);
}

TEST(RunOptions, NoLineOfTheHelpIsWiderThan100Columns) {
  std::istringstream help(parse_run({"--help"}).help);
  for (std::string line; std::getline(help, line);) EXPECT_LE(line.size(), 100U) << line;
}

TEST(RunOptions, AMisspelledOneIsRefusedWithASuggestionInTheEnd) {
  EXPECT_EQ(refusal({"--nproc-pernode", "2", "program"}),
            "unknown option --nproc-pernode; did you mean --nproc-per-node?");
  EXPECT_EQ(refusal({"--zzz", "program"}), "unknown option --zzz");
}

TEST(RunOptions, WithoutAProgramThereIsNothingToRun) {
  for (const Arguments& arguments : {Arguments{}, {"--"}, {"-n", "2"}, {"-v"}})
    EXPECT_EQ(refusal(arguments), "PROGRAM is missing");
  for (const Arguments& arguments : {Arguments{""}, {"--", ""}, {"-n", "2", "", "argument"}})
    EXPECT_EQ(refusal(arguments), "PROGRAM is empty: name the program to start");
}

}  // namespace
}  // namespace lockstep::tools::options_test

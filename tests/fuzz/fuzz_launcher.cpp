// F8: input of `lockstep run` from a user, a script or a batch system. The first byte selects: only
// the streams option, or a whole command line of words separated by zeros. A word NAME=VALUE is an
// environment variable instead if NAME is LOCKSTEP_ and capitals.

// SPDX-License-Identifier: Apache-2.0
#include <signal.h>
#include <string.h>

#include <algorithm>
#include <cstdlib>
#include <string_view>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"
#include "lockstep/launch/run.h"
#include "tests/fuzz/target.h"
#include "tools/run/options.h"

namespace lockstep::fuzz {
namespace {

using Words = std::vector<std::string>;

// Joins the items by commas.
std::string list(const Words& items) {
  std::string text;
  for (const std::string& item : items) {
    if (!text.empty()) text += ',';
    text += item;
  }
  return text;
}

std::string text_of(const StreamChoice& choice) {
  Words items;
  for (const auto& [local_rank, streams] : choice.of_local_rank) {
    items.push_back(std::to_string(local_rank));
    items.back() += ':';
    items.back() += std::to_string(static_cast<int>(streams));
  }
  return items.empty() ? std::to_string(static_cast<int>(choice.all)) : list(items);
}

void expect_refusal(const Error& error) { expect(error.fault() == Fault::misuse); }

void streams(const std::string& text) {
  try {
    const std::string again = text_of(parse_streams(text));
    expect(text_of(parse_streams(again)) == again);
  } catch (const Error& error) {
    expect_refusal(error);
  }
}

std::string seconds(std::chrono::milliseconds time) {
  const std::string fraction = std::to_string(1000 + time.count() % 1000).substr(1);
  return std::to_string(time.count() / 1000) + "." + fraction;
}

// Returns a command line with the same meaning.
Words words_of(const tools::RunCommandLine& line) {
  static const char* const bindings[] = {"auto", "numa", "cache", "core", "none"};
  const RunOptions& options = line.options;
  const Hosts& hosts = options.hosts;
  const LogOptions& log = options.log;
  Words words = {"-n",
                 std::to_string(options.nproc_per_node),
                 "--nnodes",
                 std::to_string(hosts.least) + ":" + std::to_string(hosts.most),
                 "--join-timeout",
                 seconds(hosts.join_timeout),
                 "--last-call",
                 seconds(hosts.last_call),
                 "--max-restarts",
                 std::to_string(options.max_restarts),
                 "--max-restart-delay",
                 seconds(options.max_restart_delay),
                 "--on-failure",
                 options.on_failure == OnFailure::end_all ? "end" : "continue",
                 "--bind",
                 bindings[static_cast<int>(options.bind)],
                 "--log-format",
                 log.format == LogFormat::json ? "json" : "text",
                 "--shutdown-timeout",
                 seconds(options.shutdown_timeout)};
  const auto add = [&](const std::string& option, const std::string& value) {
    if (!value.empty()) words.push_back(std::string(option).append("=").append(value));
  };
  Words signals, local_ranks;
  for (const int signal : options.signals_to_handle) signals.emplace_back(::sigabbrev_np(signal));
  for (const int local_rank : log.local_ranks) local_ranks.push_back(std::to_string(local_rank));
  add("--node-rank", hosts.node_rank ? std::to_string(*hosts.node_rank) : "");
  if (hosts.master_port != 0) {
    add("--master-addr", hosts.endpoint.substr(0, hosts.endpoint.rfind(':')));
    add("--master-port", std::to_string(hosts.master_port));
  } else {
    add("--rdzv-endpoint", hosts.endpoint);
  }
  add("--rdzv-id", hosts.id);
  add("--signals-to-handle", list(signals));
  add("--local-ranks-filter", list(local_ranks));
  add("--log-dir", log.directory);
  if (!log.directory.empty()) {
    add("--redirects", text_of(log.redirects));
    add("--tee", text_of(log.tee));
  }
  if (options.verbose) words.emplace_back("-v");
  if (line.dry_run) words.emplace_back("--dry-run");
  words.emplace_back("--");
  words.insert(words.end(), options.arguments.begin(), options.arguments.end());
  return words;
}

void expect_sane(const RunOptions& options) {
  const Hosts& hosts = options.hosts;
  expect(options.nproc_per_node >= 1 && options.max_restarts >= 0 && !options.arguments.empty());
  expect(hosts.least >= 1 && hosts.least <= hosts.most);
  expect(hosts.most == 1 || !hosts.endpoint.empty());
  expect(!hosts.node_rank || (hosts.least == hosts.most && *hosts.node_rank < hosts.most));
  expect(options.shutdown_timeout.count() >= 0 && hosts.join_timeout.count() >= 0);
}

// Returns the name of the variable in `word`; empty when it is an argument.
std::string variable_in(const std::string& word) {
  const std::string name = word.substr(0, word.find('='));
  const bool capitals = std::all_of(name.begin(), name.end(), [](char letter) {
    return letter == '_' || (letter >= 'A' && letter <= 'Z');
  });
  return capitals && name.starts_with("LOCKSTEP_") && name != word ? name : "";
}

// Sets variables during its lifetime.
class Variables {
 public:
  void set(const std::string& name, const char* value) {
    ::setenv(name.c_str(), value, 1);
    names_.push_back(name);
  }
  Variables() = default;
  ~Variables() {
    for (const std::string& name : names_) ::unsetenv(name.c_str());
  }
  Variables(const Variables&) = delete;
  Variables& operator=(const Variables&) = delete;

 private:
  Words names_;
};

// Parses the arguments and variables in `words`.
tools::RunCommandLine parse(const Words& words) {
  Words arguments;
  Variables variables;
  for (const std::string& word : words) {
    const std::string name = variable_in(word);
    if (name.empty())
      arguments.push_back(word);
    else
      variables.set(name, word.c_str() + name.size() + 1);
  }
  return tools::parse_run(arguments);
}

void command_line(const Words& words) {
  tools::RunCommandLine line;
  try {
    line = parse(words);
  } catch (const Error& error) {
    expect_refusal(error);
    return expect(bare_text(error).find('\n') == std::string::npos);
  }
  if (!line.help.empty()) return;
  expect_sane(line.options);
  const Words again = words_of(line);
  expect(words_of(tools::parse_run(again)) == again);
}

Words split(std::string_view text, char separator) {
  Words words;
  for (;;) {
    const auto end = text.find(separator);
    words.emplace_back(text.substr(0, end));
    if (end == text.npos) return words;
    text.remove_prefix(end + 1);
  }
}

std::string joined(const Words& words) {
  std::string text;
  for (const std::string& word : words) text += '\0' + word;
  text[0] = '\1';
  return text;
}

}  // namespace

std::vector<std::string> seeds() {
  return {
      "\2"
      "3",
      "\2"
      "0:1,1:2,12:3",
      joined({"-n", "4", "-v", "program", "--epochs", "5"}),
      joined({"--nproc_per_node=2", "--nnodes=2:4", "--rdzv-endpoint", "[::1]:29400", "--rdzv-id",
              "job 7", "--max-restarts", "3", "--join-timeout", "2.5", "program"}),
      joined({"--nnodes=2", "--node-rank=1", "--master-addr=a", "--master-port=1", "program"}),
      joined({"--master-port=1", "--max-restart-delay", "0.5", "program"}),
      joined({"-n8", "--log-dir", "d", "-r", "0:1,1:2", "-t3", "--local-ranks-filter", "0,7",
              "--log-format", "json", "--bind", "numa", "program"}),
      joined({"--signals-to-handle", "SIGTERM,USR1", "--shutdown-timeout", "1e2", "--last-call",
              "0", "--standalone", "--dry-run", "--", "-odd"}),
      joined({"LOCKSTEP_NPROC_PER_NODE=2", "LOCKSTEP_VERBOSE=1", "LOCKSTEP_BIND=core",
              "LOCKSTEP_TEE=1", "LOCKSTEP_LOG_DIR=d", "program"}),
      joined({"--monitor-interval", "5", "program"}),
      joined({"--help"})};
}

}  // namespace lockstep::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace lockstep::fuzz;
  if (size == 0) return 0;
  const std::string text(reinterpret_cast<const char*>(data) + 1, size - 1);
  if (data[0] % 2 == 0) {
    streams(text);
    return 0;
  }
  command_line(split(text, '\0'));
  return 0;
}

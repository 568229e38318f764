// SPDX-License-Identifier: Apache-2.0
#include "tools/run/option_variables.h"

#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/base/log.h"
#include "lockstep/base/text.h"
#include "lockstep/base/variables.h"
#include "tools/run/options.h"
#include "tools/suggestion.h"

namespace lockstep::tools {
namespace {

constexpr std::string_view options_of_torchrun[] = {"local-ranks-filter",
                                                    "log-dir",
                                                    "master-addr",
                                                    "master-port",
                                                    "max-restarts",
                                                    "nnodes",
                                                    "no-python",
                                                    "node-rank",
                                                    "nproc-per-node",
                                                    "rdzv-backend",
                                                    "rdzv-endpoint",
                                                    "rdzv-id",
                                                    "redirects",
                                                    "signals-to-handle",
                                                    "shutdown-timeout",
                                                    "standalone",
                                                    "tee"};

const std::set<std::string_view> options_of_hosts{"master-addr", "master-port",  "nnodes",
                                                  "node-rank",   "rdzv-backend", "rdzv-endpoint",
                                                  "rdzv-id"};

constexpr std::string_view our_prefix = "LOCKSTEP_";

// Without the prefix: all others of docs/variables.md.
constexpr std::string_view other_variables[] = {
    "AGENT_FD",       "AS_GLOO",    "ATTEMPT",       "BACKEND",    "DATA",         "ENGINE_PATH",
    "FLIGHT_RECORD",  "HOST_ID",    "INCARNATION",   "INTERFACE",  "JOB_ID",       "JOB_TOKEN",
    "JOB_TOKEN_FILE", "LAUNCHER",   "LOG",           "NO_INSTALL", "ON_FAILURE",   "PLAN",
    "PROFILE",        "READ_PEERS", "REGISTERED_MB", "STORE",      "STRAGGLER_MS", "TERMINAL",
    "TIMELINE_DIR",   "TORCH",      "TRUST_NETWORK", "WRAP_NAMES"};

std::string in_capitals(std::string name) {
  for (char& letter : name) {
    if (letter == '-') letter = '_';
    if (letter >= 'a' && letter <= 'z') letter = static_cast<char>(letter - 'a' + 'A');
  }
  return name;
}

class Taker {
 public:
  explicit Taker(CLI::App& app) : app_(app) {}

  bool has(const std::string& option) const { return app_["--" + option]->count() > 0; }
  bool is_on(const std::string& flag) const { return has(flag) && app_["--" + flag]->as<bool>(); }
  std::string text(const std::string& option) const {
    return app_["--" + option]->as<std::string>();
  }

  void take(const std::string& option, const std::string& variable) {
    const char* const value = read_variable(variable.c_str());
    if (value == nullptr || has(option)) return;
    app_.get_option("--" + option)->add_result(value);
    taken_.emplace(option, variable);
  }

  std::map<std::string, std::string> taken() && { return std::move(taken_); }

 private:
  CLI::App& app_;
  std::map<std::string, std::string> taken_;
};

bool is_fixed_and_several(const std::string& hosts) {
  const auto colon = hosts.find(':');
  const std::string least = hosts.substr(0, colon);
  return least != "1" && (colon == hosts.npos || least == hosts.substr(colon + 1));
}

// The options whose PET_ variables count besides `taker`'s.
std::set<std::string_view> torchrun_options_beside(const Taker& taker) {
  std::set<std::string_view> options(std::begin(options_of_torchrun),
                                     std::end(options_of_torchrun));
  if (taker.is_on("standalone"))
    std::erase_if(options, [](std::string_view each) { return options_of_hosts.contains(each); });
  if (taker.has("master-addr")) {
    options.erase("rdzv-endpoint");
  } else if (taker.has("rdzv-endpoint") || read_variable("PET_RDZV_ENDPOINT") != nullptr) {
    options.erase("master-addr");
    options.erase("master-port");
  }
  return options;
}

void warn_of_unused(const std::string& option, const std::string& instead) {
  const std::string variable = "PET_" + in_capitals(option);
  const char* const value = read_variable(variable.c_str());
  if (value == nullptr || std::string_view(value) == "0") return;
  log(LogLevel::warning, variable + "=" + clean_text(value, 100) + " has no effect: " + instead);
}

// Those set to a value, without the prefix.
std::set<std::string> variables_of_process() {
  std::set<std::string> names;
  for (char** each = environ; each != nullptr && *each != nullptr; ++each) {
    const std::string_view text = *each;
    const auto equals = text.find('=');
    if (equals == text.npos || !text.starts_with(our_prefix)) continue;
    const std::string_view value = text.substr(equals + 1);
    if (!value.empty() && !is_service_link(value))
      names.emplace(text.substr(our_prefix.size(), equals - our_prefix.size()));
  }
  return names;
}

// Dissimilar ones may be of other programs, or of a Kubernetes service named lockstep.
void warn_of_misspelled() {
  std::vector<std::string> known(std::begin(other_variables), std::end(other_variables));
  for (const std::string& option : option_names()) known.push_back(in_capitals(option));
  for (const std::string& name : variables_of_process()) {
    if (std::ranges::find(known, name) != known.end()) continue;
    const std::string meant = suggestion_for(name, known);
    if (!meant.empty())
      log(LogLevel::warning, std::string(our_prefix) + clean_text(name, 100) +
                                 " has no effect: there is no such variable; did you mean " +
                                 std::string(our_prefix) + meant + "?");
  }
}

}  // namespace

std::string variable_of(const std::string& option) {
  return std::string(our_prefix) + in_capitals(option);
}

std::string torchrun_variable_of(const std::string& option) {
  const bool has = std::ranges::find(options_of_torchrun, option) != std::end(options_of_torchrun);
  return has ? "PET_" + in_capitals(option) : "";
}

std::map<std::string, std::string> take_variables(CLI::App& app) {
  Taker taker(app);
  for (const std::string& option : option_names()) taker.take(option, variable_of(option));
  // Logs service links also of variables that do not count below.
  for (const std::string_view option : options_of_torchrun)
    read_variable(torchrun_variable_of(std::string(option)).c_str());
  taker.take("standalone", torchrun_variable_of("standalone"));
  for (const std::string_view each : torchrun_options_beside(taker)) {
    const std::string option(each);
    if (option != "node-rank") taker.take(option, torchrun_variable_of(option));
  }
  if (!taker.is_on("standalone") && is_fixed_and_several(taker.text("nnodes")))
    taker.take("node-rank", torchrun_variable_of("node-rank"));
  for (const auto& [option, instead] : options_without_effect()) warn_of_unused(option, instead);
  warn_of_misspelled();
  return std::move(taker).taken();
}

}  // namespace lockstep::tools

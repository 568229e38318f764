// SPDX-License-Identifier: Apache-2.0
#include "tools/run/option_variables.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <set>
#include <string_view>
#include <vector>

#include "lockstep/base/log.h"
#include "lockstep/base/text.h"
#include "lockstep/base/variables.h"
#include "tools/run/options.h"

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

}  // namespace

std::string variable_of(const std::string& option) { return "LOCKSTEP_" + in_capitals(option); }

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
  return std::move(taker).taken();
}

}  // namespace lockstep::tools

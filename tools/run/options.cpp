// SPDX-License-Identifier: Apache-2.0
#include "tools/run/options.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdlib>
#include <map>
#include <optional>
#include <tuple>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"
#include "lockstep/base/variables.h"
#include "lockstep/job/timeline_recorder.h"
#include "tools/command_line.h"
#include "tools/run/option_variables.h"
#include "tools/tune/divisions.h"
#include "tools/tune/saved_choices.h"

namespace lockstep::tools {
namespace {

// torchrun's default ports.
constexpr int rdzv_port = 29400;
constexpr int master_port = 29500;

[[noreturn]] void refuse(const std::string& problem) { throw Error(Fault::misuse, problem); }

class Given {
 public:
  // `names`: the spelling on the command line, or the variable, by option.
  Given(const CLI::App& app, std::map<std::string, std::string> names)
      : app_(app), names_(std::move(names)) {}

  bool has(const std::string& name) const { return app_["--" + name]->count() > 0; }
  bool flag(const std::string& name) const { return has(name) && app_["--" + name]->as<bool>(); }

  // As the user gave it: "-n", "--nproc_per_node" or a variable; "--nproc-per-node" if not given.
  std::string name_of(const std::string& name) const {
    const auto given = names_.find(name);
    return given == names_.end() ? "--" + name : given->second;
  }

  template <class Parse>
  auto value(const std::string& name, Parse parse) const {
    try {
      return parse(app_["--" + name]->as<std::string>());
    } catch (const Error& error) {
      refuse(name_of(name) + ": " + shown(bare_text(error)));
    }
  }

  template <class Parse>
  auto value_if_any(const std::string& name, Parse parse) const
      -> std::optional<decltype(parse(std::string()))> {
    if (!has(name)) return std::nullopt;
    return value(name, parse);
  }

  std::string text(const std::string& name) const {
    return value(name, [](const std::string& text) { return text; });
  }

 private:
  const CLI::App& app_;
  const std::map<std::string, std::string> names_;
};

template <class Value>
Value choose(const std::string& text, const std::vector<std::pair<std::string, Value>>& choices) {
  std::string words;
  for (const auto& [word, value] : choices) {
    if (word == text) return value;
    words += (words.empty() ? "" : ", ") + word;
  }
  refuse("must be one of " + words + ", not '" + shown(text) + "'");
}

std::optional<int> master_port_of(const Given& given) {
  return given.value_if_any("master-port",
                            [](const std::string& text) { return parse_number(text, 0, 65535); });
}

// --rdzv-endpoint, or --master-addr and --master-port as in torchrun's static rendezvous. Empty
// without either.
std::string endpoint_of(const Given& given, int hosts) {
  const auto port = master_port_of(given);
  if (given.has("rdzv-endpoint")) {
    if (given.has("master-addr") || port)
      refuse(given.name_of("rdzv-endpoint") + " and " +
             given.name_of(given.has("master-addr") ? "master-addr" : "master-port") +
             " both name the rendezvous: give one of them");
    return given.value("rdzv-endpoint",
                       [](const std::string& text) { return parse_endpoint(text, rdzv_port); });
  }
  if (given.has("master-addr"))
    return given.value("master-addr", [&](const std::string& text) {
      if (text.find(':') != text.npos && !text.ends_with(']'))
        refuse("must be a host without a port, an IPv6 address in brackets, not '" + shown(text) +
               "'");
      return parse_endpoint(text, port.value_or(master_port));
    });
  if (port && hosts > 1) refuse(given.name_of("master-port") + " needs --master-addr");
  return {};
}

Hosts hosts_of(const Given& given) {
  Hosts hosts;
  std::tie(hosts.least, hosts.most) = given.value("nnodes", parse_hosts);
  const std::string said = given.name_of("nnodes") + " " + given.text("nnodes");
  const bool several = hosts.most > 1;
  const bool fixed = hosts.least == hosts.most;
  hosts.endpoint = endpoint_of(given, hosts.most);
  if (!several) hosts.master_port = master_port_of(given).value_or(0);
  hosts.id = given.value_if_any("rdzv-id", parse_id).value_or(several ? Hosts::unnamed : "");
  hosts.join_timeout = given.value("join-timeout", parse_seconds);
  hosts.last_call = given.value("last-call", parse_seconds);
  hosts.node_rank = given.value_if_any("node-rank", [&](const std::string& text) {
    if (!fixed) refuse("is for a fixed number of hosts, not for " + said);
    return parse_number(text, 0, hosts.most - 1);
  });
  const bool is_static = given.value("rdzv-backend", [](const std::string& text) {
    return choose<bool>(text, {{"c10d", false}, {"static", true}});
  });

  if (is_static && !fixed)
    refuse(given.name_of("rdzv-backend") + " static is for a fixed number of hosts, not for " +
           said);
  if (given.flag("standalone")) {
    const std::string standalone = given.name_of("standalone");
    if (several) refuse(standalone + " is for one host, not for " + said);
    if (!hosts.endpoint.empty()) refuse(standalone + " is for one host: leave out the endpoint");
  }
  if (several && hosts.endpoint.empty())
    refuse(said + " needs --rdzv-endpoint HOST:PORT, where the hosts are to meet");
  if (several && hosts.endpoint.ends_with(":0"))
    refuse(said + " needs a port that all hosts know, not 0");
  return hosts;
}

void require_local(const std::string& name, int local_rank, int ranks) {
  if (local_rank >= ranks)
    refuse(name + ": there is no local rank " + std::to_string(local_rank) + " of " +
           std::to_string(ranks));
}

LogOptions logs_of(const Given& given, int ranks) {
  LogOptions log;
  log.directory = given.text("log-dir");
  for (const auto& [name, choice] : {std::pair{"redirects", &log.redirects}, {"tee", &log.tee}}) {
    if (!given.has(name)) continue;
    *choice = given.value(name, parse_streams);
    const bool chooses_none = choice->all == Streams::none && choice->of_local_rank.empty();
    if (log.directory.empty() && !chooses_none)
      refuse(given.name_of(name) + " needs --log-dir, where the files are to be");
    for (const auto& [local_rank, streams] : choice->of_local_rank)
      require_local(given.name_of(name), local_rank, ranks);
  }
  if (given.has("log-dir") && log.directory.empty())
    refuse(given.name_of("log-dir") + ": must be a folder");
  if (!log.directory.empty() && !given.has("redirects") && !given.has("tee"))
    log.tee.all = Streams::both;
  if (given.has("local-ranks-filter"))
    log.local_ranks = given.value("local-ranks-filter", parse_local_ranks);
  for (const int local_rank : log.local_ranks)
    require_local(given.name_of("local-ranks-filter"), local_rank, ranks);
  log.format = given.value("log-format", [](const std::string& text) {
    return choose<LogFormat>(text, {{"text", LogFormat::text}, {"json", LogFormat::json}});
  });
  return log;
}

RunOptions options_of(const Given& given, const std::optional<Division>& tuned) {
  RunOptions options;
  options.nproc_per_node = given.value("nproc-per-node", [&](const std::string& text) {
    if (tuned) return tuned->ranks;
    return parse_ranks(text, "/dev", std::getenv("CUDA_VISIBLE_DEVICES"));
  });
  options.hosts = hosts_of(given);
  options.max_restarts = given.value(
      "max-restarts", [](const std::string& text) { return parse_number(text, 0, 1'000'000); });
  options.max_restart_delay = given.value("max-restart-delay", parse_seconds);
  options.on_failure = given.value("on-failure", [](const std::string& text) {
    return choose<OnFailure>(
        text, {{"end", OnFailure::end_all}, {"continue", OnFailure::continue_without}});
  });
  options.leave_out_stragglers =
      given.value_if_any("leave-out-stragglers", [](const std::string& text) {
        const auto limit = parse_seconds(text);
        if (limit < std::chrono::seconds(1)) refuse("must be at least 1 second");
        return limit;
      });
  if (options.leave_out_stragglers && options.on_failure != OnFailure::continue_without)
    refuse(given.name_of("leave-out-stragglers") + " needs --on-failure continue");
  if (given.has("max-restarts")) options.max_replacements = options.max_restarts;
  options.bind = given.value("bind", [](const std::string& text) {
    return choose<Binding>(text, {{"auto", Binding::automatic},
                                  {"numa", Binding::numa},
                                  {"cache", Binding::cache},
                                  {"core", Binding::core},
                                  {"none", Binding::none}});
  });
  options.log = logs_of(given, options.nproc_per_node);
  if (given.has("metrics-port")) options.metrics = given.value("metrics-port", parse_listening);
  options.verbose = given.flag("verbose");
  options.shutdown_timeout = given.value("shutdown-timeout", parse_seconds);
  if (given.has("signals-to-handle"))
    options.signals_to_handle = given.value("signals-to-handle", parse_signals);
  return options;
}

// Calls `act(index, option, value)` for each option before the program; `option` is null if
// unknown.
template <class Act>
void for_each_option(const CLI::App& app, const std::vector<std::string>& arguments, Act act) {
  const auto is_option = [&](std::size_t i) {
    return i < arguments.size() && arguments[i].starts_with('-') && arguments[i] != "--";
  };
  for (std::size_t i = 0; is_option(i); ++i) {
    const std::size_t index = i;
    const auto equals = arguments[i].find('=');
    const bool is_ranks = arguments[i] == "-np";
    const CLI::Option* option =
        app.get_option_no_throw(is_ranks ? "-n" : arguments[i].substr(0, equals));
    std::string value = equals == std::string::npos ? "" : arguments[i].substr(equals + 1);
    const bool takes_next = option != nullptr && option->get_expected_max() > 0;
    if (takes_next && equals == std::string::npos && i + 1 < arguments.size() && !is_option(i + 1))
      value = arguments[++i];
    act(index, option, value);
  }
}

// The spelling of each option on the command line, by its name: "-np" for "nproc-per-node".
std::map<std::string, std::string> typed_names(const CLI::App& app,
                                               const std::vector<std::string>& arguments) {
  std::map<std::string, std::string> names;
  const auto note = [&](std::size_t i, const CLI::Option* option, const std::string&) {
    std::string typed = arguments[i].substr(0, arguments[i].find('='));
    if (option == nullptr && !typed.starts_with("--")) {  // "-n4".
      typed = typed.substr(0, 2);
      option = app.get_option_no_throw(typed);
    }
    if (option != nullptr) names.insert_or_assign(option->get_lnames().front(), typed);
  };
  for_each_option(app, arguments, note);
  return names;
}

// CLI11's message would have the option's long name. After an option that ends in "=", CLI11 would
// use the next word, possibly the program.
void refuse_missing_values(const CLI::App& app, const std::vector<std::string>& arguments) {
  const auto has_next = [&](std::size_t i) {
    if (i + 1 >= arguments.size()) return false;
    const std::string& next = arguments[i + 1];
    return next == "-" || !next.starts_with('-') || (next[1] >= '0' && next[1] <= '9');
  };
  const auto check = [&](std::size_t i, const CLI::Option* option, const std::string&) {
    const auto equals = arguments[i].find('=');
    if (option == nullptr) return;
    const bool lacks_value = equals == std::string::npos
                                 ? option->get_expected_min() > 0 && !has_next(i)
                                 : equals == arguments[i].size() - 1;
    if (lacks_value) refuse(shown(arguments[i]) + " has no value");
  };
  for_each_option(app, arguments, check);
}

// CLI11 would parse mpirun's -np as -n with the value "p".
std::vector<std::string> with_known_letters(const CLI::App& app,
                                            std::vector<std::string> arguments) {
  std::vector<std::size_t> found;
  for_each_option(app, arguments, [&](std::size_t i, const CLI::Option*, const std::string&) {
    if (arguments[i] == "-np") found.push_back(i);
  });
  for (const std::size_t i : found) arguments[i] = "-n";
  return arguments;
}

// The program and its arguments, unchanged. A positional option would split "[a,b]".
std::vector<std::string> command_in(const CLI::App& app) {
  std::vector<std::string> command = app.remaining();
  const bool separated = !command.empty() && command.front() == "--";
  if (separated) command.erase(command.begin());
  if (command.empty()) refuse("PROGRAM is missing");
  if (command.front().empty()) refuse(program_is_empty);
  if (!separated && command.front().starts_with('-')) refuse(unknown_option(app, command.front()));
  return command;
}

// The choice of `lockstep tune --save` for `program`, if -n asks for it.
std::optional<Division> tuned_division(const Given& given,
                                       const std::vector<std::string>& program) {
  if (given.text("nproc-per-node") != "tuned") return std::nullopt;
  auto saved = saved_choice(program);
  if (!saved)
    refuse(given.name_of("nproc-per-node") + " tuned: nothing is saved for " +
           shown(program.front()) + " on this host; run lockstep tune --save first");
  return saved;
}

}  // namespace

LogFormat log_format_in(const std::vector<std::string>& arguments) {
  CLI::App app;
  declare_options(app);
  const CLI::Option* const wanted = app["--log-format"];
  const char* variable = read_variable(variable_of("log-format").c_str());
  std::string said = variable != nullptr ? variable : "";
  for_each_option(app, arguments,
                  [&](std::size_t, const CLI::Option* option, const std::string& value) {
                    if (option == wanted) said = value;
                  });
  return said == "json" ? LogFormat::json : LogFormat::text;
}

RunCommandLine parse_run(const std::vector<std::string>& arguments) {
  RunCommandLine line;
  CLI::App app;
  declare_options(app);
  try {
    const std::vector<std::string> words = with_known_letters(app, arguments);
    refuse_missing_values(app, arguments);
    app.parse(std::vector<std::string>(words.rbegin(), words.rend()));  // Last one first.
    refuse_others(app);
    std::map<std::string, std::string> names = typed_names(app, arguments);
    names.merge(take_variables(app));
    const Given given(app, std::move(names));
    const std::vector<std::string> program = command_in(app);
    const std::optional<Division> tuned = tuned_division(given, program);
    line.options = options_of(given, tuned);
    line.options.arguments = tuned ? command_for(*tuned, program) : program;
    line.dry_run = given.flag("dry-run");
    if (given.has("timeline")) line.timeline = given.text("timeline");
    if (given.has("profile")) line.profile = given.value("profile", parse_profile);
    if (!line.profile.empty() && line.timeline.empty() &&
        read_variable(TimelineRecorder::variable) == nullptr)
      refuse(given.name_of("profile") + " needs --timeline, the file that the operators go to");
  } catch (const CLI::CallForHelp&) {
    line.help = app.help();
  } catch (const CLI::ParseError& error) {
    refuse(shown(error.what()));  // May contain the user's text.
  }
  return line;
}

}  // namespace lockstep::tools

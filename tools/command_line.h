// Command lines: parsing with CLI11, and error exits.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <string>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"
#include "tools/standard_output.h"
#include "tools/suggestion.h"

namespace lockstep::tools {

// The error for an empty word in place of PROGRAM, such as an unset variable's.
inline constexpr const char* program_is_empty = "PROGRAM is empty: name the program to start";

// For CLI::Range, which accepts a NaN. Not in help.
inline CLI::Validator not_nan() {
  return CLI::Validator(
      [](const std::string& text) {
        return std::isnan(std::strtod(text.c_str(), nullptr)) ? text + " is not a number" : "";
      },
      "");
}

// A missing or unknown subcommand; empty if `app` has none, or got a known one.
inline std::string subcommand_problem(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::App* const each : app.get_subcommands([](const CLI::App*) { return true; }))
    names.push_back(each->get_name());
  if (names.empty() || !app.get_subcommands().empty()) return {};
  const std::vector<std::string> words = app.remaining();
  if (words.empty()) return "a subcommand is missing" + list_of_subcommands(names);
  return unknown_subcommand(app.get_name(), clean_text(words.front(), 100), names);
}

// With the most similar option in the help of `app`.
inline std::string unknown_option(const CLI::App& app, const std::string& word) {
  std::vector<std::string> names;
  for (const CLI::Option* const each : app.get_options())
    if (!each->get_group().empty() && !each->get_lnames().empty())
      names.push_back("--" + each->get_lnames().front());
  const std::string meant = suggestion_for(word.substr(0, word.find('=')), names);
  const std::string text = "unknown option " + clean_text(word, 100);
  return meant.empty() ? text : text + "; did you mean " + meant + "?";
}

// The innermost subcommand on a command line, or the program.
struct ChosenCommand {
  const CLI::App* app;
  std::string name;  // "lockstep checkpoint merge".
};

inline ChosenCommand chosen_command(const CLI::App& app) {
  ChosenCommand chosen{&app, app.get_name()};
  while (!chosen.app->get_subcommands().empty()) {
    chosen.app = chosen.app->get_subcommands().front();
    chosen.name += " " + chosen.app->get_name();
  }
  return chosen;
}

// An option that neither `app` nor its chosen subcommand has; empty without one.
inline std::string option_problem(const CLI::App& app) {
  for (const std::string& word : app.remaining(/*recurse=*/true))
    if (word.starts_with('-')) return unknown_option(*chosen_command(app).app, word);
  return {};
}

// Returns CLI11's message, which has an option's long name, with "-n" if that is in `words`.
inline std::string as_typed(const CLI::App& app, std::string text,
                            const std::vector<std::string>& words) {
  const auto has = [&](const std::string& typed) {
    return std::ranges::any_of(words, [&](const auto& word) { return word.starts_with(typed); });
  };
  for (const CLI::Option* const option : app.get_options()) {
    if (option->get_snames().empty() || option->get_lnames().empty()) continue;
    const std::string name = "--" + option->get_lnames().front();
    const std::string letter = "-" + option->get_snames().front();
    const auto at = text.find(name);
    if (at != text.npos && has(letter) && !has(name)) return text.replace(at, name.size(), letter);
  }
  return text;
}

// --help goes to stdout; an error ends the process with exit_usage.
[[noreturn]] inline void end_parsing(const CLI::App& app, const CLI::ParseError& error, int argc,
                                     char** argv) {
  const std::string& command = app.get_name();
  if (error.get_exit_code() == 0) {
    print(app.help());
    std::exit(end_output(command.c_str(), 0));
  }
  const auto [innermost, name] = chosen_command(app);
  std::string text = subcommand_problem(*innermost);
  const bool has_extras = error.get_exit_code() == static_cast<int>(CLI::ExitCodes::ExtrasError);
  if (text.empty() && has_extras) text = option_problem(app);
  if (text.empty()) text = as_typed(*innermost, error.what(), {argv + 1, argv + argc});
  if (!text.ends_with('?')) text += "; see " + name + " --help";
  std::fprintf(stderr, "%s: %s\n", name.c_str(), text.c_str());
  std::exit(exit_usage);
}

// Returns only after success.
inline void parse(CLI::App& app, int argc, char** argv) {
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    end_parsing(app, error, argc, argv);
  }
}

inline std::string text_of(const std::exception& error) {
  const auto* const known = dynamic_cast<const Error*>(&error);
  return known != nullptr ? bare_text(*known) : error.what();
}

// Returns `act`'s exit code. Reports an exception in one line, with the code of an Error's fault,
// otherwise exit_system.
template <class Act>
int run_or_complain(const char* command, const Act& act) {
  try {
    return act();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s: %s\n", command, text_of(error).c_str());
    const auto* const known = dynamic_cast<const Error*>(&error);
    return known != nullptr ? exit_code_of(known->fault()) : exit_system;
  }
}

}  // namespace lockstep::tools

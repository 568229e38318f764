// The command line of `lockstep run`.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "lockstep/launch/run.h"

namespace CLI {
class App;
}

namespace lockstep::tools {

struct RunCommandLine {
  RunOptions options = {};  // All but .program. The first of .arguments may be in PATH.
  bool dry_run = false;
  std::string timeline = {};  // File for the timeline of all ranks; empty if none.
  std::string profile = {};   // "steps=FIRST:END"; empty if none.
  std::string help = {};      // If set, all else is empty.
};

// A missing option is read from its variable. Errors: misuse, in one line for people, for invalid
// or contradictory options.
RunCommandLine parse_run(const std::vector<std::string>& arguments);

// For errors about arguments that parse_run() rejects: from --log-format, anywhere before the
// program, or its variable; otherwise text.
LogFormat log_format_in(const std::vector<std::string>& arguments);

// --- Options and the text of --help --------------------------------------------------------------

// As unparsed text.
void declare_options(CLI::App& app);

// Long names, without dashes.
std::vector<std::string> option_names();

// torchrun's, with alternatives.
std::vector<std::pair<std::string, std::string>> options_without_effect();

// Errors: misuse, with the alternative.
void refuse_others(const CLI::App& app);

// --- Parsers of options' values ------------------------------------------------------------------
//
// Errors: misuse with the expected and the given value, but without the option's name.

// Quotes a user's text in one line.
std::string shown(std::string_view text);

// Decimal digits, from `least` to `most`.
int parse_number(std::string_view text, int least, int most);

// "4" or "2:4".
std::pair<int, int> parse_hosts(std::string_view text);

// HOST, HOST:PORT or [IPV6]:PORT; a HOST without port gets `default_port`. Returns HOST:PORT or
// [IPV6]:PORT.
std::string parse_endpoint(std::string_view text, int default_port);

// PORT, for loopback, or ADDRESS:PORT. Port 0: any free port. Returns ADDRESS:PORT.
std::string parse_listening(std::string_view text);

// With or without a fraction; at most a million.
std::chrono::milliseconds parse_seconds(std::string_view text);

// Non-empty, such as "steps=100:105". Returns the text.
std::string parse_profile(std::string_view text);

// A number, "auto", "cpu" or "gpu": docs/launcher.md. `devices` is a folder such as /dev. `visible`
// is CUDA_VISIBLE_DEVICES; null if unset.
int parse_ranks(std::string_view text, const std::string& devices, const char* visible);

// "0,2".
std::set<int> parse_local_ranks(std::string_view text);

// "SIGTERM,SIGUSR1"; the prefix SIG is optional.
std::vector<int> parse_signals(std::string_view text);

// At most 128 printable characters except '/'.
std::string parse_id(std::string_view text);

}  // namespace lockstep::tools

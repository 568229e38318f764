// The values of the options of `lockstep run`, as text.
//
// Errors: misuse with what was expected and what was said, without the option's name.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace lockstep::tools {

// What a user has said, to be quoted in one line.
std::string shown(std::string_view text);

// A number in decimal digits, from `least` to `most`.
int parse_number(std::string_view text, int least, int most);

// "4" or "2:4".
std::pair<int, int> parse_hosts(std::string_view text);

// HOST, HOST:PORT or [IPV6]:PORT, the first with `default_port`; as HOST:PORT or [IPV6]:PORT.
std::string parse_endpoint(std::string_view text, int default_port);

// Seconds, perhaps with a fraction; at most a million.
std::chrono::milliseconds parse_seconds(std::string_view text);

// "0,2".
std::set<int> parse_local_ranks(std::string_view text);

// "SIGTERM,SIGUSR1"; SIG may be left out.
std::vector<int> parse_signals(std::string_view text);

// The name of a job: printable characters but '/', at most 128.
std::string parse_id(std::string_view text);

}  // namespace lockstep::tools

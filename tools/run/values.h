// Parsers of the values of `lockstep run`'s options.
//
// Errors: misuse with the expected and the given value, but without the option's name.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace lockstep::tools {

// Quotes a user's text in one line.
std::string shown(std::string_view text);

// Parses decimal digits; the value must lie from `least` to `most`.
int parse_number(std::string_view text, int least, int most);

// Parses "4" or "2:4".
std::pair<int, int> parse_hosts(std::string_view text);

// Parses HOST, HOST:PORT or [IPV6]:PORT; a lone HOST gets `default_port`. Returns HOST:PORT or
// [IPV6]:PORT.
std::string parse_endpoint(std::string_view text, int default_port);

// Parses seconds, with or without a fraction; at most a million.
std::chrono::milliseconds parse_seconds(std::string_view text);

// Parses "0,2".
std::set<int> parse_local_ranks(std::string_view text);

// Parses "SIGTERM,SIGUSR1"; SIG may be left out.
std::vector<int> parse_signals(std::string_view text);

// Parses a job's name: printable characters but '/', at most 128.
std::string parse_id(std::string_view text);

}  // namespace lockstep::tools

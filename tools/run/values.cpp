// SPDX-License-Identifier: Apache-2.0
#include <signal.h>
#include <string.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <filesystem>
#include <string>

#include "lockstep/base/error.h"
#include "lockstep/job/profile_window.h"
#include "lockstep/launch/binding.h"
#include "tools/run/options.h"

namespace lockstep::tools {
namespace {

constexpr int most_hosts = 65536;
constexpr double most_seconds = 1e6;

[[noreturn]] void refuse(const std::string& expected, std::string_view text) {
  throw Error(Fault::misuse, "must be " + expected + ", not '" + shown(text) + "'");
}

std::vector<std::string_view> items_of(std::string_view text) {
  std::vector<std::string_view> items;
  for (;;) {
    const auto comma = text.find(',');
    items.push_back(text.substr(0, comma));
    if (comma == text.npos) return items;
    text.remove_prefix(comma + 1);
  }
}

// False if `text` is not a number, or too large.
template <class Number>
bool read(std::string_view text, Number& number) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  return error == std::errc() && end == text.data() + text.size();
}

int signal_of(std::string_view name) {
  if (name.starts_with("SIG")) name.remove_prefix(3);
  for (int signal = 1; signal < NSIG; ++signal) {
    const char* abbreviation = ::sigabbrev_np(signal);
    if (abbreviation != nullptr && name == abbreviation) return signal;
  }
  return 0;
}

// Counts nvidia0, nvidia1, ...
int gpus_in(const std::string& folder) {
  int found = 0;
  while (std::filesystem::exists(folder + "/nvidia" + std::to_string(found))) ++found;
  return found;
}

// CUDA uses the devices in CUDA_VISIBLE_DEVICES up to the first missing one. A device may also be a
// UUID.
int visible_gpus(int gpus, const char* visible) {
  if (visible == nullptr) return gpus;
  int found = 0;
  for (const std::string_view item : items_of(visible)) {
    int number = 0;
    const bool exists = read(item, number) ? number >= 0 && number < gpus : !item.empty();
    if (!exists) break;
    ++found;
  }
  return found;
}

}  // namespace

int parse_ranks(std::string_view text, const std::string& devices, const char* visible) {
  constexpr int most_ranks = 99999;
  if (text == "auto" || text == "cpu") return usable_cores();
  if (text == "gpu") {
    const int gpus = visible_gpus(gpus_in(devices), visible);
    if (gpus == 0)
      throw Error(Fault::misuse,
                  "'gpu': there is no NVIDIA GPU here, or CUDA_VISIBLE_DEVICES "
                  "hides it; give a number of ranks");
    return gpus;
  }
  int ranks = 0;
  if (!read(text, ranks) || ranks < 1 || ranks > most_ranks)
    refuse(
        "a number of ranks, at most " + std::to_string(most_ranks) + ", or 'auto', 'cpu' or 'gpu'",
        text);
  return ranks;
}

std::string shown(std::string_view text) {
  constexpr std::size_t most = 300;
  std::string line(text.substr(0, most));
  for (char& character : line)
    if (static_cast<unsigned char>(character) < ' ' || character == 127) character = '?';
  return text.size() > most ? line + "..." : line;
}

int parse_number(std::string_view text, int least, int most) {
  int number = 0;
  if (!read(text, number) || number < least || number > most)
    refuse("a number from " + std::to_string(least) + " to " + std::to_string(most), text);
  return number;
}

std::pair<int, int> parse_hosts(std::string_view text) {
  const auto colon = text.find(':');
  int least = 0;
  int most = 0;
  const bool numbers = read(text.substr(0, colon), least) &&
                       read(text.substr(colon == text.npos ? 0 : colon + 1), most);
  if (!numbers || least < 1 || most < least || most > most_hosts)
    refuse("a number of hosts, or MIN:MAX", text);
  return {least, most};
}

std::string parse_endpoint(std::string_view text, int default_port) {
  const char* const expected = "HOST:PORT or [IPV6]:PORT";
  const bool bracketed = text.starts_with('[');
  const auto host_end = bracketed ? text.find(']') : text.find(':');
  if (bracketed && host_end == text.npos) refuse(expected, text);
  const std::string host(text.substr(0, bracketed ? host_end + 1 : host_end));
  const auto rest = host_end == text.npos ? std::string_view() : text.substr(host.size());
  const bool named = bracketed ? host.size() > 2 : !host.empty();
  const bool sane = std::all_of(host.begin(), host.end(), [](unsigned char character) {
    return character > ' ' && character < 127 && character != '/';
  });
  if (!named || !sane || host.size() > 255) refuse(expected, text);
  if (rest.empty()) return host + ":" + std::to_string(default_port);
  int port = 0;
  if (rest.front() != ':' || !read(rest.substr(1), port) || port < 0 || port > 65535)
    refuse(expected, text);
  return host + ":" + std::to_string(port);
}

std::string parse_listening(std::string_view text) {
  const bool is_port = text.find(':') == text.npos;
  if (is_port) return "127.0.0.1:" + std::to_string(parse_number(text, 0, 65535));
  constexpr int missing = -1;
  std::string endpoint = parse_endpoint(text, missing);
  if (endpoint.ends_with(":-1")) refuse("PORT or ADDRESS:PORT", text);
  return endpoint;
}

std::chrono::milliseconds parse_seconds(std::string_view text) {
  double seconds = 0;
  if (!read(text, seconds) || !(seconds >= 0 && seconds <= most_seconds))
    refuse("a number of seconds, up to a million", text);
  return std::chrono::milliseconds(std::llround(seconds * 1000));
}

std::string parse_profile(std::string_view text) {
  if (!profile_window_of(text)) refuse("steps=FIRST:END, a window of steps", text);
  return std::string(text);
}

std::set<int> parse_local_ranks(std::string_view text) {
  std::set<int> local_ranks;
  for (const std::string_view item : items_of(text)) {
    int local_rank = 0;
    if (!read(item, local_rank) || local_rank < 0) refuse("local ranks, as 0,1", text);
    local_ranks.insert(local_rank);
  }
  return local_ranks;
}

std::vector<int> parse_signals(std::string_view text) {
  std::vector<int> signals;
  for (const std::string_view item : items_of(text)) {
    const int signal = signal_of(item);
    if (signal == 0) refuse("names of signals, as SIGTERM,SIGINT", text);
    for (const int taken : {SIGKILL, SIGSTOP, SIGCHLD})
      if (signal == taken) refuse("signals that a launcher can pass on", item);
    if (std::find(signals.begin(), signals.end(), signal) == signals.end())
      signals.push_back(signal);
  }
  return signals;
}

std::string parse_id(std::string_view text) {
  const bool printable = std::all_of(text.begin(), text.end(), [](unsigned char character) {
    return character >= ' ' && character < 127 && character != '/';
  });
  if (text.empty() || text.size() > 80 || !printable)
    refuse("up to 80 printable characters without '/'", text);
  return std::string(text);
}

}  // namespace lockstep::tools

// SPDX-License-Identifier: Apache-2.0
#include "tests/simulation/scale/check.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <vector>

#include "tests/simulation/scale/scale.h"

namespace lockstep::simulation {
namespace {

class Check {
 public:
  void require(bool holds, const std::string& what) {
    ++checks_;
    if (holds) return;
    ++violations_;
    fmt::print("violation: {}\n", what);
  }

  // All events have ended without a note.
  void require_all(const std::vector<ScaleEvent>& events, std::size_t count, int hosts) {
    require(events.size() == count, fmt::format("{} hosts: {} events", hosts, events.size()));
    for (const ScaleEvent& event : events)
      require(event.seconds && event.note.empty(),
              fmt::format("{} hosts: {}: {}", hosts, event.name, event.note));
  }

  void require_count(const char* what, int hosts, std::int64_t count, std::int64_t expected) {
    require(count == expected,
            fmt::format("{} hosts: {}: {} messages instead of {}", hosts, what, count, expected));
  }

  int result() const {
    fmt::print("{} checks, {} violations\n", checks_, violations_);
    return violations_ == 0 ? 0 : 1;
  }

 private:
  int checks_ = 0;
  int violations_ = 0;
};

const ScaleEvent& find(const std::vector<ScaleEvent>& events, const std::string& name) {
  static const ScaleEvent missing;
  const auto found = std::ranges::find(events, name, &ScaleEvent::name);
  return found == events.end() ? missing : *found;
}

// docs/internals/scaling.md, "Messages of a start and of a change".
void check_counts(Check& check, int hosts, int ranks) {
  ScaleOptions options{.hosts = hosts, .ranks = ranks};
  const auto launchers = measure_launchers(options);
  check.require_all(launchers, hosts == 1 ? 3 : 6, hosts);
  const auto& restart_order = find(launchers, "all hosts know of a dead rank").traffic;
  const auto& restart = find(launchers, "hosts restart").traffic;
  const std::int64_t in = restart_order.messages_in + restart.messages_in;
  const std::int64_t out = restart_order.messages_out + restart.messages_out;
  const std::int64_t others = hosts - 1;
  check.require_count("restart, in", hosts, in, others == 0 ? 0 : others + 3);
  check.require_count("restart, out", hosts, out, 4 * others);
  check.require_count("start, in", hosts, launchers.front().traffic.messages_in, 2 * others);
  check.require(launchers.front().traffic.messages_out >= 4 * others,
                fmt::format("{} hosts: a start has at least four messages to a host", hosts));

  const std::int64_t n = std::int64_t{hosts} * ranks;
  const auto meeting = measure_ranks(options);
  check.require_all(meeting, 2, hosts);
  check.require_count("word, in", hosts, meeting.front().traffic.messages_in, 2 * n + 1);
  check.require_count("word, out", hosts, meeting.front().traffic.messages_out, 3 * n + 1);
  check.require_count("table, in", hosts, meeting.back().traffic.messages_in, 3 * n + 1);
  check.require_count("table, out", hosts, meeting.back().traffic.messages_out, 3 * n + 1);
  check.require(meeting.front().connections == n,
                fmt::format("{} hosts: each rank has a connection", hosts));

  const auto survivors = measure_survivors(options);
  check.require(survivors.size() == (hosts == 1 ? 0u : 2u),
                fmt::format("{} hosts: {} agreements", hosts, survivors.size()));
  for (const ScaleEvent& event : survivors)
    check.require(event.seconds.has_value() && !event.note.starts_with("the group"),
                  fmt::format("{} hosts: {}: {}", hosts, event.name, event.note));
}

void check_many(Check& check) {
  const ScaleOptions options{.hosts = 1000, .ranks = 8};
  check.require_all(measure_launchers(options), 6, options.hosts);
  const auto meeting = measure_ranks(options);
  check.require(meeting.front().seconds.has_value(), "8,000 ranks connect to the store");
}

}  // namespace

int check_scale() {
  Check check;
  for (const int hosts : {1, 2, 5, 8, 32}) check_counts(check, hosts, 4);
  check_many(check);
  return check.result();
}

}  // namespace lockstep::simulation

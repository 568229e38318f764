// SPDX-License-Identifier: Apache-2.0
#include "lockstep/job/activity.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <thread>

#include "lockstep/base/hash.h"
#include "lockstep/base/text.h"
#include "lockstep/job/read_together.h"

namespace lockstep {
namespace {

const Moment loaded = moment_now();

// Nanoseconds per tick.
double scale() {
  static const double measured = [] {
    std::this_thread::sleep_until(loaded.time + std::chrono::milliseconds(5));
    const Moment end = moment_now();
    const double nanoseconds =
        std::chrono::duration<double, std::nano>(end.time - loaded.time).count();
    return nanoseconds / static_cast<double>(end.ticks - loaded.ticks);
  }();
  return measured;
}

double seconds_for(const ShownCall& call) {
  return std::max(0.0, seconds_since(time_of(call.since.load(std::memory_order_relaxed))));
}

std::string name_of(const Activity& activity, const ShownCall& call) {
  const Operation what = call.operation();
  auto text = fmt::format("{} #{}", name(what), call.sequence());
  if (is_message(what))
    text += " " + other_end(name(what), activity.peer.load(std::memory_order_relaxed));
  return fmt::format("{} of group {}", text, group_of(call));
}

}  // namespace

Moment moment_now() {
  const auto [ticks, time] = job::read_together(ticks_now, Clock::now);
  return {time, ticks};
}

std::chrono::nanoseconds time_in(Ticks ticks) {
  const auto difference = static_cast<double>(static_cast<std::int64_t>(ticks));
  return std::chrono::nanoseconds(static_cast<std::int64_t>(difference * scale()));
}

Clock::time_point time_of(Ticks ticks) {
  scale();  // The first call takes about 5 ms.
  const Moment now = moment_now();
  return now.time - time_in(now.ticks - ticks);
}

std::string group_of(const ShownCall& call) {
  char text[sizeof call.group + 1] = {};
  for (std::size_t i = 0; i < call.group.size(); ++i) {
    const std::uint64_t word = call.group[i].load(std::memory_order_relaxed);
    std::memcpy(text + i * sizeof word, &word, sizeof word);
  }
  return text;
}

GroupName pack_group_name(std::string_view name) {
  GroupName packed{};
  if (name.size() <= sizeof packed) {
    std::memcpy(packed.data(), name.data(), name.size());
    return packed;
  }
  constexpr std::size_t kept = sizeof packed - 17;
  const std::string cut = fmt::format("{}~{:016x}", name.substr(0, kept), hash_of_elements(name));
  std::memcpy(packed.data(), cut.data(), sizeof packed);
  return packed;
}

void note_latest(Failure& failure, const Activity& activity) {
  const ShownCall& latest = activity.latest();
  failure.sequence = latest.sequence();
  if (failure.sequence == 0) return;
  failure.operation = name(latest.operation());
  failure.group = group_of(latest);
  if (is_message(latest.operation()))
    failure.peer = std::max(activity.peer.load(std::memory_order_relaxed), -1);
}

std::string describe(const Activity& activity) {
  const ShownCall& making = activity.making;
  const ShownCall& latest = activity.latest();
  const auto group = [&] {
    const std::string which = making.sequence() > 1 ? fmt::format(" #{}", making.sequence()) : "";
    return "making group " + group_of(making) + which;
  };
  if (making.inside()) return fmt::format("{} for {:.1f} s", group(), seconds_for(making));
  const bool made = !latest.inside() && making.since.load(std::memory_order_relaxed) >
                                            latest.since.load(std::memory_order_relaxed);
  if (!made && latest.sequence() == 0) return "yet to call its first collective";
  const std::string call = made ? group() : name_of(activity, latest);
  if (latest.inside()) return fmt::format("in {} for {:.1f} s", call, seconds_for(latest));
  return fmt::format("outside of collectives for {:.1f} s, after {}",
                     seconds_for(made ? making : latest), call);
}

}  // namespace lockstep

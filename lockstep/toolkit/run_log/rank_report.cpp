// SPDX-License-Identifier: Apache-2.0
#include "lockstep/toolkit/run_log/rank_report.h"

#include <bit>
#include <chrono>
#include <limits>

#include "lockstep/base/bytes.h"

namespace lockstep::run_log {
namespace {

constexpr std::size_t most_name_bytes = std::numeric_limits<std::uint32_t>::max();

void put(ByteWriter& to, double value) { to.number(std::bit_cast<std::uint64_t>(value)); }
void put(ByteWriter& to, float value) { to.number(std::bit_cast<std::uint32_t>(value)); }

double get_double(ByteReader& from) { return std::bit_cast<double>(from.number<std::uint64_t>()); }
float get_float(ByteReader& from) { return std::bit_cast<float>(from.number<std::uint32_t>()); }
std::chrono::nanoseconds get_time(ByteReader& from) {
  return std::chrono::nanoseconds(from.number<std::int64_t>());
}

void put(ByteWriter& to, const StepTimes& times) {
  to.number(times.steps);
  for (const auto spent : times.spent) to.number(std::int64_t{spent.count()});
  to.number(static_cast<std::uint32_t>(times.waited_for.size()));
  for (const auto& [rank, time] : times.waited_for)
    to.number(static_cast<std::int32_t>(rank)).number(std::int64_t{time.count()});
}

StepTimes get_times(ByteReader& from) {
  StepTimes times{.steps = from.number<std::int64_t>()};
  for (auto& spent : times.spent) spent = get_time(from);
  for (auto left = from.number<std::uint32_t>(); left > 0; --left) {
    const auto rank = from.number<std::int32_t>();
    times.waited_for[rank] = get_time(from);
  }
  return times;
}

}  // namespace

std::string encode(const RankReport& report) {
  ByteWriter to(256 + report.rows.size() * sizeof(StepRow));
  to.number(static_cast<std::int32_t>(report.rank)).number(report.step).number(report.samples);
  to.number(static_cast<std::uint8_t>(report.is_last));
  put(to, report.times);
  to.number(static_cast<std::uint64_t>(report.rows.size()));
  for (const StepRow& row : report.rows)
    for (const float seconds : row) put(to, seconds);
  to.number(static_cast<std::uint32_t>(report.scalars.size()));
  for (const auto& [name, values] : report.scalars) {
    to.prefixed(name).number(static_cast<std::uint64_t>(values.size()));
    for (const LoggedScalar& one : values) {
      to.number(one.step);
      put(to, one.time);
      put(to, one.value);
    }
  }
  return to.take();
}

RankReport decode(std::string_view bytes) {
  ByteReader from(bytes);
  RankReport report{.rank = from.number<std::int32_t>()};
  report.step = from.number<std::int64_t>();
  report.samples = from.number<std::int64_t>();
  report.is_last = from.number<std::uint8_t>() != 0;
  report.times = get_times(from);
  for (auto left = from.number<std::uint64_t>(); left > 0; --left)
    for (float& seconds : report.rows.emplace_back()) seconds = get_float(from);
  for (auto names = from.number<std::uint32_t>(); names > 0; --names) {
    auto& values = report.scalars[std::string(from.prefixed(most_name_bytes))];
    for (auto left = from.number<std::uint64_t>(); left > 0; --left) {
      const auto step = from.number<std::int64_t>();
      const double time = get_double(from);
      values.push_back({step, time, get_double(from)});
    }
  }
  from.end();
  return report;
}

}  // namespace lockstep::run_log

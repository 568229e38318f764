// SPDX-License-Identifier: Apache-2.0
#include "lockstep/comm/group/flight_recorder.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <nlohmann/json.hpp>

#include "lockstep/base/error.h"
#include "lockstep/base/file_descriptor.h"
#include "lockstep/base/log.h"
#include "lockstep/base/processes.h"
#include "lockstep/base/text.h"
#include "lockstep/base/variables.h"

namespace lockstep::comm {
namespace {

using nlohmann::ordered_json;

std::int64_t microseconds(Clock::time_point time) {
  return std::chrono::duration_cast<std::chrono::microseconds>(time.time_since_epoch()).count();
}

std::string_view name(FlightRecorder::Phase phase) {
  switch (phase) {
    case FlightRecorder::Phase::entered:
      return "entered";
    case FlightRecorder::Phase::completed:
      return "completed";
    case FlightRecorder::Phase::failed:
      return "failed";
  }
  return "unknown";
}

std::string file_name(const FlightRecordHeader& header) {
  std::string group = header.group;
  std::replace(group.begin(), group.end(), '/', '_');
  return fmt::format("flight-record.{}.rank{}.pid{}.json", group, header.rank, ::getpid());
}

bool save_in(std::string_view folder, const FlightRecordHeader& header, std::string_view json) {
  const std::string path = fmt::format("{}/{}", folder, file_name(header));
  try {
    write_small_file(path, json);
  } catch (const Error& error) {
    log(LogLevel::warning, fmt::format("the flight record was not saved: {}", bare_text(error)));
    return false;
  }
  log(LogLevel::warning, fmt::format("the last operations are in {}", path));
  return true;
}

}  // namespace

std::string FlightRecorder::json() const {
  auto all = ordered_json::array();
  const std::uint64_t end = recorded_.load(std::memory_order_acquire);
  for (std::uint64_t i = end - std::min<std::uint64_t>(end, capacity); i < end; ++i) {
    const Entry& entry = entries_[i % capacity];
    const Operation operation = entry.operation;
    ordered_json one{{"sequence", entry.sequence.load()},
                     {"operation", lockstep::name(operation)},
                     {"dtype", lockstep::name(entry.dtype.load())},
                     {"count", entry.count.load()},
                     {"bytes", entry.count.load() * size_of(entry.dtype.load())},
                     {"root", entry.root.load()}};
    if (reduces(operation)) one["reduction"] = lockstep::name(entry.op.load());
    const std::uint64_t label = entry.label;
    if (operation == Operation::send || operation == Operation::recv)
      one["tag"] = static_cast<std::int64_t>(label);
    else if (label != 0)
      one["label_hash"] = label;
    const Phase phase = entry.phase;
    one["phase"] = name(phase);
    one["entered_us"] = microseconds(time_of(entry.entered));
    if (phase != Phase::entered) one["left_us"] = microseconds(time_of(entry.left));
    if (begun_.load() > i + capacity) continue;  // A later operation was overwriting it.
    all.push_back(std::move(one));
  }
  return all.dump();
}

std::string flight_record(const FlightRecordHeader& header, const FlightRecorder& collectives,
                          const FlightRecorder& messages) {
  const ordered_json record{{"version", 2},
                            {"group", header.group},
                            {"rank", header.rank},
                            {"size", header.size},
                            {"backend", header.backend},
                            {"host", host_name()},
                            {"pid", ::getpid()},
                            {"now_us", microseconds(Clock::now())},
                            {"error", header.error},
                            {"collectives", ordered_json::parse(collectives.json())},
                            {"messages", ordered_json::parse(messages.json())}};
  return record.dump(-1, ' ', false, ordered_json::error_handler_t::replace);
}

void save_flight_record(const FlightRecordHeader& header, std::string_view json) noexcept {
  try {
    const char* folder = read_variable("LOCKSTEP_FLIGHT_RECORD");
    if (folder != nullptr && save_in(folder, header, json)) return;
    log(LogLevel::info, fmt::format("flight record: {}", json));
  } catch (...) {  // Such as out of memory. The caller's first error matters more.
  }
}

}  // namespace lockstep::comm

// SPDX-License-Identifier: Apache-2.0
#include "lockstep/launch/agent_frames.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <limits>
#include <nlohmann/json.hpp>

#include "lockstep/comm/store/bytes.h"

namespace lockstep {
namespace {

using nlohmann::json;

constexpr std::size_t length_bytes = 4;
// JSON may make six bytes of each; no frame has more than seven such texts.
constexpr std::size_t longest_text = 1024;
constexpr int deepest = 3;
constexpr int most_of_anything = 1 << 16;
constexpr int largest = std::numeric_limits<int>::max();

constexpr std::array<std::string_view, 5> outcomes{"succeeded", "preempted", "failed", "stopped",
                                                   "left"};

[[noreturn]] void throw_corrupt(const char* what) { throw Error(Fault::corrupt, what); }

std::string cut(const std::string& text) { return text.substr(0, longest_text); }

const json& member(const json& object, const char* name) {
  const auto found = object.find(name);
  if (found == object.end()) throw_corrupt("a launcher's frame lacks a member");
  return *found;
}

std::string text(const json& object, const char* name) {
  const json& value = member(object, name);
  if (!value.is_string()) throw_corrupt("a launcher's frame has no text where it should");
  return value.get<std::string>();
}

std::int64_t number(const json& value, std::int64_t low, std::int64_t high) {
  const bool fits = value.is_number_integer() &&
                    (!value.is_number_unsigned() ||
                     value.get<std::uint64_t>() <= std::numeric_limits<std::int64_t>::max());
  if (!fits || value.get<std::int64_t>() < low || value.get<std::int64_t>() > high)
    throw_corrupt("a launcher's frame has a number that cannot be");
  return value.get<std::int64_t>();
}

int number(const json& object, const char* name, int low, int high = largest) {
  return static_cast<int>(number(member(object, name), low, high));
}

// Null for none.
std::optional<int> maybe_number(const json& object, const char* name, int low, int high) {
  const json& value = member(object, name);
  if (value.is_null()) return std::nullopt;
  return static_cast<int>(number(value, low, high));
}

template <class Value>
json or_null(const std::optional<Value>& value) {
  return value ? json(*value) : json();
}

json to_json(const std::optional<Failure>& failure) {
  if (!failure) return json();
  return {{"rank", failure->rank},
          {"host", cut(failure->host)},
          {"pid", failure->pid},
          {"exit_code", or_null(failure->exit_code)},
          {"signal", or_null(failure->signal)},
          {"oom", or_null(failure->oom)},
          {"operation", cut(failure->operation)},
          {"sequence", failure->sequence},
          {"group", cut(failure->group)},
          {"what", cut(failure->what)},
          {"detected_by", failure->detected_by},
          {"left", failure->left}};
}

std::optional<Failure> failure_of(const json& frame) {
  const json& object = member(frame, "failure");
  if (object.is_null()) return std::nullopt;
  if (!object.is_object()) throw_corrupt("a launcher's frame has a failure that is none");
  const json& sequence = member(object, "sequence");
  const json& oom = member(object, "oom");
  const json& left = member(object, "left");
  if (!sequence.is_number_unsigned() || (!oom.is_null() && !oom.is_boolean()) || !left.is_boolean())
    throw_corrupt("a launcher's frame has a failure that is none");
  return Failure{.rank = number(object, "rank", -1),
                 .host = text(object, "host"),
                 .pid = number(object, "pid", 0),
                 .exit_code = maybe_number(object, "exit_code", -largest, largest),
                 .signal = maybe_number(object, "signal", 0, largest),
                 .oom = oom.is_null() ? std::nullopt : std::optional(oom.get<bool>()),
                 .operation = text(object, "operation"),
                 .sequence = sequence.get<std::uint64_t>(),
                 .group = text(object, "group"),
                 .what = text(object, "what"),
                 .detected_by = number(object, "detected_by", -1),
                 .left = left.get<bool>()};
}

struct ToJson {
  json operator()(const AliveFrame&) const { return {{"type", "alive"}}; }
  json operator()(const JoinFrame& frame) const {
    const Coordinator::Newcomer& said = frame.newcomer;
    return {{"type", "join"},      {"host", cut(said.host)},
            {"nproc", said.nproc}, {"node_rank", or_null(said.node_rank)},
            {"least", said.least}, {"most", said.most}};
  }
  json operator()(const ReportFrame& frame) const {
    return {{"type", "report"},
            {"attempt", frame.attempt},
            {"outcome", outcomes.at(static_cast<std::size_t>(frame.outcome))},
            {"exit_code", frame.exit_code},
            {"failure", to_json(frame.failure)}};
  }
  json operator()(const AllGoneFrame& frame) const {
    return {{"type", "all_gone"}, {"attempt", frame.attempt}};
  }
  json operator()(const StateFrame& frame) const {
    return {{"type", "state"}, {"coordinator", cut(frame.coordinator)}, {"text", cut(frame.text)}};
  }
  json operator()(const StartRanks& frame) const {
    const Round& round = frame.round;
    return {{"type", "start_ranks"},
            {"attempt", round.attempt},
            {"restarts", round.restarts},
            {"node", round.node},
            {"nodes", round.nodes},
            {"first_rank", round.first_rank},
            {"world_size", round.world_size},
            {"job_id", cut(round.job_id)},
            {"master_addr", cut(round.master_addr)},
            {"master_port", round.master_port},
            {"store", cut(round.store)}};
  }
  json operator()(const EndRanks& frame) const {
    return {{"type", "end_ranks"}, {"why", cut(frame.why)}, {"failure", to_json(frame.failure)}};
  }
  json operator()(const EndJob& frame) const {
    return {{"type", "end_job"},
            {"exit_code", frame.exit_code},
            {"why", cut(frame.why)},
            {"failure", to_json(frame.failure)}};
  }
};

JoinFrame join_of(const json& frame) {
  return {{.host = text(frame, "host"),
           .nproc = number(frame, "nproc", 1, 99999),
           .node_rank = maybe_number(frame, "node_rank", 0, most_of_anything),
           .least = number(frame, "least", 1, most_of_anything),
           .most = number(frame, "most", 1, most_of_anything)}};
}

ReportFrame report_of(const json& frame) {
  const auto found = std::find(outcomes.begin(), outcomes.end(), text(frame, "outcome"));
  if (found == outcomes.end()) throw_corrupt("a launcher's frame has an outcome that is none");
  return {.attempt = number(frame, "attempt", -1),
          .outcome = static_cast<Outcome>(found - outcomes.begin()),
          .exit_code = number(frame, "exit_code", 0, 255),
          .failure = failure_of(frame)};
}

StartRanks start_of(const json& frame) {
  return {{.attempt = number(frame, "attempt", 0),
           .restarts = number(frame, "restarts", 0),
           .node = number(frame, "node", 0),
           .nodes = number(frame, "nodes", 1),
           .first_rank = number(frame, "first_rank", 0),
           .world_size = number(frame, "world_size", 1),
           .job_id = text(frame, "job_id"),
           .master_addr = text(frame, "master_addr"),
           .master_port = number(frame, "master_port", 1, 65535),
           .store = text(frame, "store")}};
}

json parse(std::string_view body) {
  const auto guard = [](int depth, json::parse_event_t, json&) {
    if (depth > deepest) throw_corrupt("a launcher's frame is too deep");
    return true;
  };
  json frame = json::parse(body, guard, /*allow_exceptions=*/false);
  if (!frame.is_object()) throw_corrupt("a launcher's frame is no JSON object");
  return frame;
}

}  // namespace

std::string encode(const AgentFrame& frame) {
  // A text that is no UTF-8, such as an exception's, must not cost the frame.
  const std::string body =
      std::visit(ToJson(), frame).dump(-1, ' ', true, json::error_handler_t::replace);
  check(body.size() <= max_agent_frame_bytes, "a launcher's frame is too long");
  return ByteWriter(length_bytes + body.size()).prefixed(body).take();
}

std::optional<std::string_view> first_agent_frame(std::string_view bytes) {
  if (bytes.size() < length_bytes) return std::nullopt;
  const auto length = ByteReader(bytes.substr(0, length_bytes)).number<std::uint32_t>();
  if (length > max_agent_frame_bytes) throw_corrupt("a launcher's frame is too long");
  if (bytes.size() - length_bytes < length) return std::nullopt;
  return bytes.substr(length_bytes, length);
}

AgentFrame decode_agent_frame(std::string_view body) {
  const json frame = parse(body);
  const std::string type = text(frame, "type");
  if (type == "alive") return AliveFrame{};
  if (type == "join") return join_of(frame);
  if (type == "report") return report_of(frame);
  if (type == "all_gone") return AllGoneFrame{number(frame, "attempt", 0)};
  if (type == "state") return StateFrame{text(frame, "coordinator"), text(frame, "text")};
  if (type == "start_ranks") return start_of(frame);
  if (type == "end_ranks") return EndRanks{text(frame, "why"), failure_of(frame)};
  if (type == "end_job")
    return EndJob{number(frame, "exit_code", 0, 255), text(frame, "why"), failure_of(frame)};
  throw_corrupt("a launcher's frame is of no known kind");
}

}  // namespace lockstep

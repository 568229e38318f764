// SPDX-License-Identifier: Apache-2.0
#include "lockstep/launch/agent_frames.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <limits>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "lockstep/base/bytes.h"
#include "lockstep/base/text.h"
#include "lockstep/job/store/handshake.h"

namespace lockstep::launch {
namespace {

using Words = std::vector<std::string>;

std::string shown(const std::string& word) {
  return clean_text(word, JobCommand::longest_argument);
}

// Hexadecimal SHA-256 of the words, each after its length.
std::string digest_of(const Words& words) {
  std::string bytes;
  for (const std::string& word : words) bytes += ByteWriter(4 + word.size()).prefixed(word).take();
  return sha256_hex(bytes);
}

Words words_of(const JobCommand& command) {
  Words words{command.program};
  words.insert(words.end(), command.arguments.begin(), command.arguments.end());
  return words;
}

std::string excerpt(const Words& words, std::size_t place) {
  const std::size_t end = std::min(place + 1, words.size());
  std::string text = words.front();
  if (place > 2) text += " ...";
  for (std::size_t i = std::max<std::size_t>(place, 2) - 1; i < end; ++i)
    text.append(" ").append(words[i]);
  return fmt::format("`{}{}`", text, end < words.size() ? " ..." : "");
}

std::string by_digest(const JobCommand& command) {
  return fmt::format("`{} ...` with arguments of SHA-256 {}", command.program,
                     command.digest.substr(0, 8));
}

using nlohmann::json;

constexpr std::size_t length_bytes = 4;
// JSON needs up to three bytes per byte of sanitised text. Besides a JobCommand's arguments, a
// frame has at most eight such texts.
constexpr std::size_t longest_text = 1024;
constexpr int deepest = 3;
constexpr int most_of_anything = 1 << 16;
constexpr int largest = std::numeric_limits<int>::max();

constexpr std::array<std::string_view, 5> outcomes{"succeeded", "preempted", "failed", "stopped",
                                                   "left"};

[[noreturn]] void throw_corrupt(const char* what) { throw Error(Fault::corrupt, what); }

std::string cut(std::string_view text) { return clean_text(text, longest_text); }

const json& member(const json& object, const char* name) {
  const auto found = object.find(name);
  if (found == object.end()) throw_corrupt("a launcher's frame lacks a member");
  return *found;
}

const std::string& raw_text(const json& value) {
  if (!value.is_string()) throw_corrupt("a launcher's frame has no text where it should");
  return value.get_ref<const std::string&>();
}

std::string text(const json& object, const char* name) {
  return cut(raw_text(member(object, name)));
}

std::string exact_text(const json& object, const char* name) {
  const std::string& value = raw_text(member(object, name));
  if (cut(value) != value) throw_corrupt("a launcher's frame has an invalid name");
  return value;
}

std::int64_t number(const json& value, std::int64_t low, std::int64_t high) {
  const bool fits = value.is_number_integer() &&
                    (!value.is_number_unsigned() ||
                     value.get<std::uint64_t>() <= std::numeric_limits<std::int64_t>::max());
  if (!fits || value.get<std::int64_t>() < low || value.get<std::int64_t>() > high)
    throw_corrupt("a launcher's frame has a number out of range");
  return value.get<std::int64_t>();
}

int number(const json& object, const char* name, int low, int high = largest) {
  return static_cast<int>(number(member(object, name), low, high));
}

std::optional<int> maybe_number(const json& object, const char* name, int low, int high) {
  const json& value = member(object, name);
  if (value.is_null()) return std::nullopt;
  return static_cast<int>(number(value, low, high));
}

template <class Value>
json or_null(const std::optional<Value>& value) {
  return value ? json(*value) : json();
}

std::vector<int> cut(const std::vector<int>& ranks) {
  return {ranks.begin(),
          ranks.begin() + static_cast<std::ptrdiff_t>(std::min(ranks.size(), most_blamed))};
}

std::vector<std::string> cut(const std::vector<std::string>& arguments) {
  std::vector<std::string> first;
  for (std::size_t i = 0; i < std::min(arguments.size(), JobCommand::most_arguments); ++i)
    first.push_back(clean_text(arguments[i], JobCommand::longest_argument));
  return first;
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
          {"peer", or_null(failure->peer)},
          {"group", cut(failure->group)},
          {"what", cut(failure->what)},
          {"detected_by", failure->detected_by},
          {"left", failure->left},
          {"fault", failure->fault ? json(name(*failure->fault)) : json()},
          {"ranks", cut(failure->ranks)},
          {"call", cut(failure->call)}};
}

// Older launchers do not send it.
void read_peer(Failure& failure, const json& object) {
  if (object.contains("peer")) failure.peer = maybe_number(object, "peer", -1, largest);
}

void read_ranks(Failure& failure, const json& object) {
  const auto ranks = object.find("ranks");
  if (ranks == object.end() && !failure.fault) return;  // From an older launcher.
  if (ranks == object.end() || !ranks->is_array())
    throw_corrupt("a launcher's frame has an invalid failure");
  for (const json& rank : *ranks)
    failure.ranks.push_back(static_cast<int>(number(rank, std::int64_t{0}, std::int64_t{largest})));
  failure.ranks = cut(failure.ranks);
}

void read_break(Failure& failure, const json& object) {
  const auto fault = object.find("fault");
  if (fault == object.end() || fault->is_null()) return;
  const auto said = text(object, "fault");
  for (const Fault known : {Fault::timeout, Fault::mismatch})
    if (said == name(known)) failure.fault = known;
  if (!failure.fault) throw_corrupt("a launcher's frame has an invalid failure");
  failure.call = text(object, "call");
}

std::optional<Failure> failure_of(const json& frame) {
  const json& object = member(frame, "failure");
  if (object.is_null()) return std::nullopt;
  if (!object.is_object()) throw_corrupt("a launcher's frame has an invalid failure");
  const json& sequence = member(object, "sequence");
  const json& oom = member(object, "oom");
  const json& left = member(object, "left");
  if (!sequence.is_number_unsigned() || (!oom.is_null() && !oom.is_boolean()) || !left.is_boolean())
    throw_corrupt("a launcher's frame has an invalid failure");
  Failure failure{.rank = number(object, "rank", -1),
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
  read_peer(failure, object);
  read_break(failure, object);
  read_ranks(failure, object);
  return failure;
}

constexpr std::size_t most_times = 128;
constexpr std::size_t most_waits = 8;
constexpr std::int64_t longest_us = std::int64_t{1} << 50;

std::int64_t in_us(std::chrono::nanoseconds time) {
  const auto us = std::chrono::duration_cast<std::chrono::microseconds>(time).count();
  return std::clamp<std::int64_t>(us, 0, longest_us);
}

json to_json(const RankTimes& rank) {
  json list = {rank.rank, rank.times.steps, in_us(rank.stood_still)};
  for (const std::chrono::nanoseconds spent : rank.times.spent) list.push_back(in_us(spent));
  std::vector<std::pair<int, std::chrono::nanoseconds>> waits(rank.times.waited_for.begin(),
                                                              rank.times.waited_for.end());
  std::ranges::stable_sort(waits, std::ranges::greater(),
                           [](const auto& wait) { return wait.second; });
  waits.resize(std::min(waits.size(), most_waits));
  for (const auto& [other, time] : waits) {
    list.push_back(other);
    list.push_back(in_us(time));
  }
  return list;
}

json to_json(const std::vector<RankTimes>& times) {
  json all = json::array();
  for (std::size_t i = 0; i < std::min(times.size(), most_times); ++i)
    all.push_back(to_json(times[i]));
  return all;
}

RankTimes rank_times_of(const json& list) {
  constexpr std::size_t first_phase = 3;
  constexpr std::size_t first_wait = first_phase + step_phases;
  if (!list.is_array() || list.size() < first_wait || list.size() > first_wait + 2 * most_waits ||
      (list.size() - first_wait) % 2 != 0)
    throw_corrupt("a launcher's frame has invalid times");
  const auto us = [&](std::size_t place) {
    return std::chrono::microseconds(number(list[place], 0, longest_us));
  };
  const auto rank = [&](std::size_t place) {
    return static_cast<int>(number(list[place], std::int64_t{0}, std::int64_t{largest}));
  };
  RankTimes times{.rank = rank(0), .stood_still = us(2)};
  times.times.steps = number(list[1], 0, longest_us);
  for (std::size_t i = 0; i < step_phases; ++i) times.times.spent[i] = us(first_phase + i);
  for (std::size_t i = first_wait; i < list.size(); i += 2)
    times.times.waited_for[rank(i)] = us(i + 1);
  return times;
}

// Older launchers do not send them.
std::vector<RankTimes> times_of(const json& frame) {
  std::vector<RankTimes> times;
  const auto found = frame.find("times");
  if (found == frame.end()) return times;
  if (!found->is_array()) throw_corrupt("a launcher's frame has no list where it should");
  for (std::size_t i = 0; i < std::min(found->size(), most_times); ++i)
    times.push_back(rank_times_of((*found)[i]));
  return times;
}

struct ToJson {
  json operator()(const AliveFrame&) const { return {{"type", "alive"}}; }
  json operator()(const JoinFrame& frame) const {
    const Coordinator::JoiningNode& said = frame.node;
    json join = {{"type", "join"},      {"host", cut(said.host)},
                 {"nproc", said.nproc}, {"node_rank", or_null(said.node_rank)},
                 {"least", said.least}, {"most", said.most}};
    if (!frame.command) return join;
    join["program"] = cut(frame.command->program);
    join["arguments"] = cut(frame.command->arguments);
    join["digest"] = cut(frame.command->digest);
    return join;
  }
  json operator()(const ReportFrame& frame) const {
    json report = {{"type", "report"},
                   {"attempt", frame.attempt},
                   {"outcome", outcomes.at(static_cast<std::size_t>(frame.outcome))},
                   {"exit_code", frame.exit_code},
                   {"failure", to_json(frame.failure)}};
    if (!frame.failure && !frame.times.empty()) report["times"] = to_json(frame.times);
    return report;
  }
  json operator()(const AllGoneFrame& frame) const {
    return {{"type", "all_gone"}, {"attempt", frame.attempt}};
  }
  json operator()(const StateFrame& frame) const {
    return {{"type", "state"},
            {"coordinator", cut(frame.coordinator)},
            {"text", cut(frame.text)},
            {"pause_ms", frame.pause.count()}};
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

std::optional<JobCommand> command_in(const json& frame) {
  if (!frame.contains("program")) return std::nullopt;
  const json& arguments = member(frame, "arguments");
  if (!arguments.is_array()) throw_corrupt("a launcher's frame has no list where it should");
  JobCommand command{.program = text(frame, "program"), .digest = text(frame, "digest")};
  const std::size_t count = std::min(arguments.size(), JobCommand::most_arguments);
  for (std::size_t i = 0; i < count; ++i)
    command.arguments.push_back(clean_text(raw_text(arguments[i]), JobCommand::longest_argument));
  return command;
}

JoinFrame join_of(const json& frame) {
  return {.node = {.host = text(frame, "host"),
                   .nproc = number(frame, "nproc", 1, 99999),
                   .node_rank = maybe_number(frame, "node_rank", 0, most_of_anything),
                   .least = number(frame, "least", 1, most_of_anything),
                   .most = number(frame, "most", 1, most_of_anything)},
          .command = command_in(frame)};
}

ReportFrame report_of(const json& frame) {
  const auto found = std::find(outcomes.begin(), outcomes.end(), text(frame, "outcome"));
  if (found == outcomes.end()) throw_corrupt("a launcher's frame has an invalid outcome");
  return {.attempt = number(frame, "attempt", -1),
          .outcome = static_cast<Outcome>(found - outcomes.begin()),
          .exit_code = number(frame, "exit_code", 0, 255),
          .failure = failure_of(frame),
          .times = times_of(frame)};
}

// Older launchers do not send `pause_ms`.
StateFrame state_of(const json& frame) {
  const int pause_ms = frame.contains("pause_ms") ? number(frame, "pause_ms", 0) : 0;
  return {.coordinator = text(frame, "coordinator"),
          .text = text(frame, "text"),
          .pause = std::chrono::milliseconds(pause_ms)};
}

StartRanks start_of(const json& frame) {
  return {{.attempt = number(frame, "attempt", 0),
           .restarts = number(frame, "restarts", 0),
           .node = number(frame, "node", 0),
           .nodes = number(frame, "nodes", 1),
           .first_rank = number(frame, "first_rank", 0),
           .world_size = number(frame, "world_size", 1),
           .job_id = exact_text(frame, "job_id"),
           .master_addr = exact_text(frame, "master_addr"),
           .master_port = number(frame, "master_port", 1, 65535),
           .store = exact_text(frame, "store")}};
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

JobCommand job_command(const RunOptions& options) {
  Words words{std::filesystem::path(options.program).filename()};
  for (std::size_t i = 1; i < options.arguments.size(); ++i) words.push_back(options.arguments[i]);
  JobCommand command{.program = shown(words.front()), .digest = digest_of(words)};
  const std::size_t end = std::min(words.size(), 1 + JobCommand::most_arguments);
  for (std::size_t i = 1; i < end; ++i) command.arguments.push_back(shown(words[i]));
  return command;
}

std::optional<CommandDifference> difference(const JobCommand& here, const JobCommand& there) {
  if (here.digest == there.digest) return std::nullopt;
  const Words a = words_of(here);
  const Words b = words_of(there);
  const auto place = std::mismatch(a.begin(), a.end(), b.begin(), b.end());
  // The difference may be in a part that was cut.
  if (place.first == a.end() && place.second == b.end())
    return CommandDifference{by_digest(here), by_digest(there)};
  const auto at = static_cast<std::size_t>(place.first - a.begin());
  return CommandDifference{excerpt(a, at), excerpt(b, at)};
}

std::string encode(const AgentFrame& frame) {
  const std::string body = std::visit(ToJson(), frame).dump(-1, ' ', true);
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
  if (type == "state") return state_of(frame);
  if (type == "start_ranks") return start_of(frame);
  if (type == "end_ranks") return EndRanks{text(frame, "why"), failure_of(frame)};
  if (type == "end_job")
    return EndJob{number(frame, "exit_code", 0, 255), text(frame, "why"), failure_of(frame)};
  throw_corrupt("a launcher's frame is of an unknown kind");
}

}  // namespace lockstep::launch

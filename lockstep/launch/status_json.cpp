// SPDX-License-Identifier: Apache-2.0
#include "lockstep/launch/status_json.h"

#include <nlohmann/json.hpp>

namespace lockstep {
namespace {

using nlohmann::ordered_json;

ordered_json object_of(const RankStatus& rank) {
  return {{"rank", rank.rank},           {"pid", rank.pid},   {"state", rank.state},
          {"waits_for", rank.waits_for}, {"step", rank.step}, {"last", rank.last},
          {"bound_to", rank.bound_to}};
}

ordered_json object_of(const JobStatus& job) {
  ordered_json ranks = ordered_json::array();
  for (const RankStatus& rank : job.ranks) ranks.push_back(object_of(rank));
  return {{"job_id", job.job_id},
          {"program", job.program},
          {"agent_pid", job.agent_pid},
          {"host", job.host},
          {"node", job.node},
          {"nodes", job.nodes},
          {"world_size", job.world_size},
          {"attempt", job.attempt},
          {"state", job.state},
          {"seconds", job.seconds},
          {"ranks", std::move(ranks)}};
}

// A program's arguments may be any bytes. Invalid UTF-8 is replaced. All that is not ASCII is
// escaped, and so are control characters, because a terminal would obey some of them.
std::string text_of(const ordered_json& json, int indent) {
  return json.dump(indent, ' ', true, ordered_json::error_handler_t::replace);
}

template <class Value>
void take(const ordered_json& from, const char* key, Value& to) {
  if (const auto found = from.find(key); found != from.end()) found->get_to(to);
}

RankStatus rank_in(const ordered_json& object) {
  RankStatus rank;
  take(object, "rank", rank.rank);
  take(object, "pid", rank.pid);
  take(object, "state", rank.state);
  take(object, "waits_for", rank.waits_for);
  take(object, "step", rank.step);
  take(object, "last", rank.last);
  take(object, "bound_to", rank.bound_to);
  return rank;
}

JobStatus job_in(const ordered_json& object) {
  JobStatus job;
  take(object, "job_id", job.job_id);
  take(object, "program", job.program);
  take(object, "agent_pid", job.agent_pid);
  take(object, "host", job.host);
  take(object, "node", job.node);
  take(object, "nodes", job.nodes);
  take(object, "world_size", job.world_size);
  take(object, "attempt", job.attempt);
  take(object, "state", job.state);
  take(object, "seconds", job.seconds);
  for (const ordered_json& rank : object.value("ranks", ordered_json::array()))
    job.ranks.push_back(rank_in(rank));
  return job;
}

}  // namespace

std::string to_json(const JobStatus& job) { return text_of(object_of(job), -1); }

std::string to_json(const std::vector<JobStatus>& jobs) {
  ordered_json all = ordered_json::array();
  for (const JobStatus& job : jobs) all.push_back(object_of(job));
  return text_of(all, 2);
}

std::optional<JobStatus> job_status_in(const std::string& text) try {
  return job_in(ordered_json::parse(text));
} catch (const ordered_json::exception&) {
  return std::nullopt;
}

}  // namespace lockstep

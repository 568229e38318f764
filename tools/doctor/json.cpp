// SPDX-License-Identifier: Apache-2.0
#include <nlohmann/json.hpp>

#include "tools/doctor/report.h"

namespace lockstep::doctor {
namespace {

using Json = nlohmann::ordered_json;

template <class Value>
Json or_null(const std::optional<Value>& value) {
  return value ? Json(*value) : Json(nullptr);
}

Json text_or_null(const std::string& text) { return text.empty() ? Json(nullptr) : Json(text); }

Json json_of(const Processors& processors) {
  Json cores = Json::array();
  for (const Core& core : processors.topology.cores)
    cores.push_back({{"package", core.package},
                     {"node", core.node},
                     {"l3", core.l3},
                     {"l3_bytes", core.l3_bytes},
                     {"cpus", core.cpus}});
  return {{"usable_cores", processors.usable_cores},
          {"cpus", processors.cpus},
          {"quota", or_null(processors.quota)},
          {"numa_nodes", processors.topology.nodes},
          {"cores", std::move(cores)}};
}

Json json_of(const Memory& memory) {
  return {{"total", memory.total},
          {"available", memory.available},
          {"cgroup_limit", or_null(memory.cgroup_limit)}};
}

Json json_of(const SharedMemory& memory) {
  return {{"error", text_or_null(memory.error)},
          {"dev_shm", or_null(memory.dev_shm_bytes)},
          {"dev_shm_free", memory.dev_shm_free}};
}

Json json_of(const LibTorch& torch) {
  if (torch.built_for.empty()) return nullptr;
  return {{"built_for", torch.built_for},
          {"version", text_or_null(torch.version)},
          {"path", text_or_null(torch.path)},
          {"error", text_or_null(torch.error)}};
}

Json json_of(const EngineState& engine) {
  return {{"name", engine.name},
          {"version", text_or_null(engine.version)},
          {"path", text_or_null(engine.path)},
          {"why_not", text_or_null(engine.why_not)}};
}

Json json_of(const Limit& limit) {
  return {{"soft", or_null(limit.soft)}, {"hard", or_null(limit.hard)}};
}

Json json_of(const NetworkInterface& interface) {
  return {{"name", interface.name},
          {"address", interface.address},
          {"up", interface.is_up},
          {"loopback", interface.is_loopback}};
}

Json json_of(const Network& network) {
  Json all = Json::array();
  for (const NetworkInterface& each : network.interfaces) all.push_back(json_of(each));
  return {{"interfaces", std::move(all)},
          {"chosen", network.chosen ? json_of(*network.chosen) : Json(nullptr)},
          {"error", text_or_null(network.error)},
          {"rdma_devices", network.rdma_devices}};
}

Json json_of(const Launcher& launcher) {
  if (launcher.name.empty() && launcher.error.empty()) return nullptr;
  return {{"name", text_or_null(launcher.name)},
          {"rank", launcher.rank},
          {"world_size", launcher.world_size},
          {"local_world_size", launcher.local_world_size},
          {"error", text_or_null(launcher.error)}};
}

Json json_of(const Token& token) {
  return {{"source", text_or_null(token.source)},
          {"error", text_or_null(token.error)},
          {"network_is_trusted", token.network_is_trusted}};
}

Json json_of(const std::vector<Finding>& findings) {
  Json all = Json::array();
  for (const Finding& each : findings) all.push_back({{"what", each.what}, {"cure", each.cure}});
  return all;
}

}  // namespace

std::string to_json(const Host& host, const Job& job, const Diagnosis& diagnosis) {
  Json engines = Json::array();
  for (const EngineState& each : host.engines) engines.push_back(json_of(each));
  const Json all{{"version", 1},
                 {"host", host.name},
                 {"kernel", host.kernel},
                 {"lockstep", host.lockstep},
                 {"job", {{"ranks", job.ranks}, {"hosts", job.hosts}}},
                 {"can_run", diagnosis.problems.empty()},
                 {"problems", json_of(diagnosis.problems)},
                 {"notes", json_of(diagnosis.notes)},
                 {"processors", json_of(host.processors)},
                 {"memory", json_of(host.memory)},
                 {"shared_memory", json_of(host.shared_memory)},
                 {"libtorch", json_of(host.torch)},
                 {"engines", std::move(engines)},
                 {"open_files", json_of(host.open_files)},
                 {"locked_memory", json_of(host.locked_memory)},
                 {"network", json_of(host.network)},
                 {"launcher", json_of(host.launcher)},
                 {"token", json_of(host.token)}};
  return all.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace lockstep::doctor

// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>
#include <utility>

#include "tools/doctor/diagnosis.h"

namespace lockstep::doctor {
namespace {

constexpr std::size_t column = 10;

std::string shown(std::string text) {
  for (char& each : text)
    if ((static_cast<unsigned char>(each) < 0x20 && each != '\n') || each == 0x7f) each = '?';
  return text;
}

std::string indented(const std::string& text, std::size_t indent) {
  std::string result;
  for (const char each : text) {
    result += each;
    if (each == '\n') result.append(indent, ' ');
  }
  return result;
}

std::string line(const std::string& label, const std::string& text) {
  return fmt::format("{:<{}}{}\n", label, column, indented(shown(text), column));
}

std::string plural(std::uint64_t count, const std::string& noun) {
  return fmt::format("{} {}{}", count, noun, count == 1 ? "" : "s");
}

std::string size_text(std::uint64_t bytes) {
  constexpr std::uint64_t gibi = 1 << 30, mebi = 1 << 20, kibi = 1 << 10;
  if (bytes >= 10 * gibi) return fmt::format("{} GiB", bytes / gibi);
  if (bytes >= gibi)
    return fmt::format("{:.1f} GiB", static_cast<double>(bytes) / static_cast<double>(gibi));
  return bytes >= mebi ? fmt::format("{} MiB", bytes / mebi) : fmt::format("{} KiB", bytes / kibi);
}

// "2 L3 of 32 MiB" per cache size.
std::string caches_text(const Topology& topology) {
  std::map<int, std::uint64_t> caches;  // Key: cache number.
  for (const Core& core : topology.cores)
    if (core.l3 >= 0) caches[core.l3] = core.l3_bytes;
  std::map<std::uint64_t, int> counts;
  for (const auto& [number, bytes] : caches) ++counts[bytes];
  std::string text;
  for (const auto& [bytes, count] : counts)
    text += fmt::format(", {} L3 of {}", count, size_text(bytes));
  return text.empty() ? ", no L3" : text;
}

std::string text_of(const Processors& processors) {
  const std::string quota =
      processors.quota ? fmt::format("a quota of {:.2g} CPUs", *processors.quota) : "no quota";
  return fmt::format("{} usable: CPUs {}, {}, {}{}", processors.usable_cores, processors.cpus,
                     quota,
                     plural(static_cast<std::uint64_t>(processors.topology.nodes), "NUMA node"),
                     caches_text(processors.topology));
}

std::string text_of(const NumberFormat& format) {
  return format.is_native() ? fmt::format("native ({})", fmt::join(format.found, ", "))
                            : fmt::format("emulated (no {})", fmt::join(format.missing, ", no "));
}

std::string text_of(const NumberFormats& formats) {
  return fmt::format("bfloat16 {}, float16 {}", text_of(formats.bf16), text_of(formats.fp16));
}

std::string text_of(const Memory& memory) {
  return fmt::format("{}, {} available, {}", size_text(memory.total), size_text(memory.available),
                     memory.cgroup_limit
                         ? fmt::format("cgroup limit {}", size_text(*memory.cgroup_limit))
                         : std::string("no cgroup limit"));
}

std::string text_of(const SharedMemory& memory) {
  const std::string works =
      memory.error.empty() ? std::string("works") : fmt::format("does not work: {}", memory.error);
  if (!memory.dev_shm_bytes) return fmt::format("{}; no /dev/shm", works);
  return fmt::format("{}; /dev/shm {}, {} free", works, size_text(*memory.dev_shm_bytes),
                     size_text(memory.dev_shm_free));
}

std::string text_of(const LibTorch& torch) {
  if (torch.built_for.empty()) return "no part of this copy of Lockstep needs it";
  if (!torch.error.empty()) return fmt::format("{} is needed: {}", torch.built_for, torch.error);
  const char* cuda = !torch.is_for_cuda ? ""
                     : torch.has_driver ? ", a CUDA build"
                                        : ", a CUDA build; without NVIDIA's driver, on CPUs only";
  return fmt::format("{} (built for {}){}: {}",
                     torch.version.empty() ? "version unknown" : torch.version, torch.built_for,
                     cuda, torch.path);
}

// Lists the indented lines after a comma, and leaves out the place in Lockstep's source.
std::string on_one_line(std::string text) {
  if (const auto place = text.rfind(" [lockstep/"); place != text.npos && text.ends_with(']'))
    text.resize(place);
  std::istringstream lines(text);
  std::string result;
  bool is_item = false;
  for (std::string each; std::getline(lines, each);) {
    const bool follows_item = std::exchange(is_item, each.starts_with("  "));
    if (!result.empty()) result += !is_item ? ". " : follows_item ? ", " : " ";
    result += is_item ? each.substr(2) : each;
  }
  return result;
}

std::string text_of(const EngineState& engine, bool verbose) {
  if (engine.why_not.empty())
    return fmt::format("{:<8}{}: {}", engine.name, engine.version, engine.path);
  const std::string why = verbose ? indented(engine.why_not, 8) : on_one_line(engine.why_not);
  return fmt::format("{:<8}not here: {}", engine.name, why);
}

std::string limit_text(const std::optional<std::uint64_t>& limit, bool bytes) {
  if (!limit) return "unlimited";
  return bytes ? size_text(*limit) : std::to_string(*limit);
}

std::string limits_text(const Host& host) {
  return fmt::format(
      "{} open files, up to {}; {} of locked memory", limit_text(host.open_files.soft, false),
      limit_text(host.open_files.hard, false), limit_text(host.locked_memory.soft, true));
}

std::string text_of(const NetworkInterface& interface, const Network& network) {
  const bool chosen = network.chosen && network.chosen->name == interface.name &&
                      network.chosen->address == interface.address;
  return fmt::format("{:<8}{}{}{}{}", interface.name, interface.address,
                     interface.is_loopback ? ", loopback" : "", interface.is_up ? "" : ", down",
                     chosen ? ", chosen" : "");
}

std::string text_of(const Launcher& launcher) {
  if (!launcher.error.empty()) return launcher.error;
  if (launcher.name.empty()) return "none";
  return fmt::format("{}: rank {} of {}, {} on this host", launcher.name, launcher.rank,
                     launcher.world_size, launcher.local_world_size);
}

std::string text_of(const Token& token) {
  const char* trusted = token.network_is_trusted ? "; LOCKSTEP_TRUST_NETWORK=1" : "";
  if (!token.error.empty()) return token.error;
  if (token.source.empty()) return fmt::format("none{}", trusted);
  return fmt::format("from {}{}", token.source, trusted);
}

std::string findings_text(const char* kind, const std::vector<Finding>& findings) {
  std::string text;
  for (const Finding& each : findings)
    text += fmt::format("{}: {}\n  {}\n", kind, indented(shown(each.what), 2), shown(each.cure));
  return text;
}

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
          {"cores", std::move(cores)},
          {"bf16", processors.formats.bf16.found},
          {"fp16", processors.formats.fp16.found}};
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
  return {{"built_for", torch.built_for},     {"version", text_or_null(torch.version)},
          {"path", text_or_null(torch.path)}, {"error", text_or_null(torch.error)},
          {"cuda_build", torch.is_for_cuda},  {"nvidia_driver", torch.has_driver}};
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

std::string to_text(const Host& host, const Job& job, const Diagnosis& diagnosis, bool verbose) {
  std::string text =
      line("host", fmt::format("{}, {}, Lockstep {}", host.name, host.kernel, host.lockstep));
  text += line("cores", text_of(host.processors));
  text += line("numbers", text_of(host.processors.formats));
  text += line("memory", text_of(host.memory));
  text += line("sharing", text_of(host.shared_memory));
  text += line("LibTorch", text_of(host.torch));
  const char* label = "engines";
  for (const EngineState& each : host.engines) {
    text += line(label, text_of(each, verbose));
    label = "";
  }
  text += line("limits", limits_text(host));
  label = "network";
  for (const NetworkInterface& each : host.network.interfaces) {
    text += line(label, text_of(each, host.network));
    label = "";
  }
  text += line("launcher", text_of(host.launcher));
  text += line("token", text_of(host.token));
  text += '\n';
  text += findings_text("problem", diagnosis.problems);
  text += findings_text("note", diagnosis.notes);
  const std::string where =
      job.hosts == 1 ? "on this host" : fmt::format("on each of {} hosts", job.hosts);
  const std::string ranks = plural(static_cast<std::uint64_t>(job.ranks), "rank");
  return text + (diagnosis.problems.empty()
                     ? fmt::format("{} can run {}\n", ranks, where)
                     : fmt::format("{} cannot run {}: {}\n", ranks, where,
                                   plural(diagnosis.problems.size(), "problem")));
}

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

// SPDX-License-Identifier: Apache-2.0
#include "tools/doctor/host.h"

#include <fmt/format.h>
#include <sys/resource.h>
#include <sys/statvfs.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <string_view>

#include "lockstep/base/error.h"
#include "lockstep/base/memory.h"
#include "lockstep/base/processes.h"
#include "lockstep/base/text.h"
#include "lockstep/base/variables.h"
#include "lockstep/job/environment.h"
#include "lockstep/job/launchers.h"
#include "lockstep/job/store/tcp_store.h"
#include "lockstep/launch/binding.h"

namespace lockstep::doctor {
namespace {

std::string kernel_text() {
  utsname name{};
  if (::uname(&name) != 0) throw_errno("uname");
  return fmt::format("{} {} {}", name.sysname, name.release, name.machine);
}

Processors processors() {
  const std::vector<int> mask = affinity_mask();
  return {.topology = read_topology(mask),
          .cpus = as_ranges(mask),
          .quota = cpu_quota(),
          .usable_cores = usable_cores(),
          .formats = number_formats()};
}

Memory memory() {
  const auto pages = static_cast<std::uint64_t>(::sysconf(_SC_PHYS_PAGES));
  return {.total = pages * page_size(),
          .available = available_memory(),
          .cgroup_limit = memory_limit()};
}

SharedMemory shared_memory() {
  SharedMemory found;
  try {
    SharedMapping::create("doctor", 1);
  } catch (const Error& error) {
    found.error = error.what();
  }
  struct statvfs dev_shm {};
  if (::statvfs("/dev/shm", &dev_shm) == 0) {
    found.dev_shm_bytes = dev_shm.f_blocks * dev_shm.f_frsize;
    found.dev_shm_free = dev_shm.f_bavail * dev_shm.f_frsize;
  }
  return found;
}

Limit limit_of(__rlimit_resource resource) {
  rlimit limit{};
  if (::getrlimit(resource, &limit) != 0) throw_errno("getrlimit");
  const auto known = [](rlim_t value) {
    return value == RLIM_INFINITY ? std::nullopt : std::optional<std::uint64_t>(value);
  };
  return {.soft = known(limit.rlim_cur), .hard = known(limit.rlim_max)};
}

std::vector<std::string> rdma_devices() {
  std::vector<std::string> names = names_in("/sys/class/infiniband");
  std::sort(names.begin(), names.end());
  return names;
}

Network network(const std::string& wanted, const std::string& master) {
  Network found{.interfaces = network_interfaces(), .rdma_devices = rdma_devices()};
  try {
    found.chosen = choose_interface(wanted, master);
  } catch (const Error& error) {
    found.error = error.what();
  }
  return found;
}

std::string variable(const char* name) {
  const char* value = read_variable(name);
  return value == nullptr ? "" : value;
}

Launcher launcher(std::string& master) {
  if (variable("RANK").empty() && !is_launched()) return {};
  try {
    const LaunchEnvironment who = read_environment();
    master = who.master;
    return {.name = who.launcher,
            .rank = who.rank,
            .world_size = who.world_size,
            .local_world_size = who.local_world_size};
  } catch (const Error& error) {
    return {.error = error.what()};
  }
}

Token token(const Launcher& launcher) {
  Token found{.network_is_trusted = variable("LOCKSTEP_TRUST_NETWORK") == "1"};
  const bool in_file = !variable("LOCKSTEP_JOB_TOKEN_FILE").empty();
  try {
    if (read_job_token()) found.source = in_file ? "LOCKSTEP_JOB_TOKEN_FILE" : "LOCKSTEP_JOB_TOKEN";
  } catch (const Error& error) {
    found.error = error.what();
  }
  // Its ranks receive the token from their agent, if any.
  if (found.source.empty() && launcher.name == "lockstep run") found.source = "lockstep run";
  return found;
}

}  // namespace

Host examine(const std::string& interface) {
  std::string master;
  Host host{.name = host_name(), .kernel = kernel_text()};
  host.processors = processors();
  host.memory = memory();
  host.shared_memory = shared_memory();
  host.open_files = limit_of(RLIMIT_NOFILE);
  host.locked_memory = limit_of(RLIMIT_MEMLOCK);
  host.launcher = launcher(master);
  host.network = network(interface.empty() ? variable("LOCKSTEP_INTERFACE") : interface, master);
  host.token = token(host.launcher);
  return host;
}

}  // namespace lockstep::doctor

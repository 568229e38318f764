// What `lockstep doctor` has found on this host, and what it was asked. Plain data: examine.h fills
// it, diagnosis.h judges it, report.h shows it.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/job/network.h"
#include "lockstep/launch/topology.h"

namespace lockstep::doctor {

// The job that the host is judged for.
struct Job {
  int ranks = 1;  // On this host.
  int hosts = 1;  // That are each like this one.
};

struct Processors {
  Topology topology = {};
  std::string cpus = {};             // This process's affinity mask, such as "0-3,8".
  std::optional<double> quota = {};  // Of its cgroups, in CPUs.
  int usable_cores = 1;              // By both.
};

// In bytes.
struct Memory {
  std::uint64_t total = 0;
  std::uint64_t available = 0;  // To this process: by the kernel and by its cgroups.
  std::optional<std::uint64_t> cgroup_limit = {};
};

struct SharedMemory {
  std::string error = {};  // Why memory cannot be shared between ranks; empty when it can.
  std::optional<std::uint64_t> dev_shm_bytes = {};  // Of /dev/shm, where there is one.
  std::uint64_t dev_shm_free = 0;
};

// The LibTorch that this copy of Lockstep would load. All is empty in one that was built without.
struct LibTorch {
  std::string built_for = {};  // Such as "2.13".
  std::string path = {};       // Of libtorch_cpu.so, as the loader resolves it.
  std::string version = {};    // As that copy says; empty when it does not.
  std::string error = {};      // What the loader does not find.
};

struct EngineState {
  std::string name = {};
  std::string path = {};
  std::string version = {};
  std::string why_not = {};  // Empty when it can be used.
};

// Empty where there is none.
struct Limit {
  std::optional<std::uint64_t> soft = {};
  std::optional<std::uint64_t> hard = {};
};

struct Network {
  std::vector<NetworkInterface> interfaces = {};
  std::optional<NetworkInterface> chosen = {};
  std::string error = {};                      // Why none could be chosen.
  std::vector<std::string> rdma_devices = {};  // Such as "mlx5_0".
};

// Whose variables are in the environment.
struct Launcher {
  std::string name = {};  // Empty for none.
  int rank = 0;
  int world_size = 1;
  int local_world_size = 1;
  std::string error = {};  // When they contradict each other.
};

struct Token {
  std::string source = {};  // The variable that leads to it, or "lockstep run"; empty for none.
  std::string error = {};
  bool network_is_trusted = false;  // LOCKSTEP_TRUST_NETWORK=1.
};

struct Host {
  std::string name = {};
  std::string kernel = {};  // "Linux 6.1.0 x86_64".
  std::string lockstep = {};
  Processors processors = {};
  Memory memory = {};
  SharedMemory shared_memory = {};
  LibTorch torch = {};
  std::vector<EngineState> engines = {};
  Limit open_files = {};
  Limit locked_memory = {};  // In bytes.
  Network network = {};
  Launcher launcher = {};
  Token token = {};
};

}  // namespace lockstep::doctor

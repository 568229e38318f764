// This host as `lockstep doctor` finds it, within its container, cgroup and launcher.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/base/number_formats.h"
#include "lockstep/job/network.h"
#include "lockstep/launch/binding.h"

namespace lockstep::doctor {

struct Job {
  int ranks = 1;  // On this host.
  int hosts = 1;  // Each like this one.
};

struct Processors {
  Topology topology = {};
  std::string cpus = {};  // The affinity mask, such as "0-3,8".
  std::optional<double> quota = {};
  int usable_cores = 1;  // By mask and quota.
  NumberFormats formats = {};
};

// Sizes in bytes.
struct Memory {
  std::uint64_t total = 0;
  std::uint64_t available = 0;  // To this process, by kernel and cgroup limits.
  std::optional<std::uint64_t> cgroup_limit = {};
};

struct SharedMemory {
  std::string error = {};  // Why ranks cannot share memory; empty if they can.
  std::optional<std::uint64_t> dev_shm_bytes = {};  // Size of /dev/shm, if it exists.
  std::uint64_t dev_shm_free = 0;
};

// Empty if this copy of Lockstep needs no LibTorch.
struct LibTorch {
  std::string built_for = {};  // "2.13".
  std::string path = {};       // Path of libtorch_cpu.so, as the loader resolves it.
  std::string version = {};    // Empty if unknown.
  std::string error = {};      // Missing libraries.
  std::string place = {};      // Folder where a package looks for it; empty in other copies.
  bool is_for_cuda = false;    // A CUDA build, which runs on CPUs without the driver.
  bool has_driver = false;
};

struct EngineState {
  std::string name = {};
  std::string path = {};
  std::string version = {};
  std::string why_not = {};  // Empty if usable.
};

// Empty without a limit.
struct Limit {
  std::optional<std::uint64_t> soft = {};
  std::optional<std::uint64_t> hard = {};
};

struct Network {
  std::vector<NetworkInterface> interfaces = {};
  std::optional<NetworkInterface> chosen = {};
  std::string error = {};                      // Why no interface could be selected.
  std::vector<std::string> rdma_devices = {};  // "mlx5_0".
};

struct Launcher {
  std::string name = {};  // Empty without a launcher.
  int rank = 0;
  int world_size = 1;
  int local_world_size = 1;
  std::string error = {};  // Set if its variables contradict each other.
};

struct Token {
  std::string source = {};  // Variable with the token or its file, or "lockstep run"; empty without
                            // a token.
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

// All but LibTorch and engines. Wipes LOCKSTEP_JOB_TOKEN. `interface` is as InitOptions::interface.
// Errors: system, if data that every Linux provides is unreadable.
Host examine(const std::string& interface);

}  // namespace lockstep::doctor

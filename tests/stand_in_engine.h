// Simulated CUDA devices: an engine whose communicators copy and add in host memory, and groups of
// threads that use it beside the CPU's backend.
//
// For programs that contain the objects of lockstep_comm, because it uses hidden code.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "lockstep/comm/engine/device_communicator.h"
#include "lockstep/comm/process_group.h"
#include "lockstep/job/detail/operation.h"

namespace lockstep::test {

struct Wire;

// A test's view of all devices, and its control over their failures.
struct StandInDevices {
  std::mutex mutex;
  std::map<std::string, std::shared_ptr<Wire>> wires;  // Key: group.
  std::vector<std::string> calls;                      // Calls of rank 0.
  std::set<int> indices;
  std::atomic<int> cancelled{0};
  std::array<std::atomic<bool>, 8> is_cancelled{};  // Index: rank.
  std::atomic<int> made{0};
  std::string why_not = {};
  std::set<Operation> lacks = {Operation::gather, Operation::scatter};  // As NCCL.
  std::atomic<bool> fails{false};
  std::chrono::milliseconds patience = std::chrono::seconds(10);  // Longest wait for a rank.

  // Called for each collective, on the calling rank's thread.
  std::function<void(int rank, const Buffer& data)> on_call = {};
};

std::shared_ptr<const comm::DeviceEngine> engine_of(StandInDevices& devices);

// Calls `body` on each of `size` threads. `body` must not throw an Error.
void run_on(int size, StandInDevices& devices, const std::function<void(ProcessGroup&)>& body);

}  // namespace lockstep::test

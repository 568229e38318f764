// Makes an engine's communicator for some ranks of a job. They exchange their addresses through the
// job's store.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "lockstep/base/time.h"
#include "lockstep/comm/core/backend.h"
#include "lockstep/comm/engine/engine.h"
#include "lockstep/comm/engine/plugin_communicator.h"
#include "lockstep/job/network.h"
#include "lockstep/job/store/store.h"

namespace lockstep {

struct CommunicatorOptions {
  const Engine* engine = nullptr;
  int rank = 0;                       // Rank in the communicator.
  std::vector<int> world_ranks = {};  // Rank in the job of each member.
  int world_size = 1;
  std::string name = {};      // Unique among the job's communicators.
  Backend::Place local = {};  // Rank and size among the members on this host.
  NetworkInterface interface = {};
  int device_index = -1;  // CUDA device; -1 without CUDA buffers.
  std::shared_ptr<Store> store = {};
  const void* world = nullptr;  // lockstep_engine_config::world.
  std::string keys = {};        // Prefix of its keys in the store, unique to this start of the job.
  std::chrono::milliseconds timeout = default_timeout;
  std::chrono::milliseconds call_timeout = default_timeout;  // Timeout of each later call.
};

// Collective over the members. Blocking: until the engine has made it. Errors: the engine's.
std::unique_ptr<PluginCommunicator> make_communicator(const CommunicatorOptions& options);

}  // namespace lockstep

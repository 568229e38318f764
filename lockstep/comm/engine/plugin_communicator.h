// An engine plugin's communicator as a DeviceCommunicator.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "lockstep/base/time.h"
#include "lockstep/comm/core/backend.h"
#include "lockstep/comm/engine/device_communicator.h"
#include "lockstep/comm/engine/engine.h"
#include "lockstep/comm/engine/engine_abi.h"
#include "lockstep/job/detail/operation.h"
#include "lockstep/job/network.h"
#include "lockstep/job/store/store.h"

namespace lockstep {

class PluginCommunicator final : public comm::DeviceCommunicator {
 public:
  // Collective over the members of `config`, which is unused afterwards. Errors: the plugin's.
  PluginCommunicator(const lockstep_engine& engine, const lockstep_engine_config& config);
  ~PluginCommunicator() override;
  PluginCommunicator(const PluginCommunicator&) = delete;
  PluginCommunicator& operator=(const PluginCommunicator&) = delete;

  // Only for engines with a cancel().
  void cancel() override;

  bool supports(Operation operation, DType dtype, ReduceOp op) const override;

  void run(const comm::Collective& collective) override;

 private:
  template <class Call>
  void call(Call call) const;

  const lockstep_engine& engine_;
  const int rank_;
  const int size_;
  void* communicator_ = nullptr;
};

struct CommunicatorOptions {
  const Engine* engine = nullptr;
  int rank = 0;
  std::vector<int> world_ranks = {};  // Ranks in the job.
  int world_size = 1;
  std::string name = {};            // Unique among the job's communicators.
  comm::Backend::Place local = {};  // Among the members on this host.
  NetworkInterface interface = {};
  int device_index = -1;  // CUDA device; -1 without CUDA buffers.
  std::shared_ptr<Store> store = {};
  const void* world = nullptr;
  std::string keys = {};  // Prefix in the store, unique to this start of the job.
  std::chrono::milliseconds timeout = default_timeout;
  std::chrono::milliseconds call_timeout = default_timeout;  // For each later call.
};

// Collective over the members. Blocking: until the engine has made it. Errors: the engine's.
std::unique_ptr<PluginCommunicator> make_communicator(const CommunicatorOptions& options);

}  // namespace lockstep

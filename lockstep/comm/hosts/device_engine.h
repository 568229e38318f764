// How the groups of a job come to NCCL, where ranks have CUDA buffers.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include "lockstep/comm/engine/device_communicator.h"
#include "lockstep/job/host_session.h"
#include "lockstep/job/network.h"
#include "lockstep/job/store/store.h"

namespace lockstep {

struct DeviceEngineOptions {
  std::shared_ptr<HostSession> session;
  std::shared_ptr<Store> store = {};  // The job's; null where one host's ranks need none.
  std::string keys = {};              // What keys in it begin with: CommunicatorOptions.
  NetworkInterface interface = {};    // Through which ranks of other hosts are reached.
  int world_size = 1;
};

std::shared_ptr<const DeviceEngine> make_device_engine(const DeviceEngineOptions& options);

}  // namespace lockstep

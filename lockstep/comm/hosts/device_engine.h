// Connects the groups of a job to NCCL, for CUDA buffers.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>

#include "lockstep/base/time.h"
#include "lockstep/comm/engine/device_communicator.h"
#include "lockstep/job/host_session.h"
#include "lockstep/job/network.h"
#include "lockstep/job/store/store.h"

namespace lockstep::comm {

struct DeviceEngineOptions {
  std::shared_ptr<HostSession> session;
  std::shared_ptr<Store> store = {};  // Null if all ranks are on one host.
  std::string keys = {};              // Prefix in the store.
  NetworkInterface interface = {};
  int world_size = 1;
};

// The key of the port and token of the members' store.
std::string store_key(const DeviceMembers& members);

// Opens a store for ranks of one host, on loopback. The first rank passes port and token in shared
// memory that only the others can reach. Errors: timeout; peer_lost; corrupt.
std::shared_ptr<Store> open_device_store(HostSession& session, const DeviceMembers& members,
                                         Deadline deadline);

std::shared_ptr<const DeviceEngine> make_device_engine(const DeviceEngineOptions& options);

}  // namespace lockstep::comm

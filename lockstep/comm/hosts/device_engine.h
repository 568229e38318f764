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
  std::shared_ptr<Store> store = {};  // The job's store; null if all ranks are on one host.
  std::string keys = {};              // Prefix of its keys: CommunicatorOptions.
  NetworkInterface interface = {};    // Interface to ranks on other hosts.
  int world_size = 1;
};

// The key under which the first rank publishes the port and token of the members' store.
std::string store_key(const DeviceMembers& members);

// Opens a store for ranks of one host. The first rank opens it on loopback, and passes its port and
// token to the others in shared memory, which only they can reach. Errors: timeout; peer_lost;
// corrupt.
std::shared_ptr<Store> open_device_store(HostSession& session, const DeviceMembers& members,
                                         Deadline deadline);

std::shared_ptr<const DeviceEngine> make_device_engine(const DeviceEngineOptions& options);

}  // namespace lockstep::comm

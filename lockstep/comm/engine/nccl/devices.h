// CUDA devices, and the rendezvous of a communicator's members.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime_api.h>
#include <nccl.h>

#include <string>

#include "lockstep/comm/engine/engine_abi.h"
#include "lockstep/comm/engine/plugin.h"

namespace lockstep::comm::engines {

// Throws Failed(system) with `what` unless `status` is success.
void check_cuda(cudaError_t status, const char* what);

// Throws Failed(unsupported), with what is missing: a driver, a newer driver, or a device. NCCL
// itself detects that only when it communicates.
void require_device();

// Such as "0000:1b:00.0".
std::string pci_bus_id(int device);

class DeviceGuard {
 public:
  explicit DeviceGuard(int device);
  ~DeviceGuard();
  DeviceGuard(const DeviceGuard&) = delete;
  DeviceGuard& operator=(const DeviceGuard&) = delete;

 private:
  int before_ = -1;  // -1 when nothing must be restored.
};

// Rank 0 makes NCCL's id, and all read it from the job's store. Blocking: until all members have
// called. Errors: the store's; misuse, on all ranks, when two of them use one device, where NCCL
// would hang.
ncclUniqueId meet(const lockstep_engine_config& config);

}  // namespace lockstep::comm::engines

// The CUDA runtime, as far as the engine needs it.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime_api.h>

#include <string>

#include "lockstep/comm/engine/plugin.h"

namespace lockstep::plugin {

// Throws Failed(system) with `what` for any status but success.
void check_cuda(cudaError_t status, const char* what);

// Throws Failed(unsupported) when there is no device here, and says whether that is for want of a
// driver, of a newer one, or of a device. NCCL itself does not notice before it communicates.
void require_device();

// Of a device here, such as "0000:1b:00.0".
std::string pci_bus_id(int device);

// While it lives `device` is this thread's, then the one before again.
class DeviceGuard {
 public:
  explicit DeviceGuard(int device);
  ~DeviceGuard();
  DeviceGuard(const DeviceGuard&) = delete;
  DeviceGuard& operator=(const DeviceGuard&) = delete;

 private:
  int before_ = -1;  // -1 when there is nothing to restore.
};

}  // namespace lockstep::plugin

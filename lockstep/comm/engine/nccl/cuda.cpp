// SPDX-License-Identifier: Apache-2.0
#include "lockstep/comm/engine/nccl/cuda.h"

namespace lockstep::plugin {
namespace {

std::string version_text(int version) {
  return std::to_string(version / 1000) + '.' + std::to_string(version % 1000 / 10);
}

std::string why_no_device(cudaError_t status) {
  if (status == cudaErrorNoDevice) return "there is no CUDA device here";
  int driver = 0;
  int runtime = 0;
  cudaDriverGetVersion(&driver);  // 0 without a driver.
  cudaRuntimeGetVersion(&runtime);
  if (driver == 0)
    return "there is no NVIDIA driver here, and CUDA " + version_text(runtime) + " needs one";
  if (status == cudaErrorInsufficientDriver)
    return "the NVIDIA driver here serves CUDA " + version_text(driver) +
           " at most, and this is CUDA " + version_text(runtime);
  return std::string("CUDA cannot be used here: ") + cudaGetErrorString(status);
}

}  // namespace

void check_cuda(cudaError_t status, const char* what) {
  if (status == cudaSuccess) return;
  cudaGetLastError();  // Clears the error; otherwise this thread's next CUDA call would report it
                       // too.
  throw Failed{Fault::system, std::string(what) + ": " + cudaGetErrorString(status)};
}

void require_device() {
  int devices = 0;
  const cudaError_t status = cudaGetDeviceCount(&devices);
  if (status == cudaSuccess && devices > 0) return;
  cudaGetLastError();
  throw Failed{Fault::unsupported,
               why_no_device(status == cudaSuccess ? cudaErrorNoDevice : status)};
}

std::string pci_bus_id(int device) {
  char text[32] = {};
  check_cuda(cudaDeviceGetPCIBusId(text, sizeof text, device), "cudaDeviceGetPCIBusId");
  return text;
}

DeviceGuard::DeviceGuard(int device) {
  int current = -1;
  check_cuda(cudaGetDevice(&current), "cudaGetDevice");
  if (current == device) return;
  check_cuda(cudaSetDevice(device), "cudaSetDevice");
  before_ = current;
}

DeviceGuard::~DeviceGuard() {
  if (before_ >= 0) cudaSetDevice(before_);
}

}  // namespace lockstep::plugin

// SPDX-License-Identifier: Apache-2.0
#include "lockstep/comm/engine/nccl/devices.h"

#include <cstdlib>
#include <fstream>
#include <map>
#include <string>
#include <string_view>

namespace lockstep::comm::engines {
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

constexpr const char* verdict_key = "verdict";

// Equal for all processes of one kernel, in containers too.
std::string host_id() {
  std::string id;
  std::getline(std::ifstream("/proc/sys/kernel/random/boot_id"), id);
  return id;
}

std::string device_key(int rank) { return "device/" + std::to_string(rank); }

// NCCL 2.30 supports that; older versions refuse it.
bool may_share_devices() {
  const char* const enabled = std::getenv("NCCL_MULTI_RANK_GPU_ENABLE");
  return enabled != nullptr && std::string_view(enabled) == "1";
}

// Why the members cannot communicate; empty if they can.
std::string complaint(const plugin::Store& store, const lockstep_engine_config& config,
                      const std::string& mine) {
  if (may_share_devices()) return {};
  std::map<std::string, int> user_of = {{mine, 0}};
  for (int rank = 1; rank < config.size; ++rank) {
    const std::string device = store.wait(device_key(rank));
    const auto [other, is_new] = user_of.emplace(device, rank);
    if (is_new) continue;
    return "ranks " + std::to_string(other->second) + " and " + std::to_string(rank) +
           " of group " + config.name + " are both on the CUDA device " +
           device.substr(device.find(' ') + 1) +
           " of one host: NCCL needs a device for each rank, such as number local_rank(), "
           "unless NCCL_MULTI_RANK_GPU_ENABLE=1 lets ranks share one (NCCL 2.30)";
  }
  return {};
}

}  // namespace

void check_cuda(cudaError_t status, const char* what) {
  if (status == cudaSuccess) return;
  cudaGetLastError();  // Clears the error, which this thread's next CUDA call would report too.
  throw plugin::Failed{Fault::system, std::string(what) + ": " + cudaGetErrorString(status)};
}

void require_device() {
  int devices = 0;
  const cudaError_t status = cudaGetDeviceCount(&devices);
  if (status == cudaSuccess && devices > 0) return;
  cudaGetLastError();
  throw plugin::Failed{Fault::unsupported,
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

ncclUniqueId meet(const lockstep_engine_config& config) {
  ncclUniqueId id{};
  const auto make_id = [&id] {
    if (const ncclResult_t made = ncclGetUniqueId(&id); made != ncclSuccess)
      throw plugin::Failed{Fault::system, std::string("ncclGetUniqueId: ") +
                                              ncclGetErrorString(made) + ": " +
                                              ncclGetLastError(nullptr)};
  };
  if (config.size == 1) {
    make_id();
    return id;
  }
  const plugin::Store store(config.store);
  const std::string mine = host_id() + ' ' + pci_bus_id(config.device_index);
  if (config.rank != 0) store.set(device_key(config.rank), mine);
  std::string verdict;  // '+' and the id, or '-' and a complaint.
  if (config.rank == 0) {
    const std::string wrong = complaint(store, config, mine);
    if (wrong.empty()) make_id();
    verdict = wrong.empty() ? '+' + std::string(id.internal, sizeof id.internal) : '-' + wrong;
    store.set(verdict_key, verdict);
  } else {
    verdict = store.wait(verdict_key);
  }
  if (!verdict.starts_with('+')) throw plugin::Failed{Fault::misuse, verdict.substr(1)};
  if (verdict.size() != 1 + sizeof id.internal)
    throw plugin::Failed{Fault::system, "rank 0 uses another version of NCCL"};
  verdict.copy(id.internal, sizeof id.internal, 1);
  return id;
}

}  // namespace lockstep::comm::engines

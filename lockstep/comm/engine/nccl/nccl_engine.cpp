// SPDX-License-Identifier: Apache-2.0
#include <nccl.h>

#include <string>

#include "lockstep/comm/engine/nccl/communicator.h"
#include "lockstep/comm/engine/nccl/devices.h"

namespace lockstep::comm::engines {
namespace {

int probe(char* text, std::size_t capacity, lockstep_engine_error* error) {
  return plugin::guarded(error, [&] {
    require_device();
    int version = 0;
    if (const ncclResult_t told = ncclGetVersion(&version); told != ncclSuccess)
      throw plugin::Failed{Fault::unsupported,
                           std::string("ncclGetVersion: ") + ncclGetErrorString(told)};
    plugin::copy_text(text, capacity,
                      "NCCL " + std::to_string(version / 10000) + '.' +
                          std::to_string(version % 10000 / 100) + '.' +
                          std::to_string(version % 100));
  });
}

constexpr lockstep_engine engine = plugin::engine_of<Communicator>({
    .name = "nccl",
    .device = DeviceKind::cuda,
    .probe = probe,
});

}  // namespace
}  // namespace lockstep::comm::engines

const lockstep_engine* lockstep_engine_v1(void) { return &lockstep::comm::engines::engine; }

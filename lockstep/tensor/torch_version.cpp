// SPDX-License-Identifier: Apache-2.0
// Ends a program that loads another minor version of LibTorch than Lockstep was built for. Classes
// differ, and the program would get SIGSEGV without a message.
#include "lockstep/tensor/torch_version.h"

#include <torch/csrc/inductor/aoti_torch/c/shim.h>
#include <torch/headeronly/version.h>

#include <cstdint>
#include <cstdlib>
#include <string>

#include "lockstep/base/error.h"
#include "lockstep/job/record.h"

namespace lockstep {
namespace {

struct TorchVersion {
  int major;
  int minor;
};

TorchVersion decode(std::uint64_t version) {
  return {static_cast<int>(version >> 56), static_cast<int>(version >> 48 & 0xff)};
}

std::string text(TorchVersion version) {
  return std::to_string(version.major) + '.' + std::to_string(version.minor);
}

// Runs before the library's other initialisers, which call LibTorch.
[[gnu::constructor(101)]] void require_built_version() {
  const TorchVersion built = decode(TORCH_ABI_VERSION);
  const TorchVersion loaded = decode(aoti_torch_abi_version());
  if (built.major == loaded.major && built.minor == loaded.minor) return;
  const std::string right = text(built);
  const std::string found = text(loaded);
  const Error error(Fault::unsupported,
                    "this program was built for LibTorch " + right + " but loads LibTorch " +
                        found + "; to do: name the folder of LibTorch " + right +
                        "'s libraries in LD_LIBRARY_PATH, or build the program and Lockstep with "
                        "LibTorch " +
                        found);
  std::_Exit(record_main([&]() -> int { throw error; }));
}

}  // namespace
}  // namespace lockstep

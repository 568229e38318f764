// Makes a program see another version of LibTorch: a shared library for LD_PRELOAD.

// SPDX-License-Identifier: Apache-2.0
#include <cstdint>

extern "C" [[gnu::visibility("default")]] std::uint64_t aoti_torch_abi_version();
extern "C" std::uint64_t aoti_torch_abi_version() {
  return std::uint64_t{2} << 56 | std::uint64_t{99} << 48;
}

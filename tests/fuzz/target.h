// A fuzz target: libFuzzer's entry point, and the inputs with which driver.cpp starts.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

// Returns 0; any other outcome is a finding.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

namespace lockstep::fuzz {

// Returns valid inputs for mutations.
std::vector<std::string> seeds();

// Aborts the program if false, so that the fuzzer keeps the input.
inline void expect(bool holds) {
  if (!holds) __builtin_trap();
}

}  // namespace lockstep::fuzz

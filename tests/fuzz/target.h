// A fuzz target: libFuzzer's entry point, and the inputs from which driver.cpp starts.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

// Returns 0; any other end is a finding.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

namespace lockstep::fuzz {

// Returns valid inputs, which mutations then break.
std::vector<std::string> seeds();

// Ends the program, so that the fuzzer keeps the input.
inline void expect(bool holds) {
  if (!holds) __builtin_trap();
}

}  // namespace lockstep::fuzz

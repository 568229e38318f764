// Waits for other threads and processes.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <filesystem>
#include <functional>
#include <thread>

#include "lockstep/base/time.h"

namespace lockstep::test {

// Polls `holds` until it returns true or the limit passes, and returns its last result.
inline bool soon(const std::function<bool()>& holds,
                 std::chrono::milliseconds limit = std::chrono::seconds(20)) {
  const Deadline deadline = in(limit);
  while (!holds()) {
    if (Clock::now() >= deadline) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  return true;
}

// Fails the current test after a minute.
inline void await_file(const std::filesystem::path& file) {
  EXPECT_TRUE(soon([&] { return std::filesystem::exists(file); }, std::chrono::minutes(1)))
      << file << " is missing";
}

}  // namespace lockstep::test

// The failure record of a survivor that waits for no rank.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>
#include <signal.h>

#include <atomic>
#include <chrono>
#include <string>
#include <string_view>
#include <thread>

#include "lockstep/base/error.h"
#include "lockstep/base/log.h"
#include "lockstep/comm/process_group.h"
#include "tests/fault_of.h"
#include "tests/soon.h"

namespace lockstep::test {

// Kills rank `dead`. Every other rank must write one lockstep-fail line about it although no call
// waits, and no further line when a call throws.
inline void expect_one_record(ProcessGroup& group, int dead) {
  using namespace std::chrono_literals;
  std::atomic<int> records{0};
  std::atomic<int> of_dead{0};
  set_log_sink([&](LogLevel, std::string_view text) {
    if (text.find("lockstep-fail job=") == text.npos) return;
    if (text.find(" rank=" + std::to_string(dead) + " ") != text.npos) ++of_dead;
    ++records;
  });
  group.barrier();
  if (group.rank() == dead) ::raise(SIGKILL);
  soon([&] { return records > 0; });
  EXPECT_EQ(records, 1) << "while no call waits";
  EXPECT_EQ(fault_of([&] { group.barrier(); }), Fault::peer_lost);
  std::this_thread::sleep_for(300ms);
  EXPECT_EQ(records, 1) << "after a call that threw";
  EXPECT_EQ(of_dead, 1);
  set_log_sink({});
}

}  // namespace lockstep::test

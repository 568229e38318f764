// Test rig: rank 0 of three sends messages, leaves its group and exits. The others receive the
// messages after its process has exited, and continue without it.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <functional>
#include <string>
#include <vector>

#include "lockstep/base/processes.h"
#include "lockstep/comm/process_group.h"
#include "tests/fault_of.h"
#include "tests/soon.h"

namespace lockstep::test {

// Writes the id of this process into `folder`, which its ranks share.
inline void write_pid(const std::filesystem::path& folder) {
  std::ofstream(folder / "writing") << ::getpid();
  std::filesystem::rename(folder / "writing", folder / "pid");
}

// Waits for another process to write its id, and returns it.
inline pid_t read_pid(const std::filesystem::path& folder) {
  await_file(folder / "pid");
  pid_t pid = 0;
  std::ifstream(folder / "pid") >> pid;
  if (pid <= 0) throw std::runtime_error("no process id in " + folder.string());
  return pid;
}

// Waits until the process has exited. Its parent need not have reaped it.
inline void await_end(pid_t pid) {
  const auto has_ended = [&] {
    const auto process = process_stat(pid);
    return !process || process->state == 'Z' || process->state == 'X';
  };
  EXPECT_TRUE(soon(has_ended, std::chrono::seconds(30))) << "process " << pid;
}

inline void expect_received(const ProcessGroup& group, int from, std::int64_t tag,
                            const std::vector<float>& sent) {
  std::vector<float> received(sent.size());
  group.recv(buffer_of(received), from, tag);
  EXPECT_EQ(received, sent) << "tag " << tag << " from rank " << from;
}

inline void expect_left(const std::function<void()>& act, const std::string& more) {
  std::string text;
  EXPECT_EQ(fault_of(act, &text), Fault::peer_lost) << text;
  EXPECT_NE(text.find("rank 0 has left group"), text.npos) << text;
  EXPECT_NE(text.find("in order"), text.npos) << text;
  EXPECT_NE(text.find(more), text.npos) << "'" << more << "' is not in: " << text;
}

// Checks the groups, memory and first messages of ranks 1 and 2 of `world`, and of `others`, which
// these two created before rank 0 exited.
inline void expect_no_need_of_rank_zero(const ProcessGroup& world, const ProcessGroup& others) {
  const int peer = 3 - world.rank();
  const std::vector<float> word{static_cast<float>(world.rank())};
  const Work sends = world.send_async({.data = const_cast<float*>(word.data()), .count = 1}, peer);
  expect_received(world, peer, 0, {static_cast<float>(peer)});
  sends.wait();
  for (const ProcessGroup& group : {others, others.split(0), world.group_of({2, 1}, "pair")}) {
    float sum = 1;
    group.all_reduce({.data = &sum, .count = 1});
    EXPECT_EQ(sum, 2) << group.name();
    EXPECT_EQ(group.allocate(4096).bytes(), 4096U);
    EXPECT_EQ(group.allocate_local(4096).bytes(), 4096U);
  }
}

// All three ranks of `world`, whose processes share `folder`, must call it. Rank 0 must exit with
// code 0 afterwards.
inline void expect_messages_outlive_rank_zero(ProcessGroup& world,
                                              const std::filesystem::path& folder) {
  const ProcessGroup part = world.split(0);
  const ProcessGroup others = world.split(world.rank() == 0 ? 0 : 1);
  const std::vector<float> small{1, 2, 3}, medium(10'000, 4);
  std::vector<float> huge(8'000'000, 5);  // More than fits into a pipe or a connection.
  const auto buffer = [](const std::vector<float>& values) {
    return Buffer{.data = const_cast<float*>(values.data()), .count = values.size()};
  };
  if (world.rank() == 0) {
    write_pid(folder);
    part.send(buffer(small), 1, 1);
    part.send(buffer(medium), 1, 1);
    world.send(buffer(small), 2, 7);
    const Work never = part.send_async(buffer_of(huge), 1, 2);
    leave_process_group(world);
    EXPECT_EQ(fault_of([&] { never.wait(); }), Fault::misuse);
    return;
  }
  await_end(read_pid(folder));
  if (world.rank() == 1) {
    expect_received(part, 0, 1, small);
    expect_received(part, 0, 1, medium);
    expect_left([&] { part.recv(buffer_of(huge), 0, 2); }, "bytes have come");
    expect_left([&] { part.recv(buffer_of(huge), 0, 1); }, "");
  } else {
    expect_received(world, 0, 7, small);
    expect_left([&] { world.send(buffer_of(huge), 0); }, "");
  }
  expect_no_need_of_rank_zero(world, others);
  leave_process_group(world);
}

}  // namespace lockstep::test

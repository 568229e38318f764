// A message from one rank of a group to another.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>
#include <exception>

#include "lockstep/comm/core/buffer.h"
#include "lockstep/job/operation.h"

namespace lockstep {

constexpr int any_source = -1;
constexpr std::int64_t any_tag = -1;

// Where a received message came from.
struct Source {
  int rank = any_source;
  std::int64_t tag = any_tag;
};

// One end of it, as a rank posted it. Ends match by rank and tag, in the order in which they were
// posted.
struct Message {
  Operation operation = Operation::send;  // Or recv.
  Buffer buffer = {};
  int peer = 0;          // Where it goes to, or comes from: any_source until it has come.
  std::int64_t tag = 0;  // Not negative; or any_tag, to receive whatever comes.
  std::exception_ptr error = {};
  std::atomic<bool> complete{false};  // Once set, nothing else changes.
};

}  // namespace lockstep

// A message from one rank of a group to another.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>
#include <exception>

#include "lockstep/comm/core/buffer.h"
#include "lockstep/job/detail/operation.h"

namespace lockstep {

constexpr int any_source = -1;
constexpr std::int64_t any_tag = -1;

// Sender and tag of a received message.
struct Source {
  int rank = any_source;
  std::int64_t tag = any_tag;
};

// One end of a message, as a rank posted it. Ends match by rank and tag, in the order of posting.
struct Message {
  Operation operation = Operation::send;  // Or recv.
  Buffer buffer = {};
  int peer = 0;          // Receiver, or sender. A receive may have any_source; the match replaces
                         // it.
  std::int64_t tag = 0;  // Not negative. A receive may have any_tag.
  std::exception_ptr error = {};
  std::atomic<bool> complete{false};  // Once set, no member changes any more.
};

}  // namespace lockstep

// What does collectives on CUDA memory: NCCL, or a test's stand-in.
//
// Each call enqueues its collective on the stream of its buffers, which are on one device and have
// one stream. The members are called in the same order on all ranks, with arguments that fit.
//
// Thread safety: cancel() may be called from any thread at any time, the others one at a time.
// Blocking: until it is enqueued. What was enqueued may still be under way on the device.
// Errors: as Backend::run()'s; the communicator is of no use after any of them.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "lockstep/base/time.h"
#include "lockstep/comm/core/buffer.h"
#include "lockstep/comm/core/reduce_op.h"

namespace lockstep {

class DeviceCommunicator {
 public:
  // Elements by rank.
  using Counts = std::span<const std::size_t>;

  // Waits some seconds for what was enqueued, unless it was cancelled.
  virtual ~DeviceCommunicator() = default;

  // Ends what is under way, on the device too, and all later calls, with aborted.
  virtual void cancel() = 0;

  // In place.
  virtual void all_reduce(const Buffer& data, ReduceOp op) = 0;
  virtual void broadcast(const Buffer& data, int root) = 0;
  virtual void reduce(const Buffer& data, int root, ReduceOp op) = 0;

  // Parts lie one after the other. The smaller buffer may be its own part of the larger one.
  virtual void all_gather(const Buffer& input, const Buffer& output, Counts counts) = 0;
  virtual void reduce_scatter(const Buffer& input, const Buffer& output, Counts counts,
                              ReduceOp op) = 0;

  // This rank's part of `input` may be its part of `output`.
  virtual void all_to_all(const Buffer& input, const Buffer& output, Counts send_counts,
                          Counts receive_counts) = 0;
};

// The group for which one is made, and this rank in it.
struct DeviceMembers {
  std::string name = {};              // No other group of the job has it.
  std::vector<int> world_ranks = {};  // Of each member, by its rank: its rank in the job.
  int rank = 0;
};

// How a group gets one.
struct DeviceEngine {
  // Why there is none on this host; empty when there is. Starts nothing.
  std::function<std::string()> why_not;

  // Collective over the members. Errors: timeout; misuse when two ranks are on one device.
  std::function<std::unique_ptr<DeviceCommunicator>(const DeviceMembers& members, int device_index,
                                                    Deadline deadline)>
      make;
};

}  // namespace lockstep

// Collectives on CUDA memory: NCCL, or a stand-in in tests. All ranks call the members in the same
// order with matching arguments. A call's buffers share one device and one stream.
//
// Thread safety: any thread may call cancel() at any time; one thread at a time for the others.
// Blocking: until the collective is enqueued on the stream.
// Errors: as Backend::run(); the communicator is unusable after any of them.

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

namespace lockstep::comm {

class DeviceCommunicator {
 public:
  // Elements by rank.
  using Counts = std::span<const std::size_t>;

  // Waits a few seconds for enqueued collectives, unless they were cancelled.
  virtual ~DeviceCommunicator() = default;

  // Ends running collectives, on the device too, and all later calls, with aborted.
  virtual void cancel() = 0;

  // In place.
  virtual void all_reduce(const Buffer& data, ReduceOp op) = 0;
  virtual void broadcast(const Buffer& data, int root) = 0;
  virtual void reduce(const Buffer& data, int root, ReduceOp op) = 0;

  // Parts are contiguous. The smaller buffer may be its own part of the larger one.
  virtual void all_gather(const Buffer& input, const Buffer& output, Counts counts) = 0;
  virtual void reduce_scatter(const Buffer& input, const Buffer& output, Counts counts,
                              ReduceOp op) = 0;

  // This rank's part of `input` may be its part of `output`.
  virtual void all_to_all(const Buffer& input, const Buffer& output, Counts send_counts,
                          Counts receive_counts) = 0;
};

struct DeviceMembers {
  std::string name = {};              // Unique among the job's groups.
  std::vector<int> world_ranks = {};  // Ranks in the job, by rank here.
  int rank = 0;
};

struct DeviceEngine {
  // Why there is none on this host; empty when there is one. Starts nothing.
  std::function<std::string()> why_not;

  // Collective over the members. Errors: timeout; misuse when two ranks use one device.
  std::function<std::unique_ptr<DeviceCommunicator>(const DeviceMembers& members, int device_index,
                                                    Deadline deadline)>
      make;
};

}  // namespace lockstep::comm

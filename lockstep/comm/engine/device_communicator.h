// Collectives on CUDA memory: NCCL, or a stand-in in tests. All ranks call run() in the same order
// with matching arguments. A call's buffers share one device and one stream, also where a rank has
// no data.
//
// Thread safety: any thread may call cancel(); one thread at a time for the others.
// Blocking: until the collective is enqueued on the stream.
// Errors: timeout; aborted after cancel(); the engine's. Any of them ends the communicator.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/base/time.h"
#include "lockstep/comm/core/backend.h"
#include "lockstep/comm/core/buffer.h"
#include "lockstep/job/detail/operation.h"

namespace lockstep::comm {

class DeviceCommunicator {
 public:
  // Waits at most a few seconds for enqueued collectives, unless they were cancelled.
  virtual ~DeviceCommunicator() = default;

  // Ends running collectives, on the device too, and all later calls, with aborted.
  virtual void cancel() = 0;

  // Whether run() does this operation; always for all_gather and all_to_all.
  virtual bool supports(Operation operation, DType dtype, ReduceOp op) const = 0;

  virtual void run(const Collective& collective) = 0;
};

struct DeviceMembers {
  std::string name = {};              // Unique among the job's groups.
  std::vector<int> world_ranks = {};  // Ranks in the job, by rank here.
  int rank = 0;
};

struct DeviceEngine {
  // Why this host has no such engine; empty if it has one. Starts nothing.
  std::function<std::string()> why_not;

  // As that of its communicators. Only if why_not() is empty.
  std::function<bool(Operation operation, DType dtype, ReduceOp op)> supports;

  // Collective over the members. Errors: timeout; misuse when two ranks use one device.
  std::function<std::unique_ptr<DeviceCommunicator>(const DeviceMembers& members, int device_index,
                                                    Deadline deadline)>
      make;
};

}  // namespace lockstep::comm

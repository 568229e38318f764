// Simulated CUDA tensors for a LibTorch without CUDA. Their memory is the host's, the CPU's kernels
// compute on them, and enqueued work runs at once. Streams and events are still distinguished:
// waits are recorded, and missing waits are found.
//
// With LOCKSTEP_CUDA_CHAOS in the environment, or while a Chaos exists, each enqueue is delayed by
// a random time. Threads then run in orders that are otherwise rare.
//
// Autograd has a thread for each device, which runs hooks and the end of backward(). Ranks that are
// threads therefore need a device each: local_device().

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <c10/core/Device.h>
#include <c10/core/Stream.h>

#include <cstddef>
#include <span>
#include <string>
#include <vector>

namespace lockstep::test {

constexpr c10::DeviceIndex stand_in_devices = 4;

// Installs the simulation for the rest of the process. Call it before the first backward(). Returns
// false, without an effect, if LibTorch itself has CUDA.
bool stand_in_for_cuda();

// Records that `stream` waited for an event, ran a kernel that wrote to memory, or ran a call that
// a test has recorded.
struct StreamEntry {
  enum class Kind { wait, write, call };

  Kind kind;
  c10::StreamId stream;
  c10::StreamId waits_for = 0;     // The stream that recorded the event, when its device had
  std::size_t recorded_after = 0;  // this many entries.
  std::span<const std::byte> memory = {};  // The memory that was written, or that the call uses.
};

// Returns and clears the entries of a device since the last call, in order.
std::vector<StreamEntry> take_stream_entries(c10::DeviceIndex device);

// Returns how often a thread would have waited for the device since the last call: copies to the
// CPU, item(), and synchronize() of a device, stream or event. Resets the count.
int take_host_waits(c10::DeviceIndex device);

// Uses of the device's memory since the last call that are not ordered by streams (stream_order.h).
std::vector<std::string> take_order_faults(c10::DeviceIndex device);

// Records a call that writes to `memory`. `native_handle` is one of its streams.
void note_call(c10::DeviceIndex device, void* native_handle,
               std::span<const std::byte> memory = {});

class Chaos {
 public:
  Chaos();
  ~Chaos();
  Chaos(const Chaos&) = delete;
  Chaos& operator=(const Chaos&) = delete;
};

}  // namespace lockstep::test

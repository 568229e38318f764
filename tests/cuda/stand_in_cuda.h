// CUDA tensors where LibTorch has no CUDA: their memory is the host's, the CPU's kernels compute on
// them, and what is enqueued on a stream is done at once. Streams and events are told apart all the
// same: what waits for what is written down, and what should wait and does not is found.
//
// With LOCKSTEP_CUDA_CHAOS in the environment, or while a Chaos lives, whoever enqueues something
// is held up for a random time: threads then come in orders that are rare otherwise.
//
// Autograd has a thread for each device, on which hooks and the end of backward() run: ranks that
// are threads need a device each, as local_device() gives them.

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

// Makes LibTorch's CUDA the stand-in, for the rest of the process, if it is not; before the first
// backward(). False, and nothing is done, where LibTorch has CUDA itself.
bool stand_in_for_cuda();

// That `stream` was made to wait for an event, ran a kernel that wrote to memory, or ran something
// that a test has noted.
struct StreamEntry {
  enum class Kind { wait, write, call };

  Kind kind;
  c10::StreamId stream;
  c10::StreamId waits_for = 0;  // The stream on which the event was recorded, when its device had
  std::size_t recorded_after = 0;          // so many entries.
  std::span<const std::byte> memory = {};  // What was written, or what the call is about.
};

// Of a device, in their order: since the last call, which forgets them.
std::vector<StreamEntry> take_stream_entries(c10::DeviceIndex device);

// How often a thread would have waited for the device: copies to the CPU, item(), and synchronize()
// of it, of a stream or of an event, since the last call, which forgets them.
int take_host_waits(c10::DeviceIndex device);

// Uses of the device's memory since the last call that its streams do not keep in order
// (stream_order.h).
std::vector<std::string> take_order_faults(c10::DeviceIndex device);

// A call that writes to `memory`. `native_handle` is that of one of its streams.
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

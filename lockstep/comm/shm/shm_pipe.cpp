// SPDX-License-Identifier: Apache-2.0
#include "lockstep/comm/shm/shm_pipe.h"

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>

namespace lockstep {

namespace {

constexpr std::size_t capacity = 256 << 10;  // A power of two.

}  // namespace

struct ShmPipe::Ring {
  alignas(64) std::atomic<std::uint64_t> written;  // Bytes since the begin; written by the sender.
  std::atomic<std::uint64_t> sent;
  alignas(64) std::atomic<std::uint64_t> read;  // Written by the receiver.
  std::atomic<std::uint64_t> received;
  alignas(64) std::byte data[capacity];
};

std::size_t ShmPipe::bytes() { return sizeof(Ring); }

ShmPipe::ShmPipe(SharedMemory memory) : memory_(std::move(memory)) {}

ShmPipe::Ring& ShmPipe::ring() const { return *reinterpret_cast<Ring*>(memory_.get()); }

std::size_t ShmPipe::write(const std::byte* data, std::size_t bytes) {
  Ring& ring = this->ring();
  const std::uint64_t begin = ring.written.load(std::memory_order_relaxed);
  const std::uint64_t used = begin - ring.read.load(std::memory_order_acquire);
  const std::size_t size = std::min(bytes, capacity - static_cast<std::size_t>(used));
  const std::size_t at = begin & (capacity - 1);
  const std::size_t first = std::min(size, capacity - at);
  if (size > 0) {
    std::memcpy(ring.data + at, data, first);
    std::memcpy(ring.data, data + first, size - first);
  }
  ring.written.store(begin + size, std::memory_order_release);
  return size;
}

std::size_t ShmPipe::read(std::byte* data, std::size_t bytes) {
  Ring& ring = this->ring();
  const std::uint64_t begin = ring.read.load(std::memory_order_relaxed);
  const std::size_t size = std::min(bytes, readable());
  const std::size_t at = begin & (capacity - 1);
  const std::size_t first = std::min(size, capacity - at);
  if (size > 0) {
    std::memcpy(data, ring.data + at, first);
    std::memcpy(data + first, ring.data, size - first);
  }
  ring.read.store(begin + size, std::memory_order_release);
  return size;
}

std::size_t ShmPipe::readable() const {
  return static_cast<std::size_t>(ring().written.load(std::memory_order_acquire) -
                                  ring().read.load(std::memory_order_relaxed));
}

void ShmPipe::count_sent() { ++ring().sent; }
void ShmPipe::count_received() { ++ring().received; }
std::size_t ShmPipe::pending() const {
  const std::uint64_t received = ring().received;  // Read first: it never exceeds `sent`.
  return static_cast<std::size_t>(ring().sent - received);
}

}  // namespace lockstep

// SPDX-License-Identifier: Apache-2.0
#include "lockstep/comm/shm/shm_pipes.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <new>
#include <utility>

#include "lockstep/base/time.h"

namespace lockstep::comm {

namespace {

constexpr std::size_t capacity = 256 << 10;  // A power of two.

// Most bytes to copy before the other rank sees them.
constexpr std::size_t most_hidden = 64 << 10;

constexpr std::chrono::microseconds while_opening{200};  // A delivered pipe arrives soon.

struct Ring {
  alignas(64) std::atomic<std::uint64_t> written;  // Bytes in total; written by the sender.
  std::atomic<std::uint64_t> sent;
  alignas(64) std::atomic<std::uint64_t> read;  // Written by the receiver.
  std::atomic<std::uint64_t> received;
  alignas(64) std::byte data[capacity];
};

Ring& ring_in(const SharedMemory& memory) { return *reinterpret_cast<Ring*>(memory.get()); }

std::size_t pending_in(const Ring& ring) {
  const std::uint64_t received = ring.received;  // Read first: it never exceeds `sent`.
  return static_cast<std::size_t>(ring.sent - received);
}

// The receiver's bit in a word of RankBlock::pipes.
std::uint64_t bit_of(int receiver) { return std::uint64_t{1} << (receiver % 64); }

// For messages to a rank that has left.
SharedMemory memory_for_nobody() {
  auto* const memory = static_cast<std::byte*>(std::aligned_alloc(64, sizeof(Ring)));
  if (memory == nullptr) throw std::bad_alloc();
  std::memset(memory, 0, sizeof(Ring));
  return {memory, std::free};
}

}  // namespace

std::size_t ShmWriter::write(const std::byte* data, std::size_t bytes) {
  Ring& ring = ring_in(ring_);
  std::size_t all = 0;
  while (all < bytes) {
    const std::uint64_t begin = ring.written.load(std::memory_order_relaxed);
    const std::uint64_t used = begin - ring.read.load(std::memory_order_acquire);
    const std::size_t size =
        std::min({bytes - all, most_hidden, capacity - static_cast<std::size_t>(used)});
    if (size == 0) break;
    const std::size_t at = begin & (capacity - 1);
    const std::size_t first = std::min(size, capacity - at);
    std::memcpy(ring.data + at, data + all, first);
    std::memcpy(ring.data, data + all + first, size - first);
    ring.written.store(begin + size, std::memory_order_release);
    all += size;
  }
  return all;
}

void ShmWriter::count_sent() { ++ring_in(ring_).sent; }
std::size_t ShmWriter::pending() const { return pending_in(ring_in(ring_)); }

std::size_t ShmReader::read(std::byte* data, std::size_t bytes) {
  Ring& ring = ring_in(ring_);
  std::size_t all = 0;
  while (all < bytes) {
    const std::uint64_t begin = ring.read.load(std::memory_order_relaxed);
    const std::size_t size = std::min({bytes - all, most_hidden, readable()});
    if (size == 0) break;
    const std::size_t at = begin & (capacity - 1);
    const std::size_t first = std::min(size, capacity - at);
    std::memcpy(data + all, ring.data + at, first);
    std::memcpy(data + all + first, ring.data, size - first);
    ring.read.store(begin + size, std::memory_order_release);
    all += size;
  }
  return all;
}

std::size_t ShmReader::readable() const {
  const Ring& ring = ring_in(ring_);
  return static_cast<std::size_t>(ring.written.load(std::memory_order_acquire) -
                                  ring.read.load(std::memory_order_relaxed));
}

void ShmReader::count_received() { ++ring_in(ring_).received; }
std::size_t ShmReader::pending() const { return pending_in(ring_in(ring_)); }

ShmPipes::ShmPipes(std::shared_ptr<Peers> peers, const GroupSegment& segment, Barrier& barrier,
                   const std::string& group, const std::string& key)
    : peers_(std::move(peers)),
      segment_(segment),
      barrier_(barrier),
      group_(group),
      key_(key),
      rank_(peers_->rank()),
      outgoing_(static_cast<std::size_t>(peers_->size())),
      incoming_(static_cast<std::size_t>(peers_->size())) {}

// Each unread pipe holds a descriptor. Claims stop peers from delivering more.
ShmPipes::~ShmPipes() {
  for (int peer = 0; peer < size(); ++peer)
    if (!incoming_[static_cast<std::size_t>(peer)].pipe && !claim(peer, rank_))
      peers_->drop(key(peer, rank_));
}

PipeWriter& ShmPipes::to(int peer) {
  auto& pipe = outgoing_[static_cast<std::size_t>(peer)];
  if (!pipe)
    pipe = std::make_unique<ShmWriter>(claim(rank_, peer) ? deliver(peer) : memory_for_nobody());
  return *pipe;
}

SharedMemory ShmPipes::deliver(int peer) {
  try {
    return peers_->deliver(peer, key(rank_, peer), sizeof(Ring));
  } catch (...) {
    segment_.block(rank_).pipes[peer / 64].fetch_and(~bit_of(peer));
    throw;
  }
}

// The sender claims its pipe before delivering it; the receiver, when its group ends. Only the
// first claim counts: no pipe reaches a rank that has left. Returns whether it was free.
bool ShmPipes::claim(int from, int to) const {
  return (segment_.block(from).pipes[to / 64].fetch_or(bit_of(to)) & bit_of(to)) == 0;
}

// A leaving process may end immediately: its delivered memory stays with this one.
PipeReader* ShmPipes::from(int peer) {
  Incoming& incoming = incoming_[static_cast<std::size_t>(peer)];
  if (incoming.pipe) return incoming.pipe.get();
  if (!is_delivered(peer)) return nullptr;
  if (!std::exchange(incoming.is_opening, true)) ++opening_;
  if (SharedMemory memory = peers_->take(key(peer, rank_), sizeof(Ring))) {
    incoming.pipe = std::make_unique<ShmReader>(std::move(memory));
    --opening_;
  }
  return incoming.pipe.get();
}

bool ShmPipes::is_opening(int peer) const {
  return is_delivered(peer) && !incoming_[static_cast<std::size_t>(peer)].pipe;
}

bool ShmPipes::is_delivered(int peer) const {
  return (segment_.block(peer).pipes[rank_ / 64].load() & bit_of(rank_)) != 0;
}

void ShmPipes::await(std::uint32_t seen) {
  barrier_.await_doorbell(seen,
                          opening_ > 0 ? std::chrono::nanoseconds(while_opening) : wait_slice);
  // Limited by time: messages of other ranks may ring the bell constantly.
  const auto now = Clock::now().time_since_epoch().count();
  if (now - looked_ < std::chrono::nanoseconds(wait_slice).count() && barrier_.doorbell() != seen)
    return;
  looked_ = now;
  throw_if_over(fmt::format("send and recv in group {} on rank {}", group_, peers_->number(rank_)));
}

void ShmPipes::throw_if_over(const std::string& context) const { barrier_.throw_if_over(context); }

std::string ShmPipes::key(int from, int to) const {
  return fmt::format("{} from {} to {}", key_, from, to);
}

}  // namespace lockstep::comm

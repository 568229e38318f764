// Pipes between ranks that share memory. The first send makes a pipe and delivers it to the reader,
// which can read it even after the writer's end.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/comm/core/pipe.h"
#include "lockstep/comm/shm/barrier.h"
#include "lockstep/comm/shm/group_segment.h"
#include "lockstep/comm/shm/peers.h"

namespace lockstep::comm {

// The two ends of a ring of bytes. Thread safety: one thread for each end.
class ShmWriter final : public PipeWriter {
 public:
  explicit ShmWriter(SharedMemory ring) : ring_(std::move(ring)) {}

  std::size_t write(const std::byte* data, std::size_t bytes) override;
  void count_sent() override;
  std::size_t pending() const override;

 private:
  const SharedMemory ring_;
};

class ShmReader final : public PipeReader {
 public:
  explicit ShmReader(SharedMemory ring) : ring_(std::move(ring)) {}

  std::size_t read(std::byte* data, std::size_t bytes) override;
  std::size_t readable() const override;
  void count_received() override;
  std::size_t pending() const override;

 private:
  const SharedMemory ring_;
};

class ShmPipes final : public Pipes {
 public:
  // All arguments must outlive it. `key` is the prefix of the keys under which memory is offered.
  ShmPipes(std::shared_ptr<Peers> peers, const GroupSegment& segment, Barrier& barrier,
           const std::string& group, const std::string& key);
  ~ShmPipes() override;
  ShmPipes(const ShmPipes&) = delete;
  ShmPipes& operator=(const ShmPipes&) = delete;

  int rank() const override { return rank_; }
  int size() const override { return static_cast<int>(outgoing_.size()); }
  PipeWriter& to(int peer) override;
  PipeReader* from(int peer) override;
  void release(int peer) override { outgoing_[static_cast<std::size_t>(peer)].reset(); }
  bool is_opening(int peer) const override;
  bool has_left(int peer) const override { return barrier_.has_left(peer); }
  std::optional<Failure> why_left(int peer) const override { return peers_->why_left(peer); }
  void ring(int peer) override { barrier_.ring(peer); }
  std::uint32_t bell() const override { return barrier_.doorbell(); }
  void await(std::uint32_t seen) override;
  bool is_aborted() const override { return barrier_.is_aborted(); }
  void throw_if_over(const std::string& context) const override;

 private:
  // One for each peer; few are ever used.
  struct Incoming {
    bool is_opening = false;  // It counts in opening_.
    std::unique_ptr<ShmReader> pipe = {};
  };

  SharedMemory deliver(int peer);
  bool claim(int from, int to) const;
  bool is_delivered(int peer) const;
  std::string key(int from, int to) const;

  const std::shared_ptr<Peers> peers_;
  const GroupSegment& segment_;
  Barrier& barrier_;
  const std::string& group_;
  const std::string& key_;
  const int rank_;
  std::vector<std::unique_ptr<ShmWriter>> outgoing_;
  std::vector<Incoming> incoming_;
  std::atomic<int> opening_{0};          // Pipes delivered but not yet taken.
  std::atomic<std::int64_t> looked_{0};  // When await() last checked for lost peers.
};

}  // namespace lockstep::comm

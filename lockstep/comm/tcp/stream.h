// One direction of the messages between two ranks of a group. The sender is at most stream_credit
// bytes ahead of the receiver: unread messages never block other traffic.
//
// Thread safety: one thread for the members of PipeWriter and PipeReader; the connection thread for
// all others.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>

#include "lockstep/comm/core/pipe.h"
#include "lockstep/comm/tcp/connection.h"

namespace lockstep::comm {

constexpr std::size_t stream_credit = std::size_t{1} << 20;

class OutStream final : public PipeWriter {
 public:
  OutStream(std::shared_ptr<Connection> connection, std::uint64_t group);

  std::size_t write(const std::byte* data, std::size_t bytes) override;
  void count_sent() override { ++begun_; }
  std::size_t pending() const override;

  // Errors: corrupt when the receiver reports more than was sent.
  void was_read(std::uint64_t bytes);
  void was_received(std::uint64_t messages);

 private:
  const std::shared_ptr<Connection> connection_;
  const std::uint64_t group_;
  std::uint64_t begun_told_ = 0;
  std::atomic<std::uint64_t> begun_{0};
  std::atomic<std::uint64_t> received_{0};  // By the other side.
  std::atomic<std::uint64_t> sent_{0};      // Bytes.
  std::atomic<std::uint64_t> read_{0};
};

class InStream final : public PipeReader {
 public:
  InStream(std::shared_ptr<Connection> connection, std::uint64_t group);

  std::size_t read(std::byte* data, std::size_t bytes) override;
  std::size_t readable() const override;
  void count_received() override;
  std::size_t pending() const override;

  bool has_begun() const { return begun_ > 0; }

  // Errors: corrupt beyond the credit.
  void arrive(std::uint64_t begun, std::string_view bytes);

 private:
  const std::shared_ptr<Connection> connection_;
  const std::uint64_t group_;
  std::atomic<std::uint64_t> begun_{0};
  std::atomic<std::uint64_t> received_{0};

  mutable std::mutex mutex_;  // Guards the rest.
  std::deque<std::string> parts_;
  std::size_t taken_ = 0;
  std::size_t readable_ = 0;
  std::uint64_t read_ = 0;  // Bytes.
  std::uint64_t told_ = 0;  // Part of `read_` that was reported to the sender.
};

}  // namespace lockstep::comm

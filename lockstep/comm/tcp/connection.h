// One TCP connection to a rank on another host, after the handshake. No member blocks.
//
// Thread safety: any thread may call send(), queued() and is_full(); only the connection thread
// calls the other members.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstddef>
#include <functional>
#include <mutex>
#include <string>
#include <string_view>

#include "lockstep/base/file_descriptor.h"
#include "lockstep/comm/tcp/frames.h"

namespace lockstep::comm {

class Connection {
 public:
  static constexpr std::string_view no_answer =
      "no answer for 4 s: the host or the network is down";

  // `wake` asks the connection thread to poll for output.
  Connection(FileDescriptor socket, std::function<void()> wake);

  // Queues bytes that the socket does not take at once; with more than 64 MiB queued, the
  // connection ends. Does nothing after the connection's end.
  void send(const Frame& frame);
  std::size_t queued() const { return queued_; }  // Bytes.

  // Whether streams should wait so that other frames are not late. take_refused() then reports a
  // half-empty queue.
  bool is_full();

  int socket() const { return socket_.get(); }
  void flush();
  bool take_refused();

  // Calls `act` for each received frame. False after the connection's end, for the reason why().
  // Errors: corrupt, and those of `act`.
  bool receive(const std::function<void(const Frame&)>& act);
  const std::string& why() const { return why_; }

  // Whether sent data has had no acknowledgement for 4 s.
  bool is_unanswered() const;

  // Drops incoming data; false when the connection has ended.
  bool discard();

  void close();

 private:
  void send_some();
  void stop_sending(const std::string& why);
  void end(int error);

  FileDescriptor socket_;
  const std::function<void()> wake_;
  std::string input_;
  std::string why_;

  std::mutex mutex_;  // Guards non-atomics below.
  std::string output_;
  std::size_t sent_ = 0;  // Bytes of `output_`.
  bool ended_ = false;
  std::string why_not_sent_;  // Empty until a send failed.
  std::atomic<std::size_t> queued_{0};
  std::atomic<bool> refused_{false};
};

}  // namespace lockstep::comm

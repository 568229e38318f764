// One TCP connection to a rank of another host, after the handshake.
//
// Thread safety: send(), queued() and is_full() may be called from any thread; the rest is for the
// lines' thread alone. Blocking: never.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstddef>
#include <functional>
#include <mutex>
#include <string>
#include <string_view>

#include "lockstep/base/file_descriptor.h"
#include "lockstep/comm/lines/line_frames.h"

namespace lockstep {

class Line {
 public:
  static constexpr std::string_view no_answer =
      "no answer for 4 s: the host or the network is down";

  // `wake` is called when the lines' thread should wait for room to send.
  Line(FileDescriptor socket, std::function<void()> wake);

  // Frames arrive in the order in which they were sent. What the socket does not take at once is
  // kept; nothing is sent after the line has ended.
  void send(const LineFrame& frame);
  std::size_t queued() const { return queued_; }  // Bytes that the socket has not taken.

  // Whether so much is queued that streams should wait, so that other frames are not late. Then
  // take_refused() is true once there is room again.
  bool is_full();

  int socket() const { return socket_.get(); }
  void flush();
  bool take_refused();

  // Reads what is there, some of it at a time, and calls `act` for each frame. False when nothing
  // more will come: why() says why. Errors: corrupt, and what `act` throws.
  bool receive(const std::function<void(const LineFrame&)>& act);
  const std::string& why() const { return why_; }

  // Whether the other host has not answered for 4 s to what was sent.
  bool is_unanswered() const;

  // Takes what has come and forgets it; false when nothing more will.
  bool discard();

  void close();

 private:
  void send_some();
  void give_up_sending(const std::string& why);
  void end(int error);

  FileDescriptor socket_;
  const std::function<void()> wake_;
  std::string input_;
  std::string why_;

  std::mutex mutex_;  // Guards the output.
  std::string output_;
  std::size_t sent_ = 0;  // Of the output.
  bool ended_ = false;
  std::string why_not_sent_;  // Empty while nothing was refused.
  std::atomic<std::size_t> queued_{0};
  std::atomic<bool> refused_{false};
};

}  // namespace lockstep

// Tests a connection whose other end is a socket of the test.

// SPDX-License-Identifier: Apache-2.0
#include "lockstep/comm/lines/line.h"

#include <gtest/gtest.h>
#include <sys/socket.h>

#include <array>
#include <string>

namespace lockstep::comm::line_test {
namespace {

using Kind = LineFrame::Kind;

struct Ends {
  explicit Ends(int type) {
    std::array<int, 2> sockets{};
    EXPECT_EQ(::socketpair(AF_UNIX, type, 0, sockets.data()), 0);
    const int small = 4096;
    ::setsockopt(sockets[0], SOL_SOCKET, SO_SNDBUF, &small, sizeof small);
    here = FileDescriptor(sockets[0]);
    there = FileDescriptor(sockets[1]);
  }
  FileDescriptor here;
  FileDescriptor there;
};

// Packet sockets refuse a message that is too big: an error that does not end the connection.
constexpr std::string_view too_big = "Message too long";

LineFrame frame_of(const std::string& bytes) { return {.kind = Kind::entry, .bytes = bytes}; }

void expect_ended(Line& line, std::string_view why) {
  EXPECT_FALSE(line.receive([](const LineFrame&) {}));
  EXPECT_NE(line.why().find(why), std::string::npos) << line.why();
}

TEST(Line, EndsWhenASendIsRefused) {
  Ends ends(SOCK_SEQPACKET);
  Line line(std::move(ends.here), [] {});
  line.send(frame_of(std::string(max_line_frame_bytes, 'x')));
  expect_ended(line, too_big);
}

TEST(Line, EndsWhenWhatWasKeptIsRefused) {
  Ends ends(SOCK_SEQPACKET);
  Line line(std::move(ends.here), [] {});
  for (int i = 0; i < 10'000 && line.queued() == 0; ++i) line.send(frame_of("small"));
  ASSERT_GT(line.queued(), 0U);
  line.send(frame_of(std::string(max_line_frame_bytes, 'x')));
  std::array<char, 64> packet{};
  while (::recv(ends.there.get(), packet.data(), packet.size(), MSG_DONTWAIT) > 0) {
  }
  line.flush();
  EXPECT_EQ(line.queued(), 0U);
  expect_ended(line, too_big);
}

TEST(Line, SaysThatWhatItWasSentWasNotReadAlsoIfItIsFlushedBefore) {
  Ends ends(SOCK_STREAM);
  Line line(std::move(ends.here), [] {});
  const std::string part(max_line_frame_bytes, 'x');
  for (int i = 0; i < 1100; ++i) line.send(frame_of(part));  // 68 MiB.
  line.flush();
  expect_ended(line, "it stopped reading");
}

}  // namespace
}  // namespace lockstep::comm::line_test

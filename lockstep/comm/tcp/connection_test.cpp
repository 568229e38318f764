// Tests a connection whose other end is a socket of the test.

// SPDX-License-Identifier: Apache-2.0
#include "lockstep/comm/tcp/connection.h"

#include <gtest/gtest.h>
#include <sys/socket.h>

#include <array>
#include <string>

namespace lockstep::comm::connection_test {
namespace {

using Kind = Frame::Kind;

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

Frame frame_of(const std::string& bytes) { return {.kind = Kind::entry, .bytes = bytes}; }

void expect_ended(Connection& connection, std::string_view why) {
  EXPECT_FALSE(connection.receive([](const Frame&) {}));
  EXPECT_NE(connection.why().find(why), std::string::npos) << connection.why();
}

TEST(Connection, EndsWhenASendIsRefused) {
  Ends ends(SOCK_SEQPACKET);
  Connection connection(std::move(ends.here), [] {});
  connection.send(frame_of(std::string(max_frame_bytes, 'x')));
  expect_ended(connection, too_big);
}

TEST(Connection, EndsWhenWhatWasKeptIsRefused) {
  Ends ends(SOCK_SEQPACKET);
  Connection connection(std::move(ends.here), [] {});
  for (int i = 0; i < 10'000 && connection.queued() == 0; ++i) connection.send(frame_of("small"));
  ASSERT_GT(connection.queued(), 0U);
  connection.send(frame_of(std::string(max_frame_bytes, 'x')));
  std::array<char, 64> packet{};
  while (::recv(ends.there.get(), packet.data(), packet.size(), MSG_DONTWAIT) > 0) {
  }
  connection.flush();
  EXPECT_EQ(connection.queued(), 0U);
  expect_ended(connection, too_big);
}

TEST(Connection, ReportsThatSentDataWasNotReadEvenAfterAFlush) {
  Ends ends(SOCK_STREAM);
  Connection connection(std::move(ends.here), [] {});
  const std::string part(max_frame_bytes, 'x');
  for (int i = 0; i < 1100; ++i) connection.send(frame_of(part));  // 68 MiB.
  connection.flush();
  expect_ended(connection, "it stopped reading");
}

}  // namespace
}  // namespace lockstep::comm::connection_test

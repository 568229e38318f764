// SPDX-License-Identifier: Apache-2.0
#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/launch/rendezvous.h"
#include "tests/fault_of.h"

namespace lockstep::launch::reserved_port_test {
namespace {

struct Endpoint {
  FileDescriptor socket;
  int port = 0;
};

Endpoint bind_to(int port, bool reuse, in_addr_t address = INADDR_LOOPBACK) {
  Endpoint end{FileDescriptor(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0))};
  const int flag = reuse;
  ::setsockopt(end.socket.get(), SOL_SOCKET, SO_REUSEADDR, &flag, sizeof flag);
  sockaddr_in name{};
  name.sin_family = AF_INET;
  name.sin_addr.s_addr = ::htonl(address);
  name.sin_port = ::htons(static_cast<std::uint16_t>(port));
  socklen_t length = sizeof name;
  if (::bind(end.socket.get(), reinterpret_cast<sockaddr*>(&name), length) != 0) return end;
  ::getsockname(end.socket.get(), reinterpret_cast<sockaddr*>(&name), &length);
  end.port = ::ntohs(name.sin_port);
  return end;
}

TEST(ReservedPort, AServerMayListenOnIt) {
  const ReservedPort port;
  for (const in_addr_t address : {INADDR_LOOPBACK, INADDR_ANY}) {
    const Endpoint server = bind_to(port.number(), /*reuse=*/true, address);
    ASSERT_EQ(server.port, port.number());
    EXPECT_EQ(::listen(server.socket.get(), 8), 0);
  }
}

TEST(ReservedPort, NobodyElseTakesIt) {
  const ReservedPort port;
  EXPECT_EQ(bind_to(port.number(), /*reuse=*/false).port, 0);
}

// The kernel assigns every second of about 28,000 ports: an unreserved one would occur.
TEST(ReservedPort, NobodyWhoAsksForAnyPortGetsIt) {
  const ReservedPort port;
  for (int i = 0; i < 50'000; ++i) ASSERT_NE(bind_to(0, /*reuse=*/i % 2 == 0).port, port.number());
}

TEST(ReservedPort, MayBeTheOneThatItsUserNames) {
  std::optional<ReservedPort> first(std::in_place);
  const int number = first->number();
  const ReservedPort port("127.0.0.1", number);
  first.reset();
  EXPECT_EQ(port.number(), number);
  EXPECT_EQ(bind_to(number, /*reuse=*/false).port, 0);
}

TEST(ReservedPort, OneThatAProcessListensOnIsAnErrorThatNamesTheProcess) {
  const ReservedPort port;
  const Endpoint server = bind_to(port.number(), /*reuse=*/true);
  ASSERT_EQ(::listen(server.socket.get(), 8), 0);
  std::string text;
  EXPECT_EQ(test::fault_of([&] { ReservedPort second("127.0.0.1", port.number()); }, &text),
            Fault::misuse);
  EXPECT_NE(text.find("process " + std::to_string(::getpid())), text.npos) << text;
}

TEST(ReservedPort, EveryJobHasItsOwn) {
  const ReservedPort a;
  const ReservedPort b;
  EXPECT_NE(a.number(), b.number());
}

}  // namespace
}  // namespace lockstep::launch::reserved_port_test

// F3: data from other ranks: the header of a message, and the packets of the fd broker. The first
// byte selects.

// SPDX-License-Identifier: Apache-2.0
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cstring>

#include "lockstep/base/error.h"
#include "lockstep/comm/core/mailbox.h"
#include "lockstep/job/fd_broker.h"
#include "tests/fuzz/target.h"

namespace lockstep::fuzz {
namespace {

template <class T>
std::string bytes_of(const T& value) {
  return {reinterpret_cast<const char*>(&value), sizeof value};
}

void read_header(const std::string& input) {
  std::byte bytes[sizeof(comm::MessageHeader)] = {};
  std::memcpy(bytes, input.data(), std::min(input.size(), sizeof bytes));
  try {
    const comm::MessageHeader header = comm::parse_message_header(bytes);
    expect(size_of(header.dtype) != 0 && header.tag >= 0);
    expect(header.count * size_of(header.dtype) / size_of(header.dtype) == header.count);
    expect(std::memcmp(&header, bytes, sizeof bytes) == 0);
  } catch (const Error& error) {
    expect(error.fault() == Fault::corrupt);
  }
}

// The fd broker survives any input of a rank, and serves the next rank.
void send_to_fd_broker(const std::string& input) {
  int peer[2];
  int rank[2];
  if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, peer) != 0) return;
  if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, rank) != 0) return;
  FdBroker board(-1);
  board.connect(FileDescriptor(peer[0]));
  board.connect(FileDescriptor(rank[0]));
  const FileDescriptor other(peer[1]);
  const FileDescriptor ours(rank[1]);
  ::send(other.get(), input.data(), input.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
  send_packet(ours.get(), make_packet(Packet::Kind::offer, "key", "none"));
  send_packet(ours.get(), make_packet(Packet::Kind::want, "absent"));
  for (int turn = 0; turn < 3; ++turn) {
    std::vector<pollfd> entries;
    board.watch(entries);
    ::poll(entries.data(), entries.size(), 0);
    board.serve(entries);
  }
  std::vector<pollfd> entries;
  board.watch(entries);
  expect(!entries.empty());  // At least our own rank is still connected.
}

}  // namespace

std::vector<std::string> seeds() {
  return {'\0' + bytes_of(comm::MessageHeader{.dtype = DType::int64, .tag = 7, .count = 1000}),
          '\1' + bytes_of(make_packet(Packet::Kind::offer, "world memory 1", "no memory")),
          '\1' + bytes_of(make_packet(Packet::Kind::want, "job page")),
          '\1' + bytes_of(make_packet(Packet::Kind::hello, "", "identity"))};
}

}  // namespace lockstep::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace lockstep::fuzz;
  if (size == 0) return 0;
  const std::string input(reinterpret_cast<const char*>(data) + 1, size - 1);
  if (data[0] % 2 == 0)
    read_header(input);
  else
    send_to_fd_broker(input);
  return 0;
}

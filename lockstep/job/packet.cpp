// SPDX-License-Identifier: Apache-2.0
#include "lockstep/job/packet.h"

#include <sys/socket.h>

#include <cerrno>
#include <cstring>

#include "lockstep/base/error.h"
#include "lockstep/base/fixed_text.h"

namespace lockstep {
namespace {

union Control {
  cmsghdr header;
  char space[CMSG_SPACE(sizeof(int))];
};

}  // namespace

Packet make_packet(Packet::Kind kind, std::string_view key, std::string_view text) {
  check(key.size() < sizeof Packet::key, "the name of shared memory is too long");
  Packet packet;
  packet.kind = kind;
  copy_text(packet.key, key);
  copy_text(packet.text, text);
  return packet;
}

Sent send_packet(int socket, const Packet& packet, int fd) {
  iovec data{const_cast<Packet*>(&packet), sizeof packet};
  Control control{};
  msghdr header{};
  header.msg_iov = &data;
  header.msg_iovlen = 1;
  if (fd >= 0) {
    header.msg_control = control.space;
    header.msg_controllen = sizeof control.space;
    cmsghdr* rights = CMSG_FIRSTHDR(&header);
    rights->cmsg_level = SOL_SOCKET;
    rights->cmsg_type = SCM_RIGHTS;
    rights->cmsg_len = CMSG_LEN(sizeof fd);
    std::memcpy(CMSG_DATA(rights), &fd, sizeof fd);
  }
  ssize_t sent = 0;
  do {
    sent = ::sendmsg(socket, &header, MSG_NOSIGNAL | MSG_DONTWAIT);
  } while (sent < 0 && errno == EINTR);
  if (sent == sizeof packet) return Sent::whole;
  return sent < 0 && (errno == EAGAIN || errno == ENOBUFS) ? Sent::not_now : Sent::closed;
}

Received receive_packet(int socket, Packet& packet, FileDescriptor& fd) {
  iovec data{&packet, sizeof packet};
  Control control{};
  msghdr header{};
  header.msg_iov = &data;
  header.msg_iovlen = 1;
  header.msg_control = control.space;
  header.msg_controllen = sizeof control.space;
  const ssize_t received = ::recvmsg(socket, &header, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  if (received < 0 && (errno == EAGAIN || errno == EINTR)) return Received::nothing_yet;
  for (cmsghdr* part = CMSG_FIRSTHDR(&header); received > 0 && part != nullptr;
       part = CMSG_NXTHDR(&header, part)) {
    if (part->cmsg_level != SOL_SOCKET || part->cmsg_type != SCM_RIGHTS) continue;
    int descriptor = -1;
    std::memcpy(&descriptor, CMSG_DATA(part), sizeof descriptor);
    fd = FileDescriptor(descriptor);
  }
  if (received != sizeof packet || packet.magic != Packet{}.magic) return Received::closed;
  packet.key[sizeof packet.key - 1] = '\0';
  packet.text[sizeof packet.text - 1] = '\0';
  return Received::packet;
}

}  // namespace lockstep

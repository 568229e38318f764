// SPDX-License-Identifier: Apache-2.0
#include "lockstep/comm/host/message.h"

#include <sys/socket.h>

#include <cerrno>
#include <cstring>

#include "lockstep/comm/host/fixed_text.h"

namespace lockstep {
namespace {

union Control {
  cmsghdr header;
  char space[CMSG_SPACE(sizeof(int))];
};

}  // namespace

Message make_message(Message::Kind kind, std::string_view key, std::string_view text) {
  Message message;
  message.kind = kind;
  copy_text(message.key, key);
  copy_text(message.text, text);
  return message;
}

bool send_message(int socket, const Message& message, int fd) {
  iovec data{const_cast<Message*>(&message), sizeof message};
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
  return sent == sizeof message;
}

Received receive_message(int socket, Message& message, FileDescriptor& fd) {
  iovec data{&message, sizeof message};
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
  if (received != sizeof message || message.magic != Message{}.magic) return Received::closed;
  message.key[sizeof message.key - 1] = '\0';
  message.text[sizeof message.text - 1] = '\0';
  return Received::message;
}

}  // namespace lockstep

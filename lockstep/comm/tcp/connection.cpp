// SPDX-License-Identifier: Apache-2.0
#include "lockstep/comm/tcp/connection.h"

// Not <netinet/tcp.h>, whose tcp_info ends before the number of unsent bytes.
#include <linux/tcp.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <array>
#include <cerrno>
#include <system_error>

namespace lockstep::comm {
namespace {

constexpr std::size_t full_bytes = std::size_t{256} << 10;
constexpr std::size_t max_queued_bytes = std::size_t{64} << 20;
constexpr int silence_s = 4;

// Without TCP_USER_TIMEOUT, which would also end the connection to a stopped process
// (docs/protocol.md): is_unanswered() replaces it.
void tune(int socket) {
  const auto set = [&](int level, int option, int value) {
    ::setsockopt(socket, level, option, &value, sizeof value);
  };
  set(IPPROTO_TCP, TCP_NODELAY, 1);
  set(IPPROTO_TCP, TCP_USER_TIMEOUT, 0);
  set(SOL_SOCKET, SO_KEEPALIVE, 1);
  set(IPPROTO_TCP, TCP_KEEPIDLE, 1);
  set(IPPROTO_TCP, TCP_KEEPINTVL, 1);
  set(IPPROTO_TCP, TCP_KEEPCNT, silence_s - 1);
}

std::string reason_of(int error) {
  if (error == ETIMEDOUT || error == EHOSTUNREACH || error == ENETUNREACH)
    return std::string(Connection::no_answer);
  if (error == 0 || error == ECONNRESET || error == EPIPE) return "its connection ended";
  return "its connection ended: " + std::generic_category().message(error);
}

}  // namespace

Connection::Connection(FileDescriptor socket, std::function<void()> wake)
    : socket_(std::move(socket)), wake_(std::move(wake)) {
  tune(socket_.get());
}

void Connection::send(const Frame& frame) {
  const std::lock_guard lock(mutex_);
  if (ended_) return;
  std::string head = encode_head(frame);
  if (!output_.empty()) {
    output_.append(head).append(frame.bytes);
    queued_ = output_.size() - sent_;
    if (queued_ > max_queued_bytes) stop_sending("it stopped reading");
    return;
  }
  std::array<iovec, 2> parts{iovec{head.data(), head.size()},
                             iovec{const_cast<char*>(frame.bytes.data()), frame.bytes.size()}};
  msghdr message{};
  message.msg_iov = parts.data();
  message.msg_iovlen = parts.size();
  const ssize_t sent = ::sendmsg(socket_.get(), &message, MSG_NOSIGNAL | MSG_DONTWAIT);
  if (sent == static_cast<ssize_t>(head.size() + frame.bytes.size())) return;
  if (sent < 0 && errno != EAGAIN && errno != EINTR) return stop_sending(reason_of(errno));
  head.append(frame.bytes);
  output_ = std::move(head);
  sent_ = sent < 0 ? 0 : static_cast<std::size_t>(sent);
  queued_ = output_.size() - sent_;
  wake_();
}

bool Connection::is_full() {
  if (queued_ <= full_bytes) return false;
  refused_ = true;
  return queued_ > full_bytes;  // The queue may have shrunk before the thread could see the flag.
}

bool Connection::take_refused() { return queued_ <= full_bytes / 2 && refused_.exchange(false); }

void Connection::flush() {
  const std::lock_guard lock(mutex_);
  if (output_.empty()) return;
  send_some();
  if (sent_ == output_.size() || ended_) {
    output_ = std::string();
    sent_ = 0;
  } else if (sent_ > full_bytes) {
    output_.erase(0, sent_);
    sent_ = 0;
  }
  queued_ = output_.size() - sent_;
}

void Connection::send_some() {
  while (sent_ < output_.size() && !ended_) {
    const ssize_t part = ::send(socket_.get(), output_.data() + sent_, output_.size() - sent_,
                                MSG_NOSIGNAL | MSG_DONTWAIT);
    if (part < 0 && errno == EINTR) continue;
    if (part < 0 && errno == EAGAIN) return;
    if (part < 0) return stop_sending(reason_of(errno));
    sent_ += static_cast<std::size_t>(part);
  }
}

// The read continues to the end of the received data.
void Connection::stop_sending(const std::string& why) {
  ended_ = true;
  why_not_sent_ = why;
  ::shutdown(socket_.get(), SHUT_RDWR);
}

bool Connection::receive(const std::function<void(const Frame&)>& act) {
  std::array<char, std::size_t{128} << 10> buffer;
  const ssize_t count = ::recv(socket_.get(), buffer.data(), buffer.size(), MSG_DONTWAIT);
  if (count < 0 && (errno == EAGAIN || errno == EINTR)) return true;
  if (count <= 0) {
    end(count < 0 ? errno : 0);
    return false;
  }
  input_.append(buffer.data(), static_cast<std::size_t>(count));
  std::size_t used = 0;
  while (const auto parsed = parse_frame(std::string_view(input_).substr(used))) {
    used += parsed->size;
    act(parsed->frame);
  }
  input_.erase(0, used);
  return true;
}

void Connection::end(int error) {
  const std::lock_guard lock(mutex_);
  why_ = why_not_sent_.empty() ? reason_of(error) : why_not_sent_;  // The kernel reports it once.
  ended_ = true;
}

bool Connection::is_unanswered() const {
  tcp_info info{};
  socklen_t length = sizeof info;
  if (::getsockopt(socket_.get(), IPPROTO_TCP, TCP_INFO, &info, &length) != 0) return false;
  if (info.tcpi_last_ack_recv < silence_s * 1000) return false;
  // A process that does not read has a zero window, whose probes its host answers at ever longer
  // intervals.
  const bool asks_for_window = info.tcpi_unacked == 0 && info.tcpi_notsent_bytes > 0;
  return asks_for_window ? info.tcpi_probes >= 2
                         : info.tcpi_unacked > 0 && info.tcpi_retransmits >= 2;
}

bool Connection::discard() {
  std::array<char, std::size_t{16} << 10> nowhere;
  const ssize_t count = ::recv(socket_.get(), nowhere.data(), nowhere.size(), MSG_DONTWAIT);
  return count > 0 || (count < 0 && (errno == EAGAIN || errno == EINTR));
}

void Connection::close() {
  const std::lock_guard lock(mutex_);
  ended_ = true;
  output_ = std::string();
  sent_ = 0;
  queued_ = 0;
  socket_ = FileDescriptor();
}

}  // namespace lockstep::comm

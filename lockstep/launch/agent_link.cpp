// SPDX-License-Identifier: Apache-2.0
#include "lockstep/launch/agent_link.h"

#include <sys/socket.h>

#include <array>
#include <cerrno>

#include "lockstep/base/file_descriptor.h"

namespace lockstep::launch {
namespace {

constexpr std::size_t max_output_bytes = std::size_t{1} << 20;

}  // namespace

AgentLink::AgentLink(FileDescriptor socket, Clock::time_point now)
    : socket_(std::move(socket)), heard_(now), beat_at_(now + pulse) {}

void AgentLink::send(const AgentFrame& frame) {
  output_ += encode(frame);
  broken_ = !write() || output_.size() > max_output_bytes || broken_;
}

bool AgentLink::write() {
  while (!output_.empty()) {
    const ssize_t sent =
        ::send(socket_.get(), output_.data(), output_.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent < 0 && errno == EINTR) continue;
    if (sent < 0) return errno == EAGAIN;
    output_.erase(0, static_cast<std::size_t>(sent));
  }
  return true;
}

void AgentLink::watch(std::vector<pollfd>& entries) const {
  const int wanted = POLLIN | (pending() ? POLLOUT : 0);
  entries.push_back({socket_.get(), static_cast<short>(wanted), 0});
}

bool AgentLink::serve(const std::vector<pollfd>& entries, Clock::time_point now) {
  const short events = events_of(entries, socket_.get());
  if ((events & POLLOUT) != 0 && !write()) broken_ = true;
  if ((events & (POLLIN | POLLHUP | POLLERR)) == 0) return !broken_;
  std::array<char, std::size_t{16} << 10> bytes;
  const ssize_t count = ::recv(socket_.get(), bytes.data(), bytes.size(), MSG_DONTWAIT);
  if (count < 0 && (errno == EAGAIN || errno == EINTR)) return !broken_;
  if (count <= 0) return false;
  heard_ = now;
  input_.append(bytes.data(), static_cast<std::size_t>(count));
  return true;  // Data sent before the close still counts.
}

std::optional<AgentFrame> AgentLink::receive() {
  const auto body = first_agent_frame(input_);
  if (!body) return std::nullopt;
  AgentFrame frame = decode_agent_frame(*body);
  input_.erase(0, 4 + body->size());
  return frame;
}

void AgentLink::beat(Clock::time_point now) {
  if (now < beat_at_) return;
  beat_at_ = now + pulse;
  if (!pending()) send(AliveFrame{});
}

Deadline AgentLink::deadline() const { return beat_at_; }

}  // namespace lockstep::launch

// SPDX-License-Identifier: Apache-2.0
#include "lockstep/comm/tcp/stream.h"

#include <algorithm>
#include <cstring>

namespace lockstep::comm {

namespace {

using Kind = Frame::Kind;

}  // namespace

OutStream::OutStream(std::shared_ptr<Connection> connection, std::uint64_t group)
    : connection_(std::move(connection)), group_(group) {}

std::size_t OutStream::write(const std::byte* data, std::size_t bytes) {
  const auto send = [&](std::string_view part) {
    sent_ += part.size();  // Before the receiver can report them as read.
    connection_->send({.kind = Kind::data, .group = group_, .number = begun_, .bytes = part});
    begun_told_ = begun_;
  };
  std::size_t written = 0;
  while (written < bytes && !connection_->is_full()) {
    const std::size_t capacity = stream_credit - static_cast<std::size_t>(sent_ - read_);
    const std::size_t part = std::min({bytes - written, capacity, max_frame_bytes});
    if (part == 0) break;
    send({reinterpret_cast<const char*>(data) + written, part});
    written += part;
  }
  if (begun_told_ != begun_) send({});  // Announces the message even without credit.
  return written;
}

std::size_t OutStream::pending() const {
  const std::uint64_t received = received_;  // Read first: it never exceeds `begun_`.
  return static_cast<std::size_t>(begun_ - received);
}

void OutStream::was_read(std::uint64_t bytes) {
  if (bytes > sent_ || bytes < read_)
    throw Error(Fault::corrupt, "it acknowledged bytes that were not sent");
  read_ = bytes;
}

void OutStream::was_received(std::uint64_t messages) {
  if (messages > begun_ || messages < received_)
    throw Error(Fault::corrupt, "it confirmed messages that were not sent");
  received_ = messages;
}

InStream::InStream(std::shared_ptr<Connection> connection, std::uint64_t group)
    : connection_(std::move(connection)), group_(group) {}

std::size_t InStream::read(std::byte* data, std::size_t bytes) {
  std::unique_lock lock(mutex_);
  std::size_t done = 0;
  while (done < bytes && !parts_.empty()) {
    const std::string_view part = std::string_view(parts_.front()).substr(taken_);
    const std::size_t more = std::min(bytes - done, part.size());
    std::memcpy(data + done, part.data(), more);
    done += more;
    taken_ += more;
    if (more < part.size()) break;
    parts_.pop_front();
    taken_ = 0;
  }
  readable_ -= done;
  read_ += done;
  const bool tell = read_ - told_ >= stream_credit / 4;
  if (tell) told_ = read_;
  const std::uint64_t read = read_;
  lock.unlock();
  if (tell) connection_->send({.kind = Kind::read, .group = group_, .number = read});
  return done;
}

std::size_t InStream::readable() const {
  const std::lock_guard lock(mutex_);
  return readable_;
}

void InStream::count_received() {
  ++received_;
  connection_->send({.kind = Kind::received, .group = group_, .number = received_});
}

std::size_t InStream::pending() const {
  const std::uint64_t received = received_;
  return static_cast<std::size_t>(begun_ - received);
}

void InStream::arrive(std::uint64_t begun, std::string_view bytes) {
  const std::lock_guard lock(mutex_);
  if (begun < begun_ || begun == 0) throw Error(Fault::corrupt, "bytes that belong to no message");
  if (read_ - told_ + readable_ + bytes.size() > stream_credit)
    throw Error(Fault::corrupt, "it sent more bytes than the buffer holds");
  begun_ = begun;
  if (bytes.empty()) return;
  if (parts_.empty() || parts_.back().size() + bytes.size() > max_frame_bytes)
    parts_.emplace_back(bytes);
  else
    parts_.back().append(bytes);
  readable_ += bytes.size();
}

}  // namespace lockstep::comm

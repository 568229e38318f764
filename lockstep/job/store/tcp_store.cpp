// SPDX-License-Identifier: Apache-2.0
#include "lockstep/job/store/tcp_store.h"

#include <fmt/format.h>
#include <sys/eventfd.h>
#include <sys/socket.h>

#include <array>
#include <cerrno>
#include <condition_variable>
#include <map>
#include <mutex>
#include <string_view>
#include <system_error>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/base/file_descriptor.h"
#include "lockstep/base/text.h"
#include "lockstep/job/store/admission.h"
#include "lockstep/job/store/store_protocol.h"
#include "lockstep/job/store/store_service.h"
#include "lockstep/job/store/tcp_socket.h"

namespace lockstep {
namespace {

using job::require_store_key;
using job::require_store_value;
using job::StoreReply;
using job::StoreRequest;

constexpr std::chrono::seconds last_answer{1};  // By which wait() may exceed its deadline.

}  // namespace

// Threads share one socket; one waiting thread reads for all.
class TcpStore::Connection {
 public:
  struct Answer {
    StoreReply::Kind kind = StoreReply::Kind::error;
    std::string bytes = {};
    std::int64_t number = 0;
    Fault fault = Fault::bug;
  };

  explicit Connection(const TcpStoreOptions& options)
      : server_(to_text(options.host, options.port)),
        timeout_(options.timeout),
        socket_(join_store(options, server_)),
        wake_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
    if (!wake_) throw_errno("connecting to the store: eventfd");
  }

  // Empty at the deadline. `what` is for messages.
  std::optional<Answer> call(StoreRequest request, std::string_view what, Deadline deadline) {
    std::unique_lock lock(mutex_);
    throw_if_broken(what);
    request.id = next_id_++;
    const auto slot = answers_.try_emplace(request.id).first;
    queue(job::encode(request));
    while (!slot->second && broken_.empty() && Clock::now() < deadline) take_turn(lock, deadline);
    std::optional<Answer> answer = std::move(slot->second);
    answers_.erase(slot);
    if (answer) return answer;
    throw_if_broken(what);
    if (request.kind == StoreRequest::Kind::wait)
      queue(job::encode({.kind = StoreRequest::Kind::cancel, .id = request.id}));
    return std::nullopt;
  }

  Answer call(const StoreRequest& request, std::string_view what) {
    const auto answer = call(request, what, in(timeout_));
    if (!answer)
      throw Error(Fault::timeout,
                  fmt::format("{} of key {}: the store at {} did not answer within {} ms", what,
                              job::in_quotes(request.key), server_, timeout_.count()));
    return checked(*answer, what);
  }

  Answer checked(const Answer& answer, std::string_view what) const {
    if (answer.kind == StoreReply::Kind::error)
      throw Error(answer.fault,
                  fmt::format("{}: {} (store at {})", what, clean_text(answer.bytes), server_));
    return answer;
  }

 private:
  void throw_if_broken(std::string_view what) const {
    if (!broken_.empty())
      throw Error(Fault::peer_lost,
                  fmt::format("{}: lost the store at {}: {}", what, server_, broken_));
  }

  void break_off(std::string_view why) {
    if (broken_.empty()) broken_ = why;
    changed_.notify_all();
  }

  void queue(std::string frame) {
    output_ += frame;
    send_some();
    if (output_.empty() || !polling_) return;
    const std::uint64_t one = 1;  // The polling thread must also poll for writing.
    [[maybe_unused]] const ssize_t written = ::write(wake_.get(), &one, sizeof one);
  }

  void take_turn(std::unique_lock<std::mutex>& lock, Deadline deadline) {
    if (polling_) {
      if (deadline == no_deadline)
        changed_.wait(lock);
      else
        changed_.wait_until(lock, deadline);
      return;
    }
    polling_ = true;
    const short events = static_cast<short>(output_.empty() ? POLLIN : POLLIN | POLLOUT);
    std::array<pollfd, 2> watched{pollfd{socket_.get(), events, 0}, pollfd{wake_.get(), POLLIN, 0}};
    lock.unlock();
    poll_until(watched, deadline);
    lock.lock();
    polling_ = false;
    if (watched[1].revents != 0) {
      std::uint64_t count = 0;
      [[maybe_unused]] const ssize_t got = ::read(wake_.get(), &count, sizeof count);
    }
    send_some();
    receive_some();
    changed_.notify_all();
  }

  void send_some() {
    std::size_t sent = 0;
    while (sent < output_.size() && broken_.empty()) {
      const ssize_t part = ::send(socket_.get(), output_.data() + sent, output_.size() - sent,
                                  MSG_NOSIGNAL | MSG_DONTWAIT);
      if (part >= 0)
        sent += static_cast<std::size_t>(part);
      else if (errno == EAGAIN)
        break;
      else if (errno != EINTR)
        break_off("send: " + std::generic_category().message(errno));
    }
    output_.erase(0, sent);
  }

  void receive_some() {
    std::array<char, std::size_t{16} << 10> buffer;
    for (;;) {
      const ssize_t count = ::recv(socket_.get(), buffer.data(), buffer.size(), MSG_DONTWAIT);
      if (count < 0 && errno == EINTR) continue;
      if (count < 0 && errno == EAGAIN) return;
      if (count < 0) return break_off("recv: " + std::generic_category().message(errno));
      if (count == 0) return break_off("it closed the connection");
      input_.append(buffer.data(), static_cast<std::size_t>(count));
      take_replies();
      if (static_cast<std::size_t>(count) < buffer.size()) return;
    }
  }

  void take_replies() {
    std::size_t used = 0;
    try {
      while (const auto body = job::first_frame(std::string_view(input_).substr(used))) {
        const StoreReply reply = job::decode_reply(*body);
        used += job::frame_header_bytes + body->size();
        const auto slot = answers_.find(reply.id);
        if (slot == answers_.end()) continue;
        slot->second = Answer{reply.kind, std::string(reply.bytes), reply.number, reply.fault};
      }
    } catch (const Error&) {
      break_off("it broke the protocol");
    }
    input_.erase(0, used);
  }

  const std::string server_;
  const std::chrono::milliseconds timeout_;
  const FileDescriptor socket_;
  const FileDescriptor wake_;

  std::mutex mutex_;  // Guards the members below, and the socket.
  std::condition_variable changed_;
  bool polling_ = false;
  std::string broken_;  // Why the server is lost.
  std::string input_;
  std::string output_;
  std::uint64_t next_id_ = 1;
  std::map<std::uint64_t, std::optional<Answer>> answers_;
};

TcpStore::TcpStore(const TcpStoreOptions& options)
    : connection_(std::make_unique<Connection>(options)) {}

TcpStore::~TcpStore() = default;

void TcpStore::set(std::string_view key, std::string_view value) {
  require_store_key(key);
  require_store_value(key, value);
  connection_->call({.kind = StoreRequest::Kind::set, .key = key, .value = value}, "store.set");
}

std::optional<std::string> TcpStore::find(std::string_view key) {
  require_store_key(key);
  auto answer = connection_->call({.kind = StoreRequest::Kind::find, .key = key}, "store.find");
  if (answer.kind == StoreReply::Kind::absent) return std::nullopt;
  return std::move(answer.bytes);
}

std::string TcpStore::wait(std::string_view key, Deadline deadline) {
  require_store_key(key);
  const auto start = Clock::now();
  const auto ask = [&](StoreRequest::Kind kind, Deadline until) {
    constexpr std::string_view what = "store.wait";
    const auto answer = connection_->call({.kind = kind, .key = key}, what, until);
    return answer ? std::optional(connection_->checked(*answer, what)) : std::nullopt;
  };
  std::optional<Connection::Answer> answer;
  if (deadline > start) answer = ask(StoreRequest::Kind::wait, deadline);
  // An existing value counts even if the reply is late.
  if (!answer) answer = ask(StoreRequest::Kind::find, in(last_answer));
  if (!answer || answer->kind != StoreReply::Kind::value) job::throw_wait_timeout(key, start);
  return std::move(answer->bytes);
}

std::int64_t TcpStore::add(std::string_view key, std::int64_t amount) {
  require_store_key(key);
  return connection_
      ->call({.kind = StoreRequest::Kind::add, .key = key, .amount = amount}, "store.add")
      .number;
}

std::string TcpStore::compare_set(std::string_view key, std::string_view expected,
                                  std::string_view desired) {
  require_store_key(key);
  require_store_value(key, expected);
  require_store_value(key, desired);
  return connection_
      ->call({.kind = StoreRequest::Kind::compare_set,
              .key = key,
              .value = desired,
              .expected = expected},
             "store.compare_set")
      .bytes;
}

bool TcpStore::erase(std::string_view key) {
  require_store_key(key);
  return connection_->call({.kind = StoreRequest::Kind::erase, .key = key}, "store.erase").kind ==
         StoreReply::Kind::done;
}

}  // namespace lockstep

// SPDX-License-Identifier: Apache-2.0
#include "lockstep/job/store/door.h"

#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <iterator>

#include "lockstep/base/poll_entries.h"
#include "lockstep/job/store/socket_address.h"

namespace lockstep {
namespace {

constexpr std::size_t max_strangers = 64;
constexpr std::chrono::seconds handshake_limit{5};
constexpr std::chrono::milliseconds accept_pause{100};  // Pause when there is no descriptor left.

bool send_at_once(int socket, const std::string& bytes) {
  return ::send(socket, bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT) ==
         static_cast<ssize_t>(bytes.size());
}

}  // namespace

Door::Door(FileDescriptor listener, Options options)
    : listener_(std::move(listener)), options_(std::move(options)) {}

void Door::watch(std::vector<pollfd>& entries) const {
  if (Clock::now() >= accept_again_) entries.push_back({listener_.get(), POLLIN, 0});
  for (const Stranger& stranger : strangers_) entries.push_back({stranger.socket.get(), POLLIN, 0});
}

Deadline Door::deadline() const {
  Deadline first = Clock::now() < accept_again_ ? accept_again_ : no_deadline;
  for (const Stranger& stranger : strangers_) first = std::min(first, stranger.deadline);
  return first;
}

std::vector<Door::Arrival> Door::serve(const std::vector<pollfd>& entries, Clock::time_point now) {
  std::vector<Arrival> arrived;
  std::erase_if(strangers_, [&](Stranger& stranger) {
    if (events_of(entries, stranger.socket.get()) == 0) return now >= stranger.deadline;
    const Progress progress = hear(stranger);
    if (progress == Progress::is_in)
      arrived.push_back({std::move(stranger.socket), std::move(stranger.member)});
    if (progress == Progress::is_out)
      log_.warn(options_.name + ": closed a connection: it did not prove this job's token and id");
    return progress != Progress::waits;
  });
  if (events_of(entries, listener_.get()) != 0) accept_some(now);
  return arrived;
}

void Door::accept_some(Clock::time_point now) {
  constexpr int at_a_time = 32;
  for (int i = 0; i < at_a_time; ++i) {
    FileDescriptor socket(
        ::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (socket) {
      welcome(std::move(socket), now);
    } else if (errno != ECONNABORTED && errno != EINTR) {
      if (errno != EAGAIN) accept_again_ = now + accept_pause;
      return;
    }
  }
}

void Door::welcome(FileDescriptor socket, Clock::time_point now) {
  if (strangers_.size() == max_strangers)  // Drops a random one, so that no stranger can crowd out
                                           // all others.
    strangers_.erase(std::next(strangers_.begin(), random_() % max_strangers));
  tune_stream(socket.get());
  ServerHandshake handshake(options_.job, options_.token, make_nonce(), options_.channel);
  if (!send_at_once(socket.get(), handshake.challenge())) return;
  strangers_.push_back({std::move(socket), std::move(handshake), "", now + handshake_limit});
}

Door::Progress Door::hear(Stranger& stranger) {
  std::array<char, hello_bytes> bytes{};
  const std::size_t wanted = hello_bytes - stranger.hello.size();
  const ssize_t count = ::recv(stranger.socket.get(), bytes.data(), wanted, MSG_DONTWAIT);
  if (count < 0 && (errno == EAGAIN || errno == EINTR)) return Progress::waits;
  if (count <= 0) return Progress::is_out;
  stranger.hello.append(bytes.data(), static_cast<std::size_t>(count));
  if (stranger.hello.size() < hello_bytes) return Progress::waits;
  const auto answer = stranger.handshake.answer(stranger.hello, options_.holder_of);
  stranger.member = answer.member;
  const bool sent = send_at_once(stranger.socket.get(), answer.frame);
  return sent && answer.verdict == Verdict::accepted ? Progress::is_in : Progress::is_out;
}

}  // namespace lockstep

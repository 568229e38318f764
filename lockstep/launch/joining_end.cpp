// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <system_error>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/base/file_descriptor.h"
#include "lockstep/base/processes.h"
#include "lockstep/base/text.h"
#include "lockstep/job/store/handshake.h"
#include "lockstep/job/store/tcp_socket.h"
#include "lockstep/launch/agent_link.h"
#include "lockstep/launch/rendezvous_end.h"

namespace lockstep {
namespace {

constexpr std::chrono::seconds attempt_limit{6};  // Longer than the other end's own limit.
// Limit for a launcher on this host, which answers at once.
constexpr std::chrono::seconds neighbour_limit{2};
// After so many closes in a row, the neighbour is not a launcher.
constexpr int neighbours_closes = 5;
constexpr std::chrono::milliseconds retry_pause{200};

class JoiningEnd final : public RendezvousEnd {
 public:
  JoiningEnd(const RunOptions& options, const std::optional<JobToken>& token,
             const Endpoint& endpoint, bool taken_here)
      : token_(token),
        endpoint_(endpoint),
        server_(to_text(endpoint.host, endpoint.port)),
        taken_here_(taken_here),
        hosts_(options.hosts),
        nproc_(options.nproc_per_node),
        command_(job_command(options)),
        give_up_at_(in(options.hosts.join_timeout)) {}

  void report(int attempt, Outcome outcome, int exit_code,
              const std::optional<Failure>& failure) override;
  void all_gone(int attempt) override {
    if (link_) link_->send(AllGoneFrame{attempt});
  }
  void watch(std::vector<pollfd>& entries) const override;
  Deadline deadline() const override;
  void serve(const std::vector<pollfd>& entries) override;
  std::vector<Order> take_orders() override { return std::exchange(orders_, {}); }
  bool flushed() const override { return !link_ || !link_->pending(); }
  std::string state() const override;

 private:
  enum class Phase { pausing, connecting, challenge, verdict, joined, over };

  // Steps of one attempt to join; step() goes through its phases.
  const SocketAddress& address() const { return endpoint_.addresses[next_]; }
  void connect(Clock::time_point now);
  void advance(const std::vector<pollfd>& entries, Clock::time_point now);
  std::optional<std::string> receive(std::size_t count, Clock::time_point now);
  void shake_hands(Clock::time_point now);
  void retry(const std::string& why, Clock::time_point now);
  void give_up(int exit_code, const std::string& why);
  std::string in_use() const;

  void follow(const std::vector<pollfd>& entries, Clock::time_point now);
  void hear(AgentFrame frame);

  const std::optional<JobToken> token_;
  const Endpoint endpoint_;
  const std::string server_;
  const bool taken_here_;
  const Hosts hosts_;
  const int nproc_;
  const JobCommand command_;
  const Deadline give_up_at_;

  Phase phase_ = Phase::pausing;
  std::size_t next_ = 0;  // Index of the next address.
  FileDescriptor socket_;
  std::optional<ClientHandshake> handshake_;
  std::string input_;
  // Time to begin the next attempt, or to give up the current one.
  Deadline step_at_ = Clock::now();
  int closes_ = 0;
  std::string why_ = "no time was left";

  std::optional<AgentLink> link_;
  std::string coordinator_;  // Name of the host; empty until it is received.
  std::string state_ = "waiting for the job's other hosts";
  std::vector<Order> orders_;
  OwnPulse pulse_{Clock::now()};
};

void JoiningEnd::report(int attempt, Outcome outcome, int exit_code,
                        const std::optional<Failure>& failure) {
  if (link_) return link_->send(ReportFrame{attempt, outcome, exit_code, failure});
  if (phase_ != Phase::over && (outcome == Outcome::stopped || outcome == Outcome::left))
    give_up(exit_code, "stopped before the job began");
}

void JoiningEnd::watch(std::vector<pollfd>& entries) const {
  if (link_) return link_->watch(entries);
  if (!socket_) return;
  entries.push_back(
      {socket_.get(), static_cast<short>(phase_ == Phase::connecting ? POLLOUT : POLLIN), 0});
}

Deadline JoiningEnd::deadline() const {
  if (!orders_.empty()) return Clock::now();
  if (phase_ == Phase::over) return no_deadline;
  if (link_) return std::min(link_->deadline(), Clock::now() + AgentLink::pulse);
  return std::min(give_up_at_, step_at_);
}

void JoiningEnd::serve(const std::vector<pollfd>& entries) {
  const auto now = Clock::now();
  const bool stopped = pulse_.missed(now);
  if (link_) {
    if (stopped) link_->forgive(now);
    follow(entries, now);
  } else if (phase_ != Phase::over) {
    try {
      advance(entries, now);
    } catch (const Error& error) {
      if (error.fault() != Fault::misuse && error.fault() != Fault::corrupt) throw;
      give_up(error.fault() == Fault::corrupt && !taken_here_ ? exit_corrupt : exit_usage,
              fmt::format("the launcher at {}: {}{}", server_, bare_text(error),
                          taken_here_ ? "; " + in_use() : ""));
    }
  }
}

void JoiningEnd::advance(const std::vector<pollfd>& entries, Clock::time_point now) {
  if (now >= give_up_at_)
    return give_up(exit_unavailable,
                   fmt::format("no launcher of the job answered at {} within {:g} s: {}", server_,
                               std::chrono::duration<double>(hosts_.join_timeout).count(), why_));
  if (phase_ == Phase::pausing) {
    if (now >= step_at_) connect(now);
    return;
  }
  if (events_of(entries, socket_.get()) == 0) {
    if (now < step_at_) return;
    if (taken_here_) return give_up(exit_usage, in_use());
    return retry("it takes connections but says nothing", now);
  }
  if (phase_ != Phase::connecting) return shake_hands(now);
  const std::string problem = finish_connecting(socket_.get(), address());
  if (!problem.empty()) return retry(problem, now);
  handshake_.emplace(JobMember{.job_id = hosts_.id}, token_, make_nonce(), Channel::agents);
  phase_ = Phase::challenge;
}

void JoiningEnd::connect(Clock::time_point now) {
  step_at_ = now + (taken_here_ ? neighbour_limit : attempt_limit);
  socket_ = begin_connecting(address());
  if (!socket_) return retry(std::generic_category().message(errno), now);
  input_.clear();
  phase_ = Phase::connecting;
}

void JoiningEnd::shake_hands(Clock::time_point now) {
  const bool challenged = phase_ == Phase::challenge;
  const auto frame = receive(challenged ? challenge_bytes : verdict_bytes, now);
  if (!frame) return;
  if (challenged) {
    const std::string hello = handshake_->hello(*frame);
    if (::send(socket_.get(), hello.data(), hello.size(), MSG_NOSIGNAL | MSG_DONTWAIT) !=
        static_cast<ssize_t>(hello.size()))  // Much less than a new socket's buffer.
      return retry("it closed the connection during the handshake", now);
    phase_ = Phase::verdict;
    closes_ = 0;
    return;
  }
  handshake_->confirm(*frame);
  phase_ = Phase::joined;
  link_.emplace(std::move(socket_), now);
  link_->send(JoinFrame{.newcomer = {.host = host_name(),
                                     .nproc = nproc_,
                                     .node_rank = hosts_.node_rank,
                                     .least = hosts_.least,
                                     .most = hosts_.most},
                        .command = command_});
}

// Returns the next frame of the handshake once it is complete.
std::optional<std::string> JoiningEnd::receive(std::size_t count, Clock::time_point now) {
  std::array<char, verdict_bytes> bytes{};
  const ssize_t part = ::recv(socket_.get(), bytes.data(), count - input_.size(), MSG_DONTWAIT);
  if (part < 0 && (errno == EAGAIN || errno == EINTR)) return std::nullopt;
  if (part <= 0) {
    if (taken_here_ && ++closes_ == neighbours_closes)
      give_up(exit_usage, in_use());
    else
      retry("it closed the connection during the handshake", now);
    return std::nullopt;
  }
  input_.append(bytes.data(), static_cast<std::size_t>(part));
  if (input_.size() < count) return std::nullopt;
  return std::exchange(input_, {});
}

// A pause follows the last address.
void JoiningEnd::retry(const std::string& why, Clock::time_point now) {
  why_ = why;
  socket_ = FileDescriptor();
  phase_ = Phase::pausing;
  next_ = (next_ + 1) % endpoint_.addresses.size();
  step_at_ = next_ == 0 ? now + retry_pause : now;
}

void JoiningEnd::give_up(int exit_code, const std::string& why) {
  phase_ = Phase::over;
  socket_ = FileDescriptor();
  link_.reset();
  orders_.push_back(EndJob{exit_code, why, std::nullopt});
}

std::string JoiningEnd::in_use() const {
  return fmt::format("port {} of this host is in use, by {}, which is no launcher of job '{}'",
                     endpoint_.port, describe_port_holder(endpoint_.port), hosts_.id);
}

void JoiningEnd::follow(const std::vector<pollfd>& entries, Clock::time_point now) {
  bool open = false;
  try {
    open = link_->serve(entries, now);
    while (auto frame = link_ ? link_->receive() : std::nullopt) hear(std::move(*frame));
  } catch (const Error& error) {
    if (error.fault() != Fault::corrupt) throw;
    open = false;
  }
  if (!link_) return;
  link_->beat(now);
  if (!open || link_->silent(now))
    give_up(exit_unavailable, fmt::format("lost host {}, which holds the store",
                                          coordinator_.empty() ? endpoint_.host : coordinator_));
}

void JoiningEnd::hear(AgentFrame frame) {
  if (auto* state = std::get_if<StateFrame>(&frame)) {
    coordinator_ = std::move(state->coordinator);
    state_ = std::move(state->text);
    if (state->pause.count() > 0) orders_.push_back(StartLater{state->pause});
  } else if (auto* start = std::get_if<StartRanks>(&frame)) {
    orders_.push_back(std::move(*start));
  } else if (auto* end = std::get_if<EndRanks>(&frame)) {
    orders_.push_back(std::move(*end));
  } else if (auto* over = std::get_if<EndJob>(&frame)) {
    phase_ = Phase::over;
    link_.reset();  // The other end waits for the close.
    orders_.push_back(std::move(*over));
  } else if (!std::holds_alternative<AliveFrame>(frame)) {
    throw Error(Fault::corrupt, "a frame that only the coordinating host gets");
  }
}

std::string JoiningEnd::state() const {
  if (phase_ == Phase::over) return "ended";
  return link_ ? state_ : fmt::format("waiting for the launcher at {}", server_);
}

}  // namespace

std::unique_ptr<RendezvousEnd> make_joining_end(const RunOptions& options,
                                                const std::optional<JobToken>& token,
                                                const Endpoint& endpoint, bool taken_here) {
  return std::make_unique<JoiningEnd>(options, token, endpoint, taken_here);
}

}  // namespace lockstep

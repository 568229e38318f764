// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <system_error>
#include <utility>
#include <variant>

#include "lockstep/base/error.h"
#include "lockstep/base/file_descriptor.h"
#include "lockstep/base/processes.h"
#include "lockstep/base/text.h"
#include "lockstep/job/store/handshake.h"
#include "lockstep/job/store/tcp_socket.h"
#include "lockstep/launch/agent_link.h"
#include "lockstep/launch/coordinator.h"
#include "lockstep/launch/rendezvous_end.h"

namespace lockstep::launch {
namespace {

constexpr std::chrono::seconds attempt_limit{6};  // Longer than the other end's limit.
// On this host, a launcher responds at once, unless it stands still.
constexpr std::chrono::seconds neighbour_limit{5};
// After this many consecutive closes, this host's process is no launcher.
constexpr int neighbours_closes = 5;
constexpr std::chrono::milliseconds retry_pause{200};

class Search {
 public:
  Search(const RunOptions& options, const std::optional<JobToken>& token, const Endpoint& endpoint,
         bool taken_here)
      : token_(token),
        endpoint_(endpoint),
        server_(to_text(endpoint.host, endpoint.port)),
        taken_here_(taken_here),
        job_id_(options.hosts.id),
        join_timeout_(options.hosts.join_timeout),
        join_deadline_(in(join_timeout_)) {}

  const std::string& server() const { return server_; }

  void watch(std::vector<pollfd>& entries) const;
  Deadline deadline() const { return std::min(join_deadline_, step_at_); }

  // The connection, once the launcher has admitted this one, or why the search failed. Do not call
  // it after either.
  using Result = std::variant<std::monostate, FileDescriptor, EndJob>;
  Result serve(const std::vector<pollfd>& entries, Clock::time_point now);

 private:
  enum class Phase { pausing, connecting, challenge, verdict };

  const SocketAddress& address() const { return endpoint_.addresses[next_]; }
  Result advance(const std::vector<pollfd>& entries, Clock::time_point now);
  bool has_events() const;
  void connect(Clock::time_point now);
  Result shake_hands(Clock::time_point now);
  void retry(const std::string& why, Clock::time_point now);
  EndJob not_a_launcher() const;
  std::string in_use() const;

  const std::optional<JobToken> token_;
  const Endpoint endpoint_;
  const std::string server_;
  const bool taken_here_;
  const std::string job_id_;
  const std::chrono::milliseconds join_timeout_;
  const Deadline join_deadline_;

  Phase phase_ = Phase::pausing;
  std::size_t next_ = 0;
  FileDescriptor socket_;
  std::optional<ClientHandshake> handshake_;
  std::string input_;
  // When to begin the next attempt or abort the current one.
  Deadline step_at_ = Clock::now();
  int closes_ = 0;
  std::string why_ = "no time was left";
};

void Search::watch(std::vector<pollfd>& entries) const {
  if (!socket_) return;
  entries.push_back(
      {socket_.get(), static_cast<short>(phase_ == Phase::connecting ? POLLOUT : POLLIN), 0});
}

Search::Result Search::serve(const std::vector<pollfd>& entries, Clock::time_point now) {
  try {
    return advance(entries, now);
  } catch (const Error& error) {
    if (error.fault() != Fault::misuse && error.fault() != Fault::corrupt) throw;
    return EndJob{error.fault() == Fault::corrupt && !taken_here_ ? exit_corrupt : exit_usage,
                  fmt::format("the launcher at {}: {}{}", server_, bare_text(error),
                              taken_here_ ? "; " + in_use() : ""),
                  std::nullopt};
  }
}

Search::Result Search::advance(const std::vector<pollfd>& entries, Clock::time_point now) {
  if (now >= join_deadline_)
    return EndJob{exit_unavailable,
                  fmt::format("no launcher of the job answered at {} within {:g} s: {}", server_,
                              std::chrono::duration<double>(join_timeout_).count(), why_),
                  std::nullopt};
  if (phase_ == Phase::pausing) {
    if (now >= step_at_) connect(now);
    return {};
  }
  if (events_of(entries, socket_.get()) == 0) {
    if (now < step_at_ || has_events()) return {};
    if (taken_here_) return not_a_launcher();
    retry("it accepts connections but sends nothing", now);
    return {};
  }
  if (phase_ != Phase::connecting) return shake_hands(now);
  if (const std::string problem = finish_connecting(socket_.get(), address()); !problem.empty()) {
    retry(problem, now);
    return {};
  }
  handshake_.emplace(JobMember{.job_id = job_id_}, token_, make_nonce(), Channel::agents);
  phase_ = Phase::challenge;
  return {};
}

// Events may have come while this process stood still.
bool Search::has_events() const {
  std::vector<pollfd> entries;
  watch(entries);
  return ::poll(entries.data(), entries.size(), 0) > 0;
}

void Search::connect(Clock::time_point now) {
  step_at_ = now + (taken_here_ ? neighbour_limit : attempt_limit);
  socket_ = begin_connecting(address());
  if (!socket_) return retry("connect: " + std::generic_category().message(errno), now);
  input_.clear();
  phase_ = Phase::connecting;
}

Search::Result Search::shake_hands(Clock::time_point now) {
  const bool challenged = phase_ == Phase::challenge;
  const std::size_t wanted = challenged ? challenge_bytes : verdict_bytes;
  std::array<char, verdict_bytes> bytes{};
  const ssize_t part = ::recv(socket_.get(), bytes.data(), wanted - input_.size(), MSG_DONTWAIT);
  if (part < 0 && (errno == EAGAIN || errno == EINTR)) return {};
  if (part <= 0) {
    if (taken_here_ && ++closes_ == neighbours_closes) return not_a_launcher();
    retry("it closed the connection during the handshake", now);
    return {};
  }
  input_.append(bytes.data(), static_cast<std::size_t>(part));
  if (input_.size() < wanted) return {};
  const std::string frame = std::exchange(input_, {});
  if (!challenged) {
    handshake_->confirm(frame);
    return std::move(socket_);
  }
  const std::string hello = handshake_->hello(frame);
  if (::send(socket_.get(), hello.data(), hello.size(), MSG_NOSIGNAL | MSG_DONTWAIT) !=
      static_cast<ssize_t>(hello.size())) {  // Fits a new socket's buffer.
    retry("it closed the connection during the handshake", now);
    return {};
  }
  phase_ = Phase::verdict;
  closes_ = 0;
  return {};
}

void Search::retry(const std::string& why, Clock::time_point now) {
  why_ = why;
  socket_ = FileDescriptor();
  phase_ = Phase::pausing;
  next_ = (next_ + 1) % endpoint_.addresses.size();
  step_at_ = next_ == 0 ? now + retry_pause : now;
}

EndJob Search::not_a_launcher() const { return {exit_usage, in_use(), std::nullopt}; }

std::string Search::in_use() const {
  return fmt::format(
      "port {} of this host is in use; caused by {}, which is not a launcher of "
      "job '{}'; to do: choose another port for --rdzv-endpoint, or end that process",
      endpoint_.port, describe_port_holder(endpoint_.port), job_id_);
}

class JoiningEnd final : public Rendezvous {
 public:
  JoiningEnd(const RunOptions& options, const std::optional<JobToken>& token,
             const Endpoint& endpoint, bool taken_here)
      : Rendezvous(token),
        node_{.host = host_name(),
              .nproc = options.nproc_per_node,
              .node_rank = options.hosts.node_rank,
              .least = options.hosts.least,
              .most = options.hosts.most},
        command_(job_command(options)),
        search_(std::in_place, options, token, endpoint, taken_here),
        coordinator_(endpoint.host) {}

  void report(int attempt, Outcome outcome, int exit_code,
              const std::optional<Failure>& failure) override;
  void tell_times(std::vector<RankTimes> times) override { times_ = std::move(times); }
  std::vector<RankTimes> times() const override { return {}; }
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
  void join(FileDescriptor socket, Clock::time_point now);
  void follow(const std::vector<pollfd>& entries, Clock::time_point now);
  void hear(AgentFrame frame);
  void finish(EndJob order);

  const Coordinator::JoiningNode node_;
  const JobCommand command_;
  // Search, then link to the coordinator; neither after the job's end.
  std::optional<Search> search_;
  std::optional<AgentLink> link_;
  std::string coordinator_;  // Its host's name; at first the endpoint's.
  std::string state_ = "waiting for the job's other hosts";
  std::vector<RankTimes> times_;
  std::vector<Order> orders_;
  OwnPulse pulse_{Clock::now()};
};

void JoiningEnd::report(int attempt, Outcome outcome, int exit_code,
                        const std::optional<Failure>& failure) {
  const std::vector<RankTimes> times = std::exchange(times_, {});
  if (link_) return link_->send(ReportFrame{attempt, outcome, exit_code, failure, times});
  if (search_ && (outcome == Outcome::stopped || outcome == Outcome::left))
    finish({exit_code, "stopped before the job began", std::nullopt});
}

void JoiningEnd::watch(std::vector<pollfd>& entries) const {
  if (link_) link_->watch(entries);
  if (search_) search_->watch(entries);
}

Deadline JoiningEnd::deadline() const {
  if (!orders_.empty()) return Clock::now();
  if (link_) return std::min(link_->deadline(), Clock::now() + AgentLink::pulse);
  return search_ ? search_->deadline() : no_deadline;
}

void JoiningEnd::serve(const std::vector<pollfd>& entries) {
  const auto now = Clock::now();
  const bool stopped = pulse_.missed(now);
  if (link_) {
    if (stopped) link_->forgive(now);
    follow(entries, now);
  } else if (search_) {
    Search::Result result = search_->serve(entries, now);
    if (auto* socket = std::get_if<FileDescriptor>(&result)) join(std::move(*socket), now);
    if (auto* failed = std::get_if<EndJob>(&result)) finish(std::move(*failed));
  }
}

void JoiningEnd::join(FileDescriptor socket, Clock::time_point now) {
  search_.reset();
  link_.emplace(std::move(socket), now);
  link_->send(JoinFrame{.node = node_, .command = command_});
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
    finish({exit_unavailable, fmt::format("lost host {}, which holds the store", coordinator_),
            std::nullopt});
}

void JoiningEnd::hear(AgentFrame frame) {
  if (auto* state = std::get_if<StateFrame>(&frame)) {
    if (!state->coordinator.empty()) coordinator_ = std::move(state->coordinator);
    state_ = std::move(state->text);
    if (state->pause.count() > 0) orders_.push_back(StartLater{state->pause});
  } else if (auto* start = std::get_if<StartRanks>(&frame)) {
    orders_.push_back(std::move(*start));
  } else if (auto* end = std::get_if<EndRanks>(&frame)) {
    orders_.push_back(std::move(*end));
  } else if (auto* over = std::get_if<EndJob>(&frame)) {
    finish(std::move(*over));
  } else if (!std::holds_alternative<AliveFrame>(frame)) {
    throw Error(Fault::corrupt, "a frame that only the coordinating host gets");
  }
}

// Closes the connection, for which the other end waits.
void JoiningEnd::finish(EndJob order) {
  search_.reset();
  link_.reset();
  orders_.push_back(std::move(order));
}

std::string JoiningEnd::state() const {
  if (search_) return fmt::format("waiting for the launcher at {}", search_->server());
  return link_ ? state_ : "ended";
}

}  // namespace

std::unique_ptr<Rendezvous> make_joining_end(const RunOptions& options,
                                             const std::optional<JobToken>& token,
                                             const Endpoint& endpoint, bool taken_here) {
  return std::make_unique<JoiningEnd>(options, token, endpoint, taken_here);
}

}  // namespace lockstep::launch

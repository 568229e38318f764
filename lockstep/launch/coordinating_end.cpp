// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <sys/socket.h>

#include <algorithm>
#include <map>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/base/log.h"
#include "lockstep/base/processes.h"
#include "lockstep/job/store/admission.h"
#include "lockstep/job/store/tcp_store.h"
#include "lockstep/launch/agent_link.h"
#include "lockstep/launch/coordinator.h"
#include "lockstep/launch/rendezvous.h"
#include "lockstep/launch/rendezvous_end.h"

namespace lockstep::launch {
namespace {

// A user may give two jobs on one host the same id.
std::string unique_id(const std::string& id) {
  return id.empty() ? random_job_id() : fmt::format("{}.{}", id, random_job_id());
}

std::string without_port(const SocketAddress& address) {
  std::string text = to_text(address);
  text.erase(text.rfind(':'));
  return text.starts_with('[') ? text.substr(1, text.size() - 2) : text;
}

Coordinator::JoiningNode joining_node_of(const RunOptions& options) {
  return {.host = host_name(),
          .nproc = options.nproc_per_node,
          .node_rank = 0,
          .least = options.hosts.least,
          .most = options.hosts.most};
}

class CoordinatingEnd final : public Rendezvous {
 public:
  // `address` is numeric; `host` is its name for other hosts.
  CoordinatingEnd(const RunOptions& options, const std::optional<JobToken>& token,
                  std::string address, std::string host)
      : Rendezvous(token),
        master_port_(options.hosts.most == 1 ? options.hosts.master_port : 0),
        host_(std::move(host)),
        address_(std::move(address)),
        command_(job_command(options)),
        rules_{unique_id(options.hosts.id), options.hosts, options.max_restarts,
               options.max_restart_delay, options.on_failure == OnFailure::continue_without},
        coordinator_(rules_, Clock::now()) {
    coordinator_.join(0, joining_node_of(options), Clock::now());
    dispatch();  // A single host starts at once.
  }

  void open(FileDescriptor listener) {
    // Not a temporary: GCC 12 warns falsely about the order of destruction.
    Door::Options options;
    options.job.job_id = rules_.hosts.id;
    options.token = token();
    options.name = "rendezvous";
    door_.emplace(std::move(listener), std::move(options));
  }

  void report(int attempt, Outcome outcome, int exit_code,
              const std::optional<Failure>& failure) override {
    coordinator_.report(0, attempt, outcome, exit_code, failure, Clock::now());
    dispatch();
  }
  void tell_times(std::vector<RankTimes> times) override { times_[0] = std::move(times); }
  std::vector<RankTimes> times() const override;
  void all_gone(int attempt) override {
    coordinator_.all_gone(0, attempt, Clock::now());
    dispatch();
  }
  void watch(std::vector<pollfd>& entries) const override;
  Deadline deadline() const override;
  void serve(const std::vector<pollfd>& entries) override;
  std::vector<Order> take_orders() override { return std::exchange(orders_, {}); }
  bool flushed() const override;
  std::string state() const override { return coordinator_.state(0); }

 private:
  using Id = Coordinator::Id;
  struct Member {
    AgentLink link;
    bool joined = false;
    bool dismissed = false;  // Has received the job's end; about to close.
    std::string state = {};
  };

  bool serve(Id id, Member& member, const std::vector<pollfd>& entries, Clock::time_point now);
  void hear(Id id, Member& member, const AgentFrame& frame, Clock::time_point now);
  std::optional<std::string> let_in(Id id, const JoinFrame& join, Clock::time_point now);
  std::optional<std::string> other_command(const JoinFrame& join) const;
  void dismiss(Member& member, const EndJob& end);
  void dispatch();
  void prepare(Round& round);
  void open_store(const Round& round);
  void tell_state(Id id, Member& member, std::chrono::milliseconds pause);
  void tell_states(Clock::time_point now);

  const int master_port_;
  const std::string host_;
  const std::string address_;
  const JobCommand command_;
  const Coordinator::Rules rules_;
  Coordinator coordinator_;
  std::optional<Door> door_;
  std::map<Id, Member> members_;
  Id next_id_ = 1;
  std::vector<Order> orders_;
  std::map<Id, std::vector<RankTimes>> times_;
  int attempt_ = -1;  // The attempt of `port_` and `store_`.
  std::optional<ReservedPort> port_;
  std::optional<TcpStoreServer> store_;
  Clock::time_point next_states_ = {};
  bool states_wait_ = false;  // For next_states_.
  OwnPulse pulse_{Clock::now()};
};

std::vector<RankTimes> CoordinatingEnd::times() const {
  std::vector<RankTimes> all;
  for (const auto& [id, times] : times_) all.insert(all.end(), times.begin(), times.end());
  return all;
}

void CoordinatingEnd::watch(std::vector<pollfd>& entries) const {
  if (door_) door_->watch(entries);
  for (const auto& [id, member] : members_) member.link.watch(entries);
}

Deadline CoordinatingEnd::deadline() const {
  if (!orders_.empty()) return Clock::now();
  Deadline first = coordinator_.deadline();
  if (!door_) return first;
  first = std::min({first, door_->deadline(), Clock::now() + AgentLink::pulse});
  for (const auto& [id, member] : members_) first = std::min(first, member.link.deadline());
  if (states_wait_) first = std::min(first, next_states_);
  return first;
}

void CoordinatingEnd::serve(const std::vector<pollfd>& entries) {
  const auto now = Clock::now();
  if (pulse_.missed(now))
    for (auto& [id, member] : members_) member.link.forgive(now);
  std::vector<Id> lost;
  for (auto& [id, member] : members_)
    if (!serve(id, member, entries, now)) lost.push_back(id);
  for (const Id id : lost) {
    members_.erase(id);
    coordinator_.lost(id, now);
  }
  if (door_)
    for (Door::Arrival& arrival : door_->serve(entries, now))
      members_.emplace(next_id_++, Member{AgentLink(std::move(arrival.socket), now)});
  coordinator_.tick(now);
  dispatch();
  tell_states(now);
}

// Members close after reading the job's end. If this end closed first, unread data could reset the
// connection and lose the message.
bool CoordinatingEnd::flushed() const {
  return std::none_of(members_.begin(), members_.end(), [](const auto& entry) {
    return entry.second.dismissed || entry.second.link.pending();
  });
}

// False when that host is lost.
bool CoordinatingEnd::serve(Id id, Member& member, const std::vector<pollfd>& entries,
                            Clock::time_point now) {
  try {
    const bool open = member.link.serve(entries, now);
    while (const auto frame = member.link.receive()) hear(id, member, *frame, now);
    if (!open) return false;
  } catch (const Error& error) {
    if (error.fault() != Fault::corrupt) throw;
    log(LogLevel::warning, "rendezvous: closed a host's connection: it broke the protocol");
    return false;
  }
  member.link.beat(now);
  if (!member.link.silent(now)) return true;
  dismiss(member,
          {exit_unavailable, "this host did not answer for 3 s and counts as lost", std::nullopt});
  return false;
}

void CoordinatingEnd::hear(Id id, Member& member, const AgentFrame& frame, Clock::time_point now) {
  if (member.dismissed || std::holds_alternative<AliveFrame>(frame)) return;
  const bool joins = std::holds_alternative<JoinFrame>(frame);
  if (joins == member.joined) throw Error(Fault::corrupt, "a frame at the wrong time");
  if (joins) {
    if (const auto refusal = let_in(id, std::get<JoinFrame>(frame), now)) {
      log(LogLevel::warning, fmt::format("rendezvous: turned a host away: {}", *refusal));
      return dismiss(member, {exit_usage, *refusal, std::nullopt});
    }
    member.joined = true;
  } else if (const auto* report = std::get_if<ReportFrame>(&frame)) {
    times_[id] = report->times;
    coordinator_.report(id, report->attempt, report->outcome, report->exit_code, report->failure,
                        now);
  } else if (const auto* gone = std::get_if<AllGoneFrame>(&frame)) {
    coordinator_.all_gone(id, gone->attempt, now);
  } else {
    throw Error(Fault::corrupt, "a frame that only the coordinating host sends");
  }
}

// As Coordinator::join().
std::optional<std::string> CoordinatingEnd::let_in(Id id, const JoinFrame& join,
                                                   Clock::time_point now) {
  if (const auto other = other_command(join)) {
    if (rules_.hosts.id == Hosts::unnamed)
      return fmt::format(
          "{}; two jobs need two endpoints, and hosts of one job that run different "
          "commands need the same --rdzv-id",
          *other);
    log(LogLevel::warning, "rendezvous: " + *other);
  }
  return coordinator_.join(id, join.node, now);
}

std::optional<std::string> CoordinatingEnd::other_command(const JoinFrame& join) const {
  const std::string& host = join.node.host;
  if (!join.command) {
    log(LogLevel::warning,
        fmt::format("rendezvous: host {} does not report what it runs: its launcher is of an older "
                    "version",
                    host));
    return std::nullopt;
  }
  const auto differing = difference(*join.command, command_);
  if (!differing) return std::nullopt;
  return fmt::format("host {} runs {}, but the job at {} runs {}", host, differing->here,
                     rules_.hosts.endpoint, differing->there);
}

void CoordinatingEnd::dismiss(Member& member, const EndJob& end) {
  member.link.send(end);
  member.dismissed = true;
}

void CoordinatingEnd::dispatch() {
  for (auto& [id, order] : coordinator_.take_orders()) {
    if (auto* start = std::get_if<StartRanks>(&order)) prepare(start->round);
    if (id == 0) {
      orders_.push_back(std::move(order));
      continue;
    }
    const auto found = members_.find(id);
    if (found == members_.end()) continue;
    Member& member = found->second;
    if (const auto* end = std::get_if<EndJob>(&order))
      dismiss(member, *end);
    else if (const auto* later = std::get_if<StartLater>(&order))
      tell_state(id, member, later->pause);
    else if (auto* ranks = std::get_if<EndRanks>(&order))
      member.link.send(std::move(*ranks));
    else
      member.link.send(std::move(std::get<StartRanks>(order)));
  }
}

// Each attempt has its own port and store: ranks of an earlier attempt find no peer.
void CoordinatingEnd::prepare(Round& round) {
  if (round.attempt != attempt_) {
    attempt_ = round.attempt;
    times_.clear();
    store_.reset();
    port_.reset();
    port_.emplace(address_, master_port_);
    if (round.nodes > 1 || rules_.survives) open_store(round);
  }
  round.master_addr = host_;
  round.master_port = port_->number();
  if (store_) round.store = to_text(host_, store_->port());
}

void CoordinatingEnd::open_store(const Round& round) {
  TcpStoreServerOptions options;
  options.address = address_;
  options.job.job_id = round.job_id;
  options.job.world_size = round.world_size;
  options.job.attempt = round.attempt;
  options.token = token();
  store_.emplace(options);
}

void CoordinatingEnd::tell_states(Clock::time_point now) {
  states_wait_ = now < next_states_;
  if (states_wait_) return;
  next_states_ = now + pause_between_states(members_.size());
  const int hosts = coordinator_.taking_part();
  for (auto& [id, member] : members_) {
    if (!member.joined || member.dismissed || coordinator_.state(id, hosts) == member.state)
      continue;
    tell_state(id, member, std::chrono::milliseconds(0));
  }
}

void CoordinatingEnd::tell_state(Id id, Member& member, std::chrono::milliseconds pause) {
  member.state = coordinator_.state(id);
  member.link.send(StateFrame{host_name(), member.state, pause});
}

}  // namespace

std::unique_ptr<Rendezvous> make_single_end(const RunOptions& options,
                                            const std::optional<JobToken>& token) {
  // Ranks get the token from their agent; other users of this host lack it.
  const bool has_store = options.on_failure == OnFailure::continue_without;
  const std::optional<JobToken> own = has_store && !token ? make_job_token() : token;
  return std::make_unique<CoordinatingEnd>(options, own, "127.0.0.1", "127.0.0.1");
}

std::unique_ptr<Rendezvous> make_coordinating_end(const RunOptions& options,
                                                  const std::optional<JobToken>& token,
                                                  const Endpoint& endpoint,
                                                  const SocketAddress& address,
                                                  FileDescriptor listener) {
  auto end =
      std::make_unique<CoordinatingEnd>(options, token, without_port(address), endpoint.host);
  end->open(std::move(listener));
  return end;
}

}  // namespace lockstep::launch

// SPDX-License-Identifier: Apache-2.0
#include "tests/simulation/simulated_store.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "lockstep/base/error.h"
#include "tests/simulation/mutants.h"

namespace lockstep::simulation {
namespace {

using Ask = job::StoreRequest::Kind;
using Reply = job::StoreReply::Kind;

constexpr Duration service_time = std::chrono::microseconds(2);  // The server's, per request.
constexpr std::chrono::seconds last_answer{1};                   // As TcpStore's.

bool changes(Ask kind) {
  return kind == Ask::set || kind == Ask::add || kind == Ask::compare_set || kind == Ask::erase;
}

}  // namespace

// --- The server ----------------------------------------------------------------------------------

std::shared_ptr<SimulatedServer::Connection> SimulatedServer::connect(Process& process) {
  auto connection = std::make_shared<Connection>();
  connection->process = &process;
  connection->is_lost = has_ended_;
  connections_[static_cast<job::StoreService::Client>(process.id)] = connection;
  return connection;
}

Duration SimulatedServer::latency_of(Process& process) {
  const Link& link = this->link(process.host);
  const int slow = simulation_.now() < link.slow_until ? link.slowness : 1;
  const auto jitter = process.random.between(50, 200);  // Percent.
  return link.latency * slow * process.slowness * jitter / 100;
}

void SimulatedServer::send(const std::shared_ptr<Connection>& connection,
                           const job::StoreRequest& request) {
  Process& process = *connection->process;
  const Time left = std::max(simulation_.now(), link(process.host).to_store_cut_until);
  connection->last_request = std::max(connection->last_request, left + latency_of(process));
  simulation_.at(connection->last_request,
                 [this, connection, frame = encode(request)] { handle(connection, frame); });
}

// One request after the other.
void SimulatedServer::handle(const std::shared_ptr<Connection>& connection,
                             const std::string& frame) {
  if (connection->is_cut || has_ended_) return;
  busy_until_ = std::max(busy_until_, simulation_.now()) + service_time;
  const Process& process = *connection->process;
  const auto client = static_cast<job::StoreService::Client>(process.id);
  job::StoreRequest request = job::decode_request(*job::first_frame(frame));
  ++requests_;
  if (is_dropped(mutant_, request)) {
    deliver(client, encode(job::StoreReply{.kind = Reply::done, .id = request.id}));
    return;
  }
  const auto deliver_reply = [this](job::StoreService::Client to, const job::StoreFrame& reply) {
    deliver(to, reply.text());
  };
  std::string expected;
  std::string value;
  if (mutant_ != Mutant::none && request.kind == Ask::compare_set) {
    if (mutant_ == Mutant::compare_set_always_succeeds) {
      if (const job::StoreTable::Value now = service_.table().find(request.key)) expected = *now;
      request.expected = expected;
    }
    value = stored_value(mutant_, request, service_.table());
    request.value = value;
  }
  service_.handle(client, request, deliver_reply);
  const bool erases_newest = mutant_ == Mutant::newest_is_erased && request.kind == Ask::erase &&
                             request.key.find("/decision/") != std::string_view::npos;
  const std::string newest = std::string(prefix_of_entries) + "newest";
  if (erases_newest)
    service_.handle(client, {.kind = Ask::erase, .key = newest},
                    [](job::StoreService::Client, const job::StoreFrame&) {});
  if (changes(request.kind)) on_change_(process, request);
}

void SimulatedServer::deliver(job::StoreService::Client client, const std::string& frame) {
  const auto found = connections_.find(client);
  if (found == connections_.end()) return;
  const auto& connection = found->second;
  Process& process = *connection->process;
  const Time left = std::max(busy_until_, link(process.host).from_store_cut_until);
  connection->last_reply = std::max(connection->last_reply, left + latency_of(process));
  simulation_.at(connection->last_reply,
                 [this, connection, frame] { receive(*connection, frame); });
}

void SimulatedServer::receive(Connection& connection, const std::string& frame) {
  if (connection.is_lost) return;
  const job::StoreReply reply = job::decode_reply(*job::first_frame(frame));
  const auto found = connection.pending.find(reply.id);
  if (found == connection.pending.end()) return;
  found->second.answer = Answer{reply.kind, std::string(reply.bytes), reply.number, reply.fault};
  simulation_.wake(*found->second.task);
}

void SimulatedServer::lose(Connection& connection) {
  connection.is_lost = true;
  for (const auto& [id, pending] : connection.pending) simulation_.wake(*pending.task);
}

void SimulatedServer::lose_connection(int process) {
  const auto client = static_cast<job::StoreService::Client>(process);
  const auto found = connections_.find(client);
  if (found == connections_.end()) return;
  const auto connection = found->second;
  connection->is_cut = true;
  service_.forget(client);
  connections_.erase(found);
  simulation_.after(latency_of(*connection->process), [this, connection] { lose(*connection); });
}

void SimulatedServer::close_connection(int process) {
  const auto found = connections_.find(static_cast<job::StoreService::Client>(process));
  if (found == connections_.end()) return;
  simulation_.at(found->second->last_request, [this, process] { lose_connection(process); });
}

void SimulatedServer::end() {
  has_ended_ = true;
  while (!connections_.empty()) lose_connection(static_cast<int>(connections_.begin()->first));
}

// --- A client ------------------------------------------------------------------------------------

SimulatedStore::SimulatedStore(Simulation& simulation, SimulatedServer& server, Process& process,
                               std::chrono::milliseconds timeout)
    : simulation_(simulation),
      server_(server),
      timeout_(timeout),
      connection_(server.connect(process)) {}

// Empty at the deadline.
std::optional<SimulatedStore::Answer> SimulatedStore::ask(job::StoreRequest request,
                                                          std::string_view what,
                                                          Deadline deadline) {
  const auto throw_if_lost = [&] {
    if (connection_->is_lost)
      throw Error(Fault::peer_lost, fmt::format("{}: lost the store", what));
  };
  simulation_.point(what, entry_in(request.key).value_or(request.key));
  throw_if_lost();
  request.id = connection_->next_id++;
  connection_->pending[request.id].task = &simulation_.current();
  struct Forget {
    SimulatedServer::Connection& connection;
    std::uint64_t id;
    ~Forget() { connection.pending.erase(id); }
  } const forget{*connection_, request.id};
  server_.send(connection_, request);
  auto& answer = connection_->pending.at(request.id).answer;
  while (!answer && !connection_->is_lost && simulation_.now() < deadline)
    simulation_.await(deadline);
  if (answer) {
    simulation_.point("got an answer", entry_in(request.key).value_or(request.key));
    return answer;
  }
  throw_if_lost();
  if (request.kind == Ask::wait) server_.send(connection_, {.kind = Ask::cancel, .id = request.id});
  return std::nullopt;
}

SimulatedStore::Answer SimulatedStore::call(const job::StoreRequest& request,
                                            std::string_view what) {
  const auto answer = ask(request, what, simulation_.now() + timeout_);
  if (!answer)
    throw Error(Fault::timeout,
                fmt::format("{}: the store did not answer within {} ms", what, timeout_.count()));
  if (answer->kind == Reply::error) throw Error(answer->fault, answer->bytes);
  return *answer;
}

void SimulatedStore::set(std::string_view key, std::string_view value) {
  call({.kind = Ask::set, .key = key, .value = value}, "set");
}

std::optional<std::string> SimulatedStore::find(std::string_view key) {
  auto answer = call({.kind = Ask::find, .key = key}, "find");
  if (answer.kind == Reply::absent) return std::nullopt;
  return read_value(server_.mutant_, connection_->process->id, key, std::move(answer.bytes));
}

std::string SimulatedStore::wait(std::string_view key, Deadline deadline) {
  std::optional<Answer> answer;
  if (deadline > simulation_.now()) answer = ask({.kind = Ask::wait, .key = key}, "wait", deadline);
  if (!answer)
    answer = ask({.kind = Ask::find, .key = key}, "find", simulation_.now() + last_answer);
  if (!answer || answer->kind != Reply::value)
    throw Error(Fault::timeout, fmt::format("nobody set key {} in time", key));
  return read_value(server_.mutant_, connection_->process->id, key, std::move(answer->bytes));
}

std::int64_t SimulatedStore::add(std::string_view key, std::int64_t amount) {
  return call({.kind = Ask::add, .key = key, .amount = amount}, "add").number;
}

std::string SimulatedStore::compare_set(std::string_view key, std::string_view expected,
                                        std::string_view desired) {
  return call({.kind = Ask::compare_set, .key = key, .value = desired, .expected = expected},
              "compare_set")
      .bytes;
}

bool SimulatedStore::erase(std::string_view key) {
  return call({.kind = Ask::erase, .key = key}, "erase").kind == Reply::done;
}

}  // namespace lockstep::simulation

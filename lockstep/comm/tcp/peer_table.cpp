// SPDX-License-Identifier: Apache-2.0
#include "lockstep/comm/tcp/peer_table.h"

#include <fmt/format.h>

#include <algorithm>

#include "lockstep/base/time.h"
#include "lockstep/job/store/tcp_socket.h"

namespace lockstep::comm {
namespace {

using Kind = Frame::Kind;

constexpr std::chrono::milliseconds grace{200};  // Time for a rank of its host to report the cause.

}  // namespace

PeerTable::PeerTable(int me, int world_size)
    : me_(me), peers_(static_cast<std::size_t>(world_size)) {}

void PeerTable::expect(const std::vector<RemoteRank>& ranks) {
  const std::lock_guard lock(mutex_);
  for (const RemoteRank& remote : ranks) {
    require(remote.rank >= 0 && remote.rank < static_cast<int>(peers_.size()) && remote.rank != me_,
            "a connection leads to another rank of the job");
    at(remote.rank).remote = remote;
  }
}

bool PeerTable::await_all(Deadline deadline, const std::function<void()>& watch) {
  std::unique_lock lock(mutex_);
  const auto is_missing = [](const Peer& peer) { return peer.remote && !peer.up; };
  for (;;) {
    if (failed_) throw *failed_;
    for (std::size_t rank = 0; rank < peers_.size(); ++rank)
      if (peers_[rank].remote && peers_[rank].ended)
        throw Error("connecting ranks of different hosts", failure_of(static_cast<int>(rank)));
    if (std::none_of(peers_.begin(), peers_.end(), is_missing)) return true;
    if (Clock::now() >= deadline) return false;
    changed_.wait_until(lock, std::min(deadline, in(wait_slice)));
    lock.unlock();
    watch();
    lock.lock();
  }
}

void PeerTable::connect(int rank, std::shared_ptr<Connection> connection) {
  const std::lock_guard lock(mutex_);
  at(rank).connection = std::move(connection);
}

void PeerTable::refuse(int rank, const std::string& why) {
  const std::lock_guard lock(mutex_);
  at(rank).why = why;
}

void PeerTable::confirm(int rank, const Frame& frame) {
  const std::lock_guard lock(mutex_);
  Peer& peer = at(rank);
  if (peer.up || frame.kind != Kind::rank) throw Error(Fault::corrupt, "a frame at the wrong time");
  if (frame.number != static_cast<std::uint64_t>(rank))
    throw Error(Fault::corrupt, fmt::format("it is rank {}", frame.number));
  peer.up = true;
  peer.why.clear();
  changed_.notify_all();
}

bool PeerTable::has_connection(int rank) const {
  const std::lock_guard lock(mutex_);
  return at(rank).connection != nullptr;
}

bool PeerTable::is_up(int rank) const {
  const std::lock_guard lock(mutex_);
  return at(rank).up;
}

std::string PeerTable::why_not_up(int rank) const {
  const std::lock_guard lock(mutex_);
  return at(rank).why;
}

std::optional<std::string> PeerTable::holder_of(int rank) const {
  const std::lock_guard lock(mutex_);
  const Peer& peer = at(rank);
  if (!peer.up) return std::nullopt;
  return peer.ended ? "a process that has ended" : to_text(peer_address(peer.connection->socket()));
}

std::vector<std::pair<int, std::shared_ptr<Connection>>> PeerTable::open_connections() const {
  std::vector<std::pair<int, std::shared_ptr<Connection>>> connections;
  const std::lock_guard lock(mutex_);
  for (std::size_t rank = 0; rank < peers_.size(); ++rank)
    if (const Peer& peer = peers_[rank]; peer.connection && !peer.ended)
      connections.emplace_back(static_cast<int>(rank), peer.connection);
  return connections;
}

std::vector<std::shared_ptr<Connection>> PeerTable::lines_of(const std::vector<int>& ranks) const {
  std::vector<std::shared_ptr<Connection>> connections;
  const std::lock_guard lock(mutex_);
  for (const int rank : ranks)
    connections.push_back(peers_.at(static_cast<std::size_t>(rank)).connection);
  return connections;
}

void PeerTable::send_to_all(const Frame& frame) const {
  const std::lock_guard lock(mutex_);
  for (const Peer& peer : peers_)
    if (peer.connection) peer.connection->send(frame);
}

void PeerTable::finish() {
  send_to_all({.kind = Kind::finished});
  const std::lock_guard lock(mutex_);
  finished_ = true;
}

bool PeerTable::has_finished() const {
  const std::lock_guard lock(mutex_);
  return finished_;
}

void PeerTable::finish_peer(int rank) {
  const std::lock_guard lock(mutex_);
  at(rank).finished = true;
}

void PeerTable::end(int rank, const std::shared_ptr<Connection>& connection,
                    const std::string& why) {
  const std::lock_guard lock(mutex_);
  connection->close();
  Peer& peer = at(rank);
  if (peer.connection != connection) return;
  peer.why = why;
  if (!peer.up) {
    peer.connection = nullptr;
  } else {
    peer.ended = true;
    if (!peer.finished && !peer.reported) peer.report_at = in(grace);
  }
  changed_.notify_all();
}

void PeerTable::close_all() const {
  const std::lock_guard lock(mutex_);
  for (const Peer& peer : peers_)
    if (peer.connection) peer.connection->close();
}

bool PeerTable::note_failure_of(int rank) {
  const std::lock_guard lock(mutex_);
  Peer& lost = at(rank);
  if (rank == me_ || lost.reported) return false;
  lost.reported = true;
  lost.report_at = no_deadline;
  return true;
}

std::vector<Failure> PeerTable::take_losses(Clock::time_point now) {
  std::vector<Failure> failures;
  const std::lock_guard lock(mutex_);
  for (std::size_t rank = 0; rank < peers_.size(); ++rank) {
    Peer& peer = peers_[rank];
    if (now < peer.report_at || !peer.remote) continue;
    peer.report_at = no_deadline;
    if (finished_) continue;
    peer.reported = true;
    failures.push_back(failure_of(static_cast<int>(rank)));
  }
  return failures;
}

Deadline PeerTable::next_loss() const {
  Deadline first = no_deadline;
  const std::lock_guard lock(mutex_);
  for (const Peer& peer : peers_)
    if (peer.remote) first = std::min(first, peer.report_at);
  return first;
}

Failure PeerTable::failure_of(int rank) const {
  const Peer& peer = at(rank);
  return {.rank = rank,
          .host = peer.remote->host,
          .pid = peer.remote->pid,
          .connection = peer.why,
          .detected_by = me_};
}

void PeerTable::fail(const Error& error) {
  const std::lock_guard lock(mutex_);
  failed_ = error;
  changed_.notify_all();
}

}  // namespace lockstep::comm

// SPDX-License-Identifier: Apache-2.0
#include "tests/simulation/scale/store_host.h"

#include <algorithm>

namespace lockstep::simulation {

using Ask = job::StoreRequest::Kind;
using Kind = job::StoreReply::Kind;

StoreHost::Client& StoreHost::client(Peer peer) {
  const auto i = static_cast<std::size_t>(peer);
  if (i >= clients_.size()) clients_.resize(i + 1);
  return clients_[i];
}

std::uint64_t StoreHost::ask(Peer peer, job::StoreRequest request, Then then) {
  Client& asking = client(peer);
  request.id = asking.next_id++;
  if (then) asking.pending.emplace_back(request.id, std::move(then));
  auto frame = std::make_shared<const std::string>(encode(request));
  simulation().at(work(nanoseconds_of(costs().client_request)), [this, peer, frame] {
    send(peer, frame->size(), [this, peer, frame] { handle(peer, *frame); });
  });
  return request.id;
}

void StoreHost::wait(Peer peer, const std::string& key, std::chrono::milliseconds limit,
                     std::function<void(const std::shared_ptr<const std::string>&)> then) {
  const auto id = ask(peer, {.kind = Ask::wait, .key = key},
                      [then](const Answer& answer) { then(answer.bytes); });
  simulation().after(limit, [this, peer, key, id, then = std::move(then)] {
    if (!forget(peer, id)) return;
    // A cancellation has the id of its wait.
    auto frame = std::make_shared<const std::string>(
        encode(job::StoreRequest{.kind = Ask::cancel, .id = id}));
    send(peer, frame->size(), [this, peer, frame] { handle(peer, *frame); });
    ask(peer, {.kind = Ask::find, .key = key}, [then](const Answer& answer) {
      then(answer.kind == Kind::value ? answer.bytes : nullptr);
    });
  });
}

// --- The server ----------------------------------------------------------------------------------

void StoreHost::handle(Peer peer, const std::string& frame) {
  const job::StoreRequest request = job::decode_request(*job::first_frame(frame));
  const bool waits = request.kind == Ask::wait || request.kind == Ask::cancel;
  charge(waits ? costs().server_wait / 2 : costs().server_request);
  charge(costs().server_byte * static_cast<double>(frame.size()));
  service_.handle(static_cast<job::StoreService::Client>(peer), request,
                  [&](job::StoreService::Client to, const job::StoreFrame& reply) {
                    const auto other = static_cast<Peer>(to);
                    deliver(other, reply.text(), waits || other != peer);
                  });
}

void StoreHost::deliver(Peer peer, const std::string& frame, bool ends_wait) {
  const job::StoreReply decoded = job::decode_reply(*job::first_frame(frame));
  if (ends_wait) charge(costs().server_wait / 2);
  charge(costs().server_byte * static_cast<double>(frame.size()));
  reply(peer, frame.size(),
        [this, peer, id = decoded.id,
         answer = Answer{decoded.kind, shared(decoded.bytes), decoded.number}] {
          receive(peer, id, answer);
        });
}

std::shared_ptr<const std::string> StoreHost::shared(std::string_view bytes) {
  if (!latest_ || *latest_ != bytes) latest_ = std::make_shared<const std::string>(bytes);
  return latest_;
}

// --- A client ------------------------------------------------------------------------------------

void StoreHost::receive(Peer peer, std::uint64_t id, const Answer& answer) {
  auto& pending = client(peer).pending;
  const auto found = std::ranges::find(pending, id, [](const auto& entry) { return entry.first; });
  if (found == pending.end()) return;
  const Then then = std::move(found->second);
  pending.erase(found);
  then(answer);
}

bool StoreHost::forget(Peer peer, std::uint64_t id) {
  return std::erase_if(client(peer).pending,
                       [id](const auto& entry) { return entry.first == id; }) > 0;
}

}  // namespace lockstep::simulation

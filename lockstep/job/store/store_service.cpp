// SPDX-License-Identifier: Apache-2.0
#include "lockstep/job/store/store_service.h"

#include "lockstep/base/error.h"

namespace lockstep {

using Ask = StoreRequest::Kind;
using Answer = StoreReply::Kind;

void StoreService::handle(Client client, const StoreRequest& request, const Deliver& deliver) {
  if (request.kind == Ask::cancel) return cancel(client, request.id);
  if (request.kind == Ask::wait) return wait(client, request, deliver);
  StoreReply reply;
  try {
    reply = answer(request);
  } catch (const Error& error) {
    if (error.fault() == Fault::bug) throw;
    bytes_ = bare_message(error);
    reply = {.kind = Answer::error, .bytes = bytes_, .fault = error.fault()};
  }
  reply.id = request.id;
  deliver(client, encode(reply));
  if (reply.kind != Answer::error && request.kind != Ask::find) end_waits(request.key, deliver);
}

StoreReply StoreService::answer(const StoreRequest& request) {
  switch (request.kind) {
    case Ask::set:
      table_.set(request.key, request.value);
      return {.kind = Answer::done};
    case Ask::find: {
      const std::string* value = table_.find(request.key);
      if (value == nullptr) return {.kind = Answer::absent};
      return {.kind = Answer::value, .bytes = *value};
    }
    case Ask::add:
      return {.kind = Answer::number, .number = table_.add(request.key, request.amount)};
    case Ask::compare_set:
      bytes_ = table_.compare_set(request.key, request.expected, request.value);
      return {.kind = Answer::value, .bytes = bytes_};
    case Ask::erase:
      return {.kind = table_.erase(request.key) ? Answer::done : Answer::absent};
    case Ask::wait:
    case Ask::cancel:
      break;
  }
  throw Error(Fault::bug, "a store request without an answer");
}

void StoreService::wait(Client client, const StoreRequest& request, const Deliver& deliver) {
  if (const std::string* value = table_.find(request.key))
    return deliver(client, encode({.kind = Answer::value, .id = request.id, .bytes = *value}));
  Waits& waits = waits_[client];
  if (waits.size() == max_waits || waits.contains(request.id))
    throw Error(Fault::corrupt, "a store client waits for too much at a time");
  waits.emplace(request.id, request.key);
  waiters_.emplace(request.key, std::pair(client, request.id));
}

void StoreService::cancel(Client client, std::uint64_t id) {
  const auto waits = waits_.find(client);
  if (waits == waits_.end()) return;
  const auto wait = waits->second.find(id);
  if (wait == waits->second.end()) return;  // Answered before the cancellation came.
  const auto [first, last] = waiters_.equal_range(wait->second);
  for (auto waiter = first; waiter != last; ++waiter) {
    if (waiter->second != std::pair(client, id)) continue;
    waiters_.erase(waiter);
    break;
  }
  waits->second.erase(wait);
}

void StoreService::forget(Client client) {
  const auto waits = waits_.find(client);
  if (waits == waits_.end()) return;
  while (!waits->second.empty()) cancel(client, waits->second.begin()->first);
  waits_.erase(waits);
}

void StoreService::end_waits(std::string_view key, const Deliver& deliver) {
  const auto [first, last] = waiters_.equal_range(key);
  if (first == last) return;
  const std::string* value = table_.find(key);
  if (value == nullptr) return;
  for (auto waiter = first; waiter != last; ++waiter) {
    const auto [client, id] = waiter->second;
    waits_[client].erase(id);
    deliver(client, encode({.kind = Answer::value, .id = id, .bytes = *value}));
  }
  waiters_.erase(first, last);
}

}  // namespace lockstep

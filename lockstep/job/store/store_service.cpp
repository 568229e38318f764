// SPDX-License-Identifier: Apache-2.0
#include "lockstep/job/store/store_service.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"

namespace lockstep::job {
namespace {

std::int64_t number_in(std::string_view key, std::string_view text) {
  std::int64_t number = 0;
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, number);
  if (error != std::errc() || stop != end)
    throw Error(Fault::misuse,
                fmt::format("adding to key {}, which holds no 64-bit number", in_quotes(key)));
  return number;
}

}  // namespace

void StoreTable::set(std::string_view key, std::string_view value) {
  require_store_key(key);
  require_store_value(key, value);
  const auto found = values_.find(key);
  const bool is_new = found == values_.end();
  const std::size_t freed = is_new ? 0 : found->second->size();
  const std::size_t needed = value.size() + (is_new ? key.size() : 0);
  if ((is_new && values_.size() == Store::max_keys) || bytes_ - freed + needed > Store::max_bytes)
    throw Error(
        Fault::system,
        fmt::format("no room for key {} with {} bytes: the store holds {} keys and {} bytes, "
                    "and at most {} and {}",
                    in_quotes(key), value.size(), values_.size(), bytes_, Store::max_keys,
                    Store::max_bytes));
  if (is_new)
    values_.emplace(key, std::make_shared<const std::string>(value));
  else
    found->second = std::make_shared<const std::string>(value);
  bytes_ = bytes_ - freed + needed;
}

StoreTable::Value StoreTable::find(std::string_view key) const {
  require_store_key(key);
  const auto found = values_.find(key);
  return found == values_.end() ? nullptr : found->second;
}

std::int64_t StoreTable::add(std::string_view key, std::int64_t amount) {
  const Value present = find(key);
  std::int64_t sum = present == nullptr ? 0 : number_in(key, *present);
  if (__builtin_add_overflow(sum, amount, &sum))
    throw Error(Fault::misuse, fmt::format("adding {} to key {}, which holds {}, overflows", amount,
                                           in_quotes(key), *present));
  set(key, std::to_string(sum));
  return sum;
}

std::string StoreTable::compare_set(std::string_view key, std::string_view expected,
                                    std::string_view desired) {
  require_store_value(key, expected);
  require_store_value(key, desired);
  const Value present = find(key);
  if (present == nullptr && !expected.empty()) return std::string(expected);
  if (present != nullptr && *present != expected) return *present;
  set(key, desired);
  return std::string(desired);
}

bool StoreTable::erase(std::string_view key) {
  require_store_key(key);
  const auto found = values_.find(key);
  if (found == values_.end()) return false;
  bytes_ -= found->first.size() + found->second->size();
  values_.erase(found);
  return true;
}

void require_store_key(std::string_view key) {
  if (key.size() > Store::max_key_bytes)
    throw Error(Fault::misuse, fmt::format("a key of {} bytes: a store takes at most {}",
                                           key.size(), Store::max_key_bytes));
}

void require_store_value(std::string_view key, std::string_view value) {
  if (value.size() > Store::max_value_bytes)
    throw Error(Fault::misuse,
                fmt::format("a value of {} bytes for key {}: a store takes at most {}",
                            value.size(), in_quotes(key), Store::max_value_bytes));
}

std::string in_quotes(std::string_view key) {
  constexpr std::size_t most = 64;
  std::string text = "'";
  for (const char c : key) {
    if (text.size() > most) return text + "...'";
    if (c >= ' ' && c <= '~')
      text += c;
    else
      text += fmt::format("\\x{:02x}", static_cast<unsigned char>(c));
  }
  return text + "'";
}

void throw_wait_timeout(std::string_view key, Clock::time_point start) {
  throw Error(Fault::timeout, fmt::format("nobody set key {} of the store within {:.3f} s",
                                          in_quotes(key), seconds_since(start)));
}

using Ask = StoreRequest::Kind;
using Answer = StoreReply::Kind;

void StoreService::handle(Client client, const StoreRequest& request, const Deliver& deliver) {
  if (request.kind == Ask::cancel) return cancel(client, request.id);
  if (request.kind == Ask::wait) return wait(client, request, deliver);
  StoreFrame reply;
  bool may_end_waits = request.kind != Ask::find;
  try {
    reply = answer(request);
  } catch (const Error& error) {
    if (error.fault() == Fault::bug) throw;
    const std::string reason = bare_text(error);
    reply.bytes = encode(StoreReply{
        .kind = Answer::error, .id = request.id, .bytes = reason, .fault = error.fault()});
    may_end_waits = false;
  }
  deliver(client, std::move(reply));
  if (may_end_waits) end_waits(request.key, deliver);
}

StoreFrame StoreService::answer(const StoreRequest& request) {
  const auto without_value = [&](Answer kind, std::int64_t number = 0) {
    return StoreFrame{encode(StoreReply{.kind = kind, .id = request.id, .number = number})};
  };
  switch (request.kind) {
    case Ask::set:
      table_.set(request.key, request.value);
      return without_value(Answer::done);
    case Ask::find: {
      const StoreTable::Value value = table_.find(request.key);
      return value ? frame_of(request.id, value) : without_value(Answer::absent);
    }
    case Ask::add:
      return without_value(Answer::number, table_.add(request.key, request.amount));
    case Ask::compare_set:
      return frame_of(request.id, std::make_shared<const std::string>(table_.compare_set(
                                      request.key, request.expected, request.value)));
    case Ask::erase:
      return without_value(table_.erase(request.key) ? Answer::done : Answer::absent);
    case Ask::wait:
    case Ask::cancel:
      break;
  }
  throw Error(Fault::bug, "a store request without an answer");
}

void StoreService::wait(Client client, const StoreRequest& request, const Deliver& deliver) {
  if (const StoreTable::Value value = table_.find(request.key))
    return deliver(client, frame_of(request.id, value));
  Waits& waits = waits_[client];
  if (waits.size() == max_waits || waits.contains(request.id))
    throw Error(Fault::corrupt, "a store client has too many waits");
  waits.emplace(request.id, request.key);
  waiters_.emplace(request.key, std::pair(client, request.id));
}

void StoreService::cancel(Client client, std::uint64_t id) {
  const auto waits = waits_.find(client);
  if (waits == waits_.end()) return;
  const auto wait = waits->second.find(id);
  if (wait == waits->second.end()) return;  // The reply was sent before.
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
  const StoreTable::Value value = table_.find(key);
  if (value == nullptr) return;
  for (auto waiter = first; waiter != last; ++waiter) {
    const auto [client, id] = waiter->second;
    waits_[client].erase(id);
    deliver(client, frame_of(id, value));
  }
  waiters_.erase(first, last);
}

}  // namespace lockstep::job

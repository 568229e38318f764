// SPDX-License-Identifier: Apache-2.0
#include "lockstep/job/store/store_table.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>

namespace lockstep {
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
  const std::size_t freed = is_new ? 0 : found->second.size();
  const std::size_t needed = value.size() + (is_new ? key.size() : 0);
  if ((is_new && values_.size() == Store::max_keys) || bytes_ - freed + needed > Store::max_bytes)
    throw Error(
        Fault::system,
        fmt::format("no room for key {} with {} bytes: the store holds {} keys and {} bytes, "
                    "and at most {} and {}",
                    in_quotes(key), value.size(), values_.size(), bytes_, Store::max_keys,
                    Store::max_bytes));
  if (is_new)
    values_.emplace(key, value);
  else
    found->second.assign(value);
  bytes_ = bytes_ - freed + needed;
}

const std::string* StoreTable::find(std::string_view key) const {
  require_store_key(key);
  const auto found = values_.find(key);
  return found == values_.end() ? nullptr : &found->second;
}

std::int64_t StoreTable::add(std::string_view key, std::int64_t amount) {
  const std::string* present = find(key);
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
  const std::string* present = find(key);
  if (present == nullptr && !expected.empty()) return std::string(expected);
  if (present != nullptr && *present != expected) return *present;
  set(key, desired);
  return std::string(desired);
}

bool StoreTable::erase(std::string_view key) {
  require_store_key(key);
  const auto found = values_.find(key);
  if (found == values_.end()) return false;
  bytes_ -= found->first.size() + found->second.size();
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

std::string bare_message(const Error& error) {
  std::string_view text = error.what();
  text.remove_prefix(std::min(text.size(), name(error.fault()).size() + 2));
  return std::string(text.substr(0, text.rfind(" [")));
}

void throw_wait_timeout(std::string_view key, Clock::time_point start) {
  throw Error(Fault::timeout, fmt::format("nobody set key {} of the store within {:.3f} s",
                                          in_quotes(key), seconds_since(start)));
}

}  // namespace lockstep

// SPDX-License-Identifier: Apache-2.0
#include "lockstep/comm/generation_store.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "lockstep/base/error.h"

namespace lockstep::comm {

GenerationStore::GenerationStore(std::shared_ptr<ElasticEntries> entries, int generation,
                                 const Seat& seat, Deadline last, std::function<void()> look)
    : entries_(std::move(entries)),
      job_(*entries_->job()),
      generation_(generation),
      seat_(seat),
      last_(last),
      look_(std::move(look)) {}

// Before the key is written: a process that dies in between leaves no key without a note.
void GenerationStore::note(std::string_view key) {
  const std::lock_guard lock(mutex_);
  if (keys_.emplace(key).second) entries_->note_keys(generation_, seat_, keys_);
}

void GenerationStore::set(std::string_view key, std::string_view value) {
  note(key);
  job_.set(key, value);
}

std::optional<std::string> GenerationStore::find(std::string_view key) {
  if (is_released_) return job_.find(key);
  look_();
  if (entries_->runtime().now() > last_)
    throw Error(Fault::timeout,
                fmt::format("the ranks of the new group did not come to '{}' in time", key));
  return job_.find(key);
}

std::string GenerationStore::wait(std::string_view key, Deadline deadline) {
  if (is_released_) return job_.wait(key, deadline);
  const Deadline last = std::min(deadline, last_);
  while (entries_->runtime().now() < last) {
    look_();
    try {
      return job_.wait(key, std::min(last, entries_->runtime().in(wait_slice)));
    } catch (const Error& error) {
      if (error.fault() != Fault::timeout) throw;
    }
  }
  return job_.wait(key, last);
}

std::int64_t GenerationStore::add(std::string_view key, std::int64_t amount) {
  note(key);
  return job_.add(key, amount);
}

std::string GenerationStore::compare_set(std::string_view key, std::string_view expected,
                                         std::string_view desired) {
  note(key);
  return job_.compare_set(key, expected, desired);
}

bool GenerationStore::erase(std::string_view key) { return job_.erase(key); }

}  // namespace lockstep::comm

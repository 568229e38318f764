// SPDX-License-Identifier: Apache-2.0
#include "lockstep/toolkit/datasets/shards/fetched_shards.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <thread>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/base/hash.h"
#include "lockstep/base/log.h"
#include "lockstep/base/text.h"
#include "lockstep/data/batch_filler.h"
#include "lockstep/toolkit/datasets/shards/shard_index.h"

namespace lockstep::datasets {
namespace {

constexpr std::size_t longest_stem = 100;
constexpr int most_evictions = 20;  // Per shard, between its fetch and its use.
constexpr int most_attempts = 1000;
constexpr std::chrono::milliseconds longest_pause = std::chrono::minutes(1);

// A complete shard that does not fit its index is not fetched again.
class ChangedShard : public Error {
  using Error::Error;
};

// An index of another version or other options is not fetched again.
class UnusableIndex : public Error {
  using Error::Error;
};

std::string without_name(std::string message, const std::string& file) {
  const std::string name = file + ": ";
  return message.starts_with(name) ? message.substr(name.size()) : message;
}

// A cached shard's modification time is not its source's.
FileStamp size_only(const FileStamp& stamp) { return {.size = stamp.size, .changed_ns = 0}; }

}  // namespace

std::chrono::milliseconds FetchPolicy::pause_after(int attempt) const {
  std::chrono::milliseconds now = pause;
  while (--attempt > 0 && now < longest_pause) now = std::min(2 * now, longest_pause);
  return now;
}

FetchedShards::FetchedShards(std::vector<std::string> urls, FetchCommand command, ShardCache cache,
                             const FetchPolicy& policy)
    : urls_(std::move(urls)),
      command_(std::move(command)),
      cache_(std::move(cache)),
      policy_(policy) {
  require(policy.attempts > 0 && policy.attempts <= most_attempts,
          "TarShardsOptions::fetch_attempts must be in 1..1000");
  require(policy.pause.count() >= 0, "TarShardsOptions::fetch_pause must not be negative");
}

FetchedShards::~FetchedShards() {
  if (is_fork()) {
    // The child lacks the thread, which may have held the mutex.
    ahead_.release();  // NOLINT(bugprone-unused-return-value)
    return;
  }
  {
    const std::lock_guard lock(ahead_->mutex);
    stop_ = true;
  }
  ahead_->changed.notify_all();
  if (ahead_->thread.joinable()) ahead_->thread.join();
}

// The name is for users; the digest makes it unique.
std::string FetchedShards::cached_name(std::size_t shard) const {
  const std::string& url = urls_[shard];
  std::string stem = std::filesystem::path(url).stem();
  stem.resize(std::min(stem.size(), longest_stem));
  for (char& letter : stem)
    if (std::isalnum(static_cast<unsigned char>(letter)) == 0 && letter != '_') letter = '-';
  std::array<char, 32> end{};
  std::snprintf(end.data(), end.size(), "-%016llx.tar",
                static_cast<unsigned long long>(hash_of_elements(url)));
  return stem + end.data();
}

std::string FetchedShards::index_path(std::size_t shard) const {
  return index_beside(cache_.path(cached_name(shard)));
}

// Does not remove an unusable index: another process may have replaced it.
bool FetchedShards::has_index(std::size_t shard) const {
  const std::string path = index_path(shard);
  std::error_code absent;
  if (!std::filesystem::exists(path, absent)) return false;
  try {
    return ShardIndex(path)->is_for(policy_.tar);
  } catch (const Error& error) {
    if (error.fault() != Fault::corrupt) throw;
    return false;
  }
}

Deadline FetchedShards::fetch_deadline() const {
  std::chrono::milliseconds limit = std::chrono::minutes(1);
  for (int attempt = 1; attempt <= policy_.attempts; ++attempt)
    limit = longer_by(limit, longer_by(command_.timeout(), policy_.pause_after(attempt)));
  return in(limit);
}

bool FetchedShards::is_stopped() const { return stop_ || fill_is_cancelled(); }

bool FetchedShards::provide_index(std::size_t shard, bool wait) {
  if (has_index(shard)) return true;
  const Deadline deadline = wait ? fetch_deadline() : Clock::now();
  const bool done = policy_.fetch_indexes ? provide_fetched_index(shard, deadline)
                                          : provide_shard(shard, deadline);
  if (!done && wait)
    throw Error(Fault::timeout, urls_[shard] + ": another process of this host still fetches it");
  if (!done || has_index(shard)) return done;
  // The cached shard's index was removed.
  check_shard(shard, cache_.path(cached_name(shard)));
  return true;
}

bool FetchedShards::provide_fetched_index(std::size_t shard, Deadline deadline) {
  const std::string url = index_beside(urls_[shard]);
  const auto require_usable = [&](const std::string& fetched) {
    if (!ShardIndex(fetched)->is_for(policy_.tar))
      throw UnusableIndex(Fault::unsupported, clean_text(url) +
                                                  " was made by an earlier version of Lockstep or "
                                                  "with other options");
  };
  try {
    return cache_.provide(
        {.name = cached_name(shard),
         .target = index_path(shard),
         .is_there = [&] { return has_index(shard); },
         .fetch = [&](const std::string& path) { fetch(shard, url, path, require_usable); }},
        deadline);
  } catch (const UnusableIndex& error) {
    if (!has_warned_.exchange(true))
      log(LogLevel::warning, bare_text(error) +
                                 ". Such shards are fetched to make their indexes: upload these, "
                                 "or unset TarShardsOptions::fetch_indexes");
    return provide_shard(shard, deadline);
  }
}

bool FetchedShards::provide_shard(std::size_t shard, Deadline deadline) {
  const std::string name = cached_name(shard);
  const std::uint64_t expected = has_index(shard) ? ShardIndex(index_path(shard))->shard().size : 0;
  const std::string target = cache_.path(name);
  return cache_.provide({.name = name,
                         .target = target,
                         .expected = expected,
                         .is_there =
                             [&] {
                               std::error_code absent;
                               return std::filesystem::exists(target, absent);
                             },
                         .fetch =
                             [&](const std::string& path) {
                               fetch(shard, urls_[shard], path, [&](const std::string& fetched) {
                                 check_shard(shard, fetched);
                               });
                             }},
                        deadline);
}

void FetchedShards::fetch(std::size_t shard, const std::string& url, const std::string& path,
                          const std::function<void(const std::string& path)>& check) {
  for (int attempt = 1;; ++attempt) {
    // A program that outlives its attempt must not replace a later one's file.
    const std::string part = path + "-" + std::to_string(attempt);
    try {
      command_.run(url, part, [this] { return is_stopped(); });
      check(part);
      if (::rename(part.c_str(), path.c_str()) != 0) throw_errno(path);
      return;
    } catch (const ChangedShard&) {
      throw;
    } catch (const UnusableIndex&) {
      throw;
    } catch (const Error& error) {
      std::error_code ignored;
      std::filesystem::remove(part, ignored);
      const bool may_succeed = error.fault() != Fault::aborted;
      const std::string reason = without_name(bare_text(error), urls_[shard]);
      if (!may_succeed || attempt == policy_.attempts) {
        std::string text = "fetching " + clean_text(urls_[shard]) + " failed";
        if (attempt > 1) text += " " + std::to_string(attempt) + " times";
        throw Error(error.fault(), text + ": " + reason);
      }
      const std::chrono::milliseconds pause = policy_.pause_after(attempt);
      log(LogLevel::warning, "fetching " + clean_text(url) + " failed, next attempt in " +
                                 std::to_string(pause.count()) + " ms: " + reason);
      for (const Deadline end = in(pause); Clock::now() < end && !is_stopped();)
        std::this_thread::sleep_for(std::min(wait_slice, until(end)));
      if (is_stopped()) throw;
    }
  }
}

void FetchedShards::check_shard(std::size_t shard, const std::string& path) const {
  const FileDescriptor fd = open_to_read(path);
  const FileStamp stamp = size_only(stamp_of(fd, path));
  const TarContents contents = read_tar(fd, urls_[shard], policy_.tar);
  if (!contents.has_end)  // tar writes an end. A failed command leaves a truncated shard.
    throw Error(Fault::corrupt, urls_[shard] + ": " + contents.unread);
  const std::string found = format_shard_index(urls_[shard], stamp, contents);
  if (!has_index(shard)) return write_shard_index(index_path(shard), found);
  const ShardIndex index(index_path(shard));
  const ShardIndexView now(urls_[shard], std::as_bytes(std::span(found)));
  if (now.shard().size != index->shard().size || now.fingerprint() != index->fingerprint())
    throw ChangedShard(Fault::corrupt, urls_[shard] +
                                           ": the shard was changed since its index was made; "
                                           "remove " +
                                           index_path(shard) + " to make a new index");
}

std::shared_ptr<const OpenShard> FetchedShards::open(std::size_t shard,
                                                     const ShardIndexView& index) {
  const std::string name = cached_name(shard);
  for (int evictions = 0; evictions < most_evictions; ++evictions) {
    if (auto fd = cache_.find(name)) {
      const std::string path = cache_.path(name);
      if (stamp_of(*fd, path).size != index.shard().size) {  // Damaged in the cache: fetched again.
        std::error_code gone;
        std::filesystem::remove(path, gone);
        continue;
      }
      return std::make_shared<const OpenShard>(OpenShard{urls_[shard], std::move(*fd)});
    }
    wait_for_shard(shard);
  }
  throw Error(Fault::system, urls_[shard] +
                                 ": evicted from the cache again and again before it was read: "
                                 "TarShardsOptions::cache_bytes is too small");
}

void FetchedShards::wait_for_shard(std::size_t shard) {
  for (const Deadline deadline = fetch_deadline(); !provide_shard(shard, in(wait_slice));) {
    if (is_stopped()) throw Error(Fault::aborted, urls_[shard] + ": the batch was cancelled");
    if (Clock::now() >= deadline)
      throw Error(Fault::timeout, urls_[shard] + ": another process of this host still fetches it");
  }
}

void FetchedShards::will_open(std::span<const std::size_t> shards) {
  if (is_fork()) return;  // open() fetches them.
  const std::lock_guard lock(ahead_->mutex);
  ahead_->wanted.assign(shards.begin(), shards.end());
  if (!ahead_->thread.joinable()) ahead_->thread = start_thread([this] { fetch_ahead(); });
  ahead_->changed.notify_all();
}

void FetchedShards::fetch_ahead() {
  for (;;) {
    std::size_t shard = 0;
    {
      std::unique_lock lock(ahead_->mutex);
      ahead_->changed.wait(lock, [&] { return stop_ || !ahead_->wanted.empty(); });
      if (stop_) return;
      shard = ahead_->wanted.front();
      ahead_->wanted.pop_front();
    }
    try {
      // find() updates the time of use. Skips shards that another process is fetching.
      if (!cache_.find(cached_name(shard))) provide_shard(shard, Clock::now());
    } catch (const Error& error) {
      // open() retries and reports.
      if (!stop_) log(LogLevel::warning, "fetching ahead: " + bare_text(error));
    } catch (const std::exception& error) {
      if (!stop_) log(LogLevel::warning, std::string("fetching ahead: ") + error.what());
    }
  }
}

}  // namespace lockstep::datasets

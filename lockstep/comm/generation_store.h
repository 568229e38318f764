// The job's store for the group of one generation. Notes the keys that this process writes, so that
// another process can erase them after the group's end.
//
// Thread safety: as Store. The functor is called only by the thread that makes the group.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <string_view>

#include "lockstep/base/time.h"
#include "lockstep/comm/elastic_entries.h"
#include "lockstep/comm/hosts/watched_store.h"

namespace lockstep::comm {

class GenerationStore final : public WatchedStore {
 public:
  // Until release(), find() calls `look` once, wait() at least every 20 ms, and both end at `last`.
  // `look` may throw. `seat` is this process.
  GenerationStore(std::shared_ptr<ElasticEntries> entries, int generation, const Seat& seat,
                  Deadline last, std::function<void()> look);

  void set(std::string_view key, std::string_view value) override;
  std::optional<std::string> find(std::string_view key) override;
  std::string wait(std::string_view key, Deadline deadline) override;
  std::int64_t add(std::string_view key, std::int64_t amount) override;
  std::string compare_set(std::string_view key, std::string_view expected,
                          std::string_view desired) override;
  bool erase(std::string_view key) override;
  void look() const override { look_(); }

  // The group exists, and keeps this store for engines that connect later.
  void release() { is_released_ = true; }

 private:
  void note(std::string_view key);

  const std::shared_ptr<ElasticEntries> entries_;
  Store& job_;
  const int generation_;
  const Seat seat_;
  const Deadline last_;
  const std::function<void()> look_;
  std::atomic<bool> is_released_{false};
  std::mutex mutex_;
  std::set<std::string> keys_;
};

}  // namespace lockstep::comm

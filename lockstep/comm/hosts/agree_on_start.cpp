// SPDX-License-Identifier: Apache-2.0
#include "lockstep/comm/hosts/agree_on_start.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"
#include "lockstep/job/store/tcp_store.h"

namespace lockstep {
namespace {

using Json = nlohmann::json;

// The growing pause between two reads of the store, which serves all ranks.
class Pause {
 public:
  void operator()() {
    std::this_thread::sleep_for(next_);
    next_ = std::min(2 * next_, longest);
  }

 private:
  static constexpr std::chrono::milliseconds longest{200};
  std::chrono::milliseconds next_{5};
};

// Other ranks wait a little longer than rank 0, which then tells them who is missing.
constexpr std::chrono::seconds time_for_news{2};

// Returns a text that never occurred before.
std::string something_new() { return std::string(make_job_token().text()); }

// Agrees on a start. Rank 0 proposes one to the values that it finds, some of which may be of an
// earlier start. A rank that finds its own value in the proposal accepts. When all ranks have
// accepted, rank 0 begins the start. When a rank has changed its value since, rank 0 proposes a new
// one.
class StartRendezvous {
 public:
  StartRendezvous(Store& store, std::string prefix, int rank, int world_size)
      : store_(store),
        prefix_(std::move(prefix)),
        rank_(static_cast<std::size_t>(rank)),
        size_(static_cast<std::size_t>(world_size)),
        mine_(something_new()) {}

  std::string lead(Deadline deadline) {
    for (;;) {
      const std::vector<std::string> here = everybody(deadline);
      std::string start = something_new();
      propose(start, here);
      if (all_accept(start, here, deadline)) {
        store_.set(begun(start), "1");
        return start;
      }
    }
  }

  std::string follow(Deadline deadline) {
    store_.set(place(rank_), mine_);
    std::string accepted;
    for (Pause pause;; pause()) {
      std::string start = proposed_to_me();
      if (!start.empty() && start != accepted) store_.set(acceptance(start, rank_), "1");
      accepted = start;
      if (!start.empty() && store_.find(begun(start))) return start;
      if (deadline != no_deadline && Clock::now() >= deadline + time_for_news)
        throw Error(Fault::timeout,
                    fmt::format("rank 0 did not come within {:.1f} s, or has ended", waited()));
    }
  }

 private:
  std::string place(std::size_t rank) const { return fmt::format("{}here/{}", prefix_, rank); }
  std::string begun(const std::string& start) const { return prefix_ + "begun/" + start; }
  std::string acceptance(const std::string& start, std::size_t rank) const {
    return fmt::format("{}accepted/{}/{}", prefix_, start, rank);
  }

  double waited() const { return std::chrono::duration<double>(Clock::now() - began_).count(); }

  // Returns the latest value of every rank.
  std::vector<std::string> everybody(Deadline deadline) {
    std::vector<std::string> here{mine_};
    std::vector<std::size_t> missing;
    for (std::size_t rank = 1; rank < size_; ++rank) {
      try {
        here.push_back(store_.wait(place(rank), deadline));
      } catch (const Error& error) {
        if (error.fault() != Fault::timeout) throw;
        here.emplace_back();
        missing.push_back(rank);
      }
    }
    if (!missing.empty()) give_up(here, missing);
    return here;
  }

  void propose(const std::string& start, const std::vector<std::string>& here) {
    store_.set(prefix_ + "proposed", Json{{"start", start}, {"here", here}}.dump());
  }

  [[noreturn]] void give_up(const std::vector<std::string>& here,
                            const std::vector<std::size_t>& missing) {
    const std::string why = fmt::format("of {} ranks, these did not come within {:.1f} s: {}",
                                        size_, waited(), fmt::join(missing, ", "));
    store_.set(prefix_ + "proposed", Json{{"why_not", why}, {"here", here}}.dump());
    throw Error(Fault::timeout, why);
  }

  bool all_accept(const std::string& start, const std::vector<std::string>& here,
                  Deadline deadline) {
    for (Pause pause;; pause()) {
      std::vector<std::size_t> missing;
      for (std::size_t rank = 1; rank < size_; ++rank) {
        if (store_.find(place(rank)) != here[rank]) return false;
        if (!store_.find(acceptance(start, rank))) missing.push_back(rank);
      }
      if (missing.empty()) return true;
      if (Clock::now() >= deadline) give_up(here, missing);
    }
  }

  // Returns rank 0's proposed start if it contains this rank's value; else nothing.
  std::string proposed_to_me() {
    const std::optional<std::string> text = store_.find(prefix_ + "proposed");
    if (!text) return {};
    try {
      const Json proposed = Json::parse(*text);
      const Json& here = proposed.at("here");
      if (here.size() != size_ || here.at(rank_) != mine_) return {};
      if (proposed.contains("why_not"))
        throw Error(Fault::timeout, proposed["why_not"].get<std::string>());
      return proposed.at("start");
    } catch (const Json::exception& error) {
      throw Error(Fault::corrupt, fmt::format("what rank 0 said in the store under '{}': {}",
                                              prefix_, error.what()));
    }
  }

  Store& store_;
  const std::string prefix_;
  const std::size_t rank_;
  const std::size_t size_;
  const std::string mine_;  // This rank's own value.
  const Clock::time_point began_ = Clock::now();
};

}  // namespace

std::string agree_on_start(Store& store, const std::string& prefix, int rank, int world_size,
                           Deadline deadline) try {
  StartRendezvous meeting(store, prefix, rank, world_size);
  return rank == 0 ? meeting.lead(deadline) : meeting.follow(deadline);
} catch (const Error& error) {
  throw Error(error.fault(),
              fmt::format("init_process_group on rank {}: {}", rank, bare_text(error)));
}

}  // namespace lockstep

// SPDX-License-Identifier: Apache-2.0
#include "lockstep/comm/hosts/rendezvous.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/base/processes.h"
#include "lockstep/base/text.h"
#include "lockstep/base/variables.h"
#include "lockstep/comm/core/abort_reason.h"
#include "lockstep/job/store/tcp_store.h"

namespace lockstep::comm {
namespace {

constexpr std::chrono::milliseconds retry_pause{2};
constexpr std::chrono::milliseconds time_to_come{2000};

bool has_come(HostSession& session, int rank) {
  return session.page().announced(rank, session.meeting()).has_value();
}

std::vector<int> absent(HostSession& session) {
  std::vector<int> ranks;
  for (int rank = 0; rank < session.size(); ++rank)
    if (!has_come(session, rank)) ranks.push_back(rank);
  return ranks;
}

std::string_view shown(const std::string& backend) {
  return backend.empty() ? std::string_view("auto") : backend;
}

bool same_backend(const std::string& one, const std::string& other) {
  return one == other || (is_shared_memory(one) && is_shared_memory(other));
}

struct Difference {
  std::string text = {};
  std::vector<int> ranks = {};
};

Difference difference(HostSession& session) {
  Difference found;
  const JobControlBlock& page = session.page();
  std::string sizes, backends;
  std::string first;
  int asked_first = -1;
  for (int rank = 0; rank < page.slots(); ++rank) {
    const auto announced = page.announced(rank, session.meeting());
    if (!announced) continue;
    if (asked_first < 0) {
      asked_first = rank;
      first = announced->backend;
    }
    const bool other_size = announced->world_size != page.world_size();
    const bool other_backend = !same_backend(announced->backend, first);
    if (other_size) sizes += fmt::format("rank {} expects {} ranks, ", rank, announced->world_size);
    if (other_backend)
      backends += fmt::format(", rank {} for '{}'", rank, shown(announced->backend));
    if (other_size || other_backend) found.ranks.push_back(rank);
  }
  if (!sizes.empty())
    found.text = fmt::format("{}{} {} (WORLD_SIZE); to do: {}", sizes,
                             session.has_agent() ? "the launcher has started" : "rank 0 expects",
                             page.world_size(),
                             "leave WORLD_SIZE as the launcher sets it, or start as many ranks");
  else if (!backends.empty())
    found.text =
        fmt::format("rank {} asks for backend '{}'{}", asked_first, shown(first), backends);
  return found;
}

using Json = nlohmann::json;

// Growing, because the store serves all ranks.
class Pause {
 public:
  void operator()() {
    std::this_thread::sleep_for(next_);
    next_ = std::min(2 * next_, longest);
  }

 private:
  static constexpr std::chrono::milliseconds longest{200};
  std::chrono::milliseconds next_{1};
};

// As Store::wait(), with calls of `look`.
std::string wait_for(Store& store, const std::string& key, Deadline deadline, const LateRanks& late,
                     const std::function<void()>& look) {
  while (late.due() < deadline) {
    try {
      return store.wait(key, late.due());
    } catch (const Error& error) {
      if (error.fault() != Fault::timeout) throw;
    }
    look();
  }
  return store.wait(key, deadline);
}

constexpr std::size_t longest_text = 4096;  // Bytes.

// Others wait longer than rank 0, which reports the missing ranks to them.
constexpr std::chrono::seconds time_for_notices{2};

// For ranks to accept a proposal made at rank 0's deadline. In the rest of time_for_notices they
// receive why there is no start.
constexpr std::chrono::milliseconds time_to_accept{700};

// For ranks started at the last moment.
constexpr std::chrono::seconds time_to_describe{1};

std::vector<int> ranks_in(const Json& json, std::size_t size) {
  return ranks_within(json.get<std::vector<int>>(), static_cast<int>(size));
}

std::string something_new() { return std::string(make_job_token().text()); }

std::string names_of_missing(std::size_t world_size, double seconds,
                             const std::vector<int>& missing) {
  return fmt::format("of {} ranks, these did not come within {:.1f} s: {}", world_size, seconds,
                     fmt::join(missing, ", "));
}

// Rank 0 proposes a start to the values in the store, some of which may be of an earlier start.
// A rank whose own value is in the proposal accepts, with the number of ranks that it expects.
// When all have accepted, rank 0 begins the start. If a value has changed since, rank 0 proposes
// again.
//
// A proposal may also contain why there is no start.
class StartRendezvous {
 public:
  StartRendezvous(Store& store, std::string prefix, int rank, int world_size, LateRanks& late)
      : store_(store),
        late_(late),
        prefix_(std::move(prefix)),
        rank_(static_cast<std::size_t>(rank)),
        size_(static_cast<std::size_t>(world_size)),
        mine_(fmt::format("{} process {} on {}", something_new(), ::getpid(), host_name())) {}

  std::string lead(Deadline deadline) {
    store_.set(place(0), mine_);
    for (;;) {
      const std::vector<std::string> here = everybody(deadline);
      std::string start = something_new();
      propose({{"start", start}, {"here", here}});
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
      std::string start = proposed_to_me(accepted);
      accepted = start;
      if (start.empty())
        require_own_place();
      else if (store_.find(begun(start)))
        return start;
      look();
      if (deadline != no_deadline && Clock::now() >= deadline + time_for_notices)
        abort_alone(deadline);
    }
  }

 private:
  std::string place(std::size_t rank) const { return fmt::format("{}here/{}", prefix_, rank); }
  std::string begun(const std::string& start) const { return prefix_ + "begun/" + start; }
  std::string acceptance(const std::string& start, std::size_t rank) const {
    return fmt::format("{}accepted/{}/{}", prefix_, start, rank);
  }

  bool has_come(int rank) { return store_.find(place(static_cast<std::size_t>(rank))).has_value(); }

  void look() {
    late_.look_for_all(static_cast<int>(size_), [this](int rank) { return has_come(rank); });
  }

  double waited(Deadline until) const {
    return std::chrono::duration<double>(std::min(Clock::now(), until) - began_).count();
  }

  // Each rank's latest value; empty for those absent at the deadline.
  std::vector<std::string> everybody(Deadline deadline) {
    std::vector<std::string> here{mine_};
    for (std::size_t rank = 1; rank < size_; ++rank) {
      try {
        here.push_back(wait_for(store_, place(rank), deadline, late_, [&] { look(); }));
      } catch (const Error& error) {
        if (error.fault() != Fault::timeout) throw;
        here.emplace_back();
      }
    }
    return here;
  }

  void propose(const Json& proposal) { store_.set(prefix_ + "proposed", proposal.dump()); }

  [[noreturn]] void abort(const Error& why, const std::vector<std::string>& here) {
    const std::string start = something_new();
    propose({{"start", start},
             {"here", here},
             {"why_not", bare_text(why)},
             {"fault", name(why.fault())},
             {"ranks", why.ranks()}});
    const auto has_read = [&](std::size_t rank) {
      const bool is_to_blame = std::ranges::count(why.ranks(), static_cast<int>(rank)) != 0;
      if (here[rank].empty() || is_to_blame) return true;
      return size_told(start, rank).has_value();
    };
    const Deadline last = in(time_for_notices);
    std::size_t read = 1;
    for (Pause pause; read < size_ && Clock::now() < last; pause())
      while (read < size_ && has_read(read)) ++read;
    throw_again(why, bare_text(why));
  }

  // Throws which ranks are missing; if none, rank 0 has come too late or has ended.
  [[noreturn]] void abort_alone(Deadline deadline) {
    std::vector<int> missing;
    for (int rank = 0; rank < static_cast<int>(size_); ++rank)
      if (!has_come(rank)) missing.push_back(rank);
    if (missing.empty())
      throw Error(
          Fault::timeout,
          fmt::format("rank 0 did not come within {:.1f} s, or has ended", waited(deadline)), {0});
    throw Error(Fault::timeout, names_of_missing(size_, waited(deadline), missing), missing);
  }

  // A rank's expected number of ranks; empty until it has read the proposal.
  std::optional<std::string> size_told(const std::string& start, std::size_t rank) {
    return store_.find(acceptance(start, rank));
  }

  static Error other_size(std::size_t rank, const std::string& its, std::size_t of_rank_0) {
    return {Fault::mismatch,
            fmt::format("rank {} expects {} ranks, rank 0 expects {} (WORLD_SIZE)", rank,
                        clean_text(its), of_rank_0),
            {static_cast<int>(rank)}};
  }

  // Errors: mismatch when another process has come as this rank since.
  void require_own_place() {
    const auto there = store_.find(place(rank_));
    if (!there || *there == mine_) return;
    store_.set(place(rank_), mine_);  // The other process finds it there.
    const auto who = [](const std::string& value) {
      return clean_text(value.substr(value.find(' ') + 1));
    };
    throw Error(
        Fault::mismatch,
        fmt::format("two processes are rank {} (RANK): {}, and {}", rank_, who(mine_), who(*there)),
        {static_cast<int>(rank_)});
  }

  // If ranks are missing, the others report how many they expect: another number explains the
  // absence.
  bool all_accept(const std::string& start, const std::vector<std::string>& here,
                  Deadline deadline) {
    const Deadline last = std::max(deadline, in(time_to_accept));
    for (Pause pause;; pause()) {
      std::vector<int> absent, silent;
      for (std::size_t rank = 1; rank < size_; ++rank) {
        if (store_.find(place(rank)).value_or("") != here[rank]) return false;
        const auto told = size_told(start, rank);
        if (!told) (here[rank].empty() ? absent : silent).push_back(static_cast<int>(rank));
        if (told && told != std::to_string(size_)) abort(other_size(rank, *told, size_), here);
      }
      const std::vector<int>& missing = absent.empty() ? silent : absent;
      if (missing.empty()) return true;
      if (silent.empty() || Clock::now() >= last)
        abort({Fault::timeout, names_of_missing(size_, waited(deadline), missing), missing}, here);
    }
  }

  // Rank 0's proposed start if it contains this rank's value, else empty. Accepts it, unless it is
  // `accepted`.
  std::string proposed_to_me(const std::string& accepted) {
    const std::optional<std::string> text = store_.find(prefix_ + "proposed");
    if (!text) return {};
    try {
      const Json proposed = Json::parse(*text);
      const Json& here = proposed.at("here");
      if (rank_ >= here.size() || here.at(rank_) != mine_) return {};
      std::string start = proposed.at("start");
      if (start != accepted) store_.set(acceptance(start, rank_), std::to_string(size_));
      if (here.size() != size_) throw other_size(rank_, std::to_string(size_), here.size());
      if (proposed.contains("why_not"))
        throw Error(fault_named(proposed.at("fault").get<std::string>()).value_or(Fault::timeout),
                    clean_text(proposed["why_not"].get<std::string>(), longest_text),
                    ranks_in(proposed.at("ranks"), size_));
      return start;
    } catch (const Json::exception& error) {
      throw Error(Fault::corrupt,
                  fmt::format("the value of rank 0 in the store under '{}' is damaged: {}", prefix_,
                              error.what()));
    }
  }

  Store& store_;
  LateRanks& late_;
  const std::string prefix_;
  const std::size_t rank_;
  const std::size_t size_;
  const std::string mine_;
  const Clock::time_point began_ = Clock::now();
};

Json to_json(const RankInfo& info) {
  return {{"rank", info.rank},       {"pid", info.pid},
          {"host", info.host},       {"place", info.place},
          {"address", info.address}, {"backend", info.backend},
          {"engines", info.engines}, {"contradiction", info.contradiction}};
}

std::string clean(const std::string& text) { return clean_text(text, longest_text); }

RankInfo info_of(const Json& json) {
  RankInfo info;
  json.at("rank").get_to(info.rank);
  json.at("pid").get_to(info.pid);
  info.host = clean(json.at("host"));
  json.at("place").get_to(info.place);
  json.at("address").get_to(info.address);
  info.backend = clean(json.at("backend"));
  for (const auto& [engine, why_not] : json.at("engines").items())
    info.engines.emplace(clean(engine), clean(why_not));
  info.contradiction = clean(json.value("contradiction", ""));
  return info;
}

std::string key_of(const std::string& prefix, int rank) {
  return fmt::format("{}rank/{}", prefix, rank);
}

// Errors: misuse when another process is stored as this rank.
void put_down(Store& store, const std::string& prefix, const RankInfo& mine) {
  const std::string info = to_json(mine).dump();
  const std::string there = store.compare_set(key_of(prefix, mine.rank), "", info);
  if (there == info) return;
  const RankInfo other = info_of(Json::parse(there));
  throw Error(Fault::misuse,
              fmt::format("rank {} already exists, as process {} on {}: two ranks have the same "
                          "RANK, or the store has values of an earlier start of the job",
                          mine.rank, other.pid, other.host));
}

std::string gather_infos(Store& store, const std::string& prefix, int world_size, Deadline deadline,
                         const LateRanks& late, const std::function<void()>& look) {
  Json infos = Json::array();
  std::vector<int> missing;
  for (int rank = 0; rank < world_size; ++rank) {
    try {
      infos.push_back(Json::parse(wait_for(store, key_of(prefix, rank), deadline, late, look)));
    } catch (const Error& error) {
      if (error.fault() != Fault::timeout) throw;
      missing.push_back(rank);
    }
  }
  if (!missing.empty()) return Json{{"missing", missing}}.dump();
  return Json{{"secret", std::string(make_job_token().text())}, {"cards", std::move(infos)}}.dump();
}

}  // namespace

bool is_shared_memory(std::string_view backend) {
  return backend.empty() || backend == "auto" || backend == "shm";
}

void require_agreement(HostSession& session) {
  if (difference(session).ranks.empty()) return;
  for (const Deadline late = in(time_to_come); !absent(session).empty() && Clock::now() < late;)
    std::this_thread::sleep_for(retry_pause);
  Difference found = difference(session);
  throw Error(Fault::mismatch,
              fmt::format("init_process_group on rank {}: {}", session.rank(), found.text),
              std::move(found.ranks));
}

void look_here(HostSession& session, LateRanks& late) {
  if (session.meeting() == 0) return;  // They use the store.
  late.look_for_all(session.size(), [&](int rank) { return has_come(session, rank); });
}

void await_agreement(HostSession& session, Deadline deadline, LateRanks& late) {
  const auto begin = Clock::now();
  for (;; std::this_thread::sleep_for(retry_pause)) {
    require_agreement(session);
    const std::vector<int> missing = absent(session);
    if (missing.empty()) return;
    look_here(session, late);
    const auto context = fmt::format("init_process_group on rank {}", session.rank());
    session.throw_if_peer_lost(context);
    if (Clock::now() >= deadline)
      throw Error(Fault::timeout,
                  fmt::format("{}: {} did not come within {:.1f} s", context,
                              name_of_ranks(missing), seconds_since(begin)),
                  missing);
  }
}

std::string agree_on_start(Store& store, const std::string& prefix, int rank, int world_size,
                           Deadline deadline, LateRanks& late) try {
  StartRendezvous meeting(store, prefix, rank, world_size, late);
  return rank == 0 ? meeting.lead(deadline) : meeting.follow(deadline);
} catch (const Error& error) {
  const auto context = fmt::format("init_process_group on rank {}: ", rank);
  const std::string text = bare_text(error);
  if (text.starts_with(context)) throw;  // The launcher's report of a missing rank.
  throw_again(error, context + text);
}

std::string this_place() {
  char net[64] = {};
  if (::readlink("/proc/self/ns/net", net, sizeof net - 1) < 0) net[0] = '\0';
  std::ifstream in("/proc/sys/kernel/random/boot_id");
  std::string boot;
  in >> boot;
  const char* told = read_variable("LOCKSTEP_HOST_ID");
  return fmt::format("{} {} {} {}", boot, net, ::getuid(), told == nullptr ? "" : told);
}

RankTable exchange_rank_info(Store& store, const std::string& prefix, const RankInfo& mine,
                             int world_size, Deadline deadline, LateRanks& late) {
  const std::string all = prefix + "all";
  const auto look = [&] {
    late.look_for_all(world_size,
                      [&](int rank) { return store.find(key_of(prefix, rank)).has_value(); });
  };
  try {
    put_down(store, prefix, mine);
    if (mine.rank == 0)
      store.set(all, gather_infos(store, prefix, world_size,
                                  std::max(deadline, in(time_to_describe)), late, look));
    const bool waits = mine.rank != 0 && deadline != no_deadline;
    const Deadline last = waits ? deadline + time_for_notices : deadline;
    const Json said = Json::parse(wait_for(store, all, last, late, look));
    if (said.contains("missing")) {
      const auto missing = ranks_in(said["missing"], static_cast<std::size_t>(world_size));
      throw Error(
          Fault::timeout,
          fmt::format("of {} ranks, these did not come: {}", world_size, fmt::join(missing, ", ")),
          missing);
    }
    RankTable table{.secret = said.at("secret"), .ranks = {}};
    for (const Json& info : said.at("cards")) table.ranks.push_back(info_of(info));
    if (table.ranks.size() != static_cast<std::size_t>(world_size))
      throw Error(Fault::corrupt, fmt::format("the store describes {} ranks instead of {}",
                                              table.ranks.size(), world_size));
    return table;
  } catch (const Json::exception& error) {
    throw Error(Fault::corrupt,
                fmt::format("the descriptions of the ranks in the store under '{}' are damaged: {}",
                            prefix, error.what()));
  }
}

}  // namespace lockstep::comm

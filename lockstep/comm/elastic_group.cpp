// SPDX-License-Identifier: Apache-2.0
#include "lockstep/comm/elastic_group.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <atomic>
#include <map>
#include <optional>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/base/log.h"
#include "lockstep/comm/elastic_decision.h"
#include "lockstep/comm/elastic_entries.h"
#include "lockstep/comm/elastic_runtime.h"
#include "lockstep/comm/generation_store.h"
#include "lockstep/comm/group_state.h"
#include "lockstep/comm/hosts/job_store.h"
#include "lockstep/comm/hosts/late_ranks.h"
#include "lockstep/job/launchers.h"
#include "lockstep/job/network.h"

namespace lockstep {
namespace {

using namespace std::chrono_literals;
using comm::Decision;
using comm::long_pause;
using comm::pause_between_looks;
using comm::Seat;
using comm::short_pause;
using comm::time_to_answer;
using comm::Vote;

// For ranks that have agreed to make their group; doubles with each failure.
constexpr std::chrono::milliseconds time_to_form = 5s;

// Processes about which a rank asks the store at each look, while it makes a group. Without a
// limit, the requests of n ranks grow with n * n.
constexpr std::size_t most_questions = 16;

// Added to the times for which living ranks may wait for each other.
constexpr std::chrono::seconds margin_of_wait{60};

std::map<Seat, int> places_in(const std::vector<Seat>& members) {
  std::map<Seat, int> places;
  for (const Seat& seat : members) places.emplace(seat, static_cast<int>(places.size()));
  return places;
}

GroupOrigin origin_of(const std::vector<Seat>& members) {
  std::vector<std::string> processes;
  for (const Seat& seat : members) processes.push_back(text_of(seat));
  return {.processes = std::make_shared<const std::vector<std::string>>(std::move(processes))};
}

struct Generation {
  std::map<Seat, int> places;
  std::shared_ptr<comm::RankContext> context;  // Null before the group exists.
};

}  // namespace

class ElasticGroup::Implementation {
 public:
  Implementation(const ElasticOptions& options, comm::ElasticRuntime& runtime);
  ~Implementation();
  Implementation(const Implementation&) = delete;
  Implementation& operator=(const Implementation&) = delete;

  Change agree(const StepProgress& progress);
  void form();
  ProcessGroup& group();
  int generation() const { return decision_.generation; }
  bool has_arrivals() const { return has_arrivals_; }
  void finish();

 private:
  std::optional<Decision> first_decision();
  std::optional<Decision> join();
  std::optional<int> await_invitation();
  std::optional<Decision> next_decision(const StepProgress& progress);
  void propose(const std::map<Seat, Vote>& votes);
  void invite(std::map<Seat, Vote>& votes, std::int64_t& arrivals);
  bool has_lost(const Seat& seat);
  void throw_if_lost(const Seat& seat);
  [[noreturn]] void throw_without_state();
  ProcessGroup make_or_give_up(const InitOptions& init);
  bool is_absent(const Seat& seat);
  std::chrono::milliseconds longest_wait() const;
  bool may_propose(const std::map<Seat, Vote>& votes, std::chrono::milliseconds waited,
                   bool leaves);
  bool is_first_of_living();
  void read_votes(int generation, const std::vector<Seat>& seats, std::map<Seat, Vote>& votes);
  void watch_arrivals();
  void watch(const Decision& decision, const std::string& name);
  void stop_watching();
  void leave(std::optional<ProcessGroup> group) const;

  ElasticOptions options_;
  std::chrono::milliseconds call_timeout_;
  comm::ElasticRuntime& runtime_;
  LaunchEnvironment who_;
  Seat me_;
  std::shared_ptr<comm::ElasticEntries> entries_;
  Decision decision_;  // The latest; before the first one, all ranks of the launcher.
  Generation made_;    // The latest group that was made.
  std::optional<ProcessGroup> group_;
  int failures_ = 0;  // To make a group, since the last success.
  int invited_in_ = 0;
  std::atomic<bool> has_arrivals_{false};
  std::atomic<bool> is_stopping_{false};
  std::function<void()> end_watching_;  // Waits for the thread that watches.
};

ElasticGroup::Implementation::Implementation(const ElasticOptions& options,
                                             comm::ElasticRuntime& runtime)
    : options_(options), call_timeout_(options.init.timeout), runtime_(runtime) {
  require(options.init.name.empty(), "an elastic group names its groups itself");
  require(options.init.mpi_communicator == nullptr,
          "an elastic group cannot use an MPI communicator, whose ranks never change");
  require(options.least >= 1, "an elastic group has at least one rank");
  if (const auto limit = straggler_limit()) {
    call_timeout_ = std::min(call_timeout_, *limit);
    options_.patience = std::min(options_.patience, *limit);
  }
  who_ = options.init.environment ? *options.init.environment : read_environment();
  me_ = {.rank = who_.rank,
         .incarnation = options.incarnation >= 0 ? options.incarnation : earlier_starts()};
  comm::LateRanks late(who_.rank, options.init.warn_after);
  LaunchEnvironment opened = who_;
  const JobStore found =
      open_job_store(opened, options.init, options.init.interface, in(options.init.timeout), late);
  const bool is_far = !found.host.empty() && who_.local_world_size != who_.world_size;
  if (options_.init.interface.empty() && is_far)
    options_.init.interface = choose_interface("", found.host).name;
  entries_ = std::make_shared<comm::ElasticEntries>(found.store, who_.attempt, runtime_);
  for (int rank = 0; rank < who_.world_size; ++rank) decision_.members.push_back({rank, 0});
  entries_->enter(me_);
}

ElasticGroup::Implementation::~Implementation() {
  stop_watching();
  leave(std::exchange(group_, std::nullopt));
}

void ElasticGroup::Implementation::leave(std::optional<ProcessGroup> group) const {
  if (!group) return;
  try {
    leave_process_group(*group);
  } catch (const std::exception& error) {  // It was destroyed, or has ended otherwise.
    log(LogLevel::debug, fmt::format("leaving group {}: {}", group->name(), error.what()));
  }
}

ProcessGroup& ElasticGroup::Implementation::group() {
  require(group_.has_value(), "the elastic group has not been made");
  return *group_;
}

// A process that joins is known only by its entry.
bool ElasticGroup::Implementation::has_lost(const Seat& seat) {
  const auto place = made_.places.find(seat);
  if (place == made_.places.end()) return entries_->has_ended(seat);
  return made_.context->has_lost(place->second);
}

// Whether the process will not vote. One that ended in order is not lost.
bool ElasticGroup::Implementation::is_absent(const Seat& seat) {
  return has_lost(seat) || entries_->has_ended(seat);
}

bool ElasticGroup::Implementation::is_first_of_living() {
  for (const Seat& seat : decision_.members) {
    if (seat == me_) return true;
    if (!is_absent(seat)) return false;
  }
  return false;
}

void ElasticGroup::Implementation::read_votes(int generation, const std::vector<Seat>& seats,
                                              std::map<Seat, Vote>& votes) {
  for (const Seat& seat : seats) {
    if (votes.contains(seat)) continue;
    if (const auto vote = entries_->find_vote(generation, seat)) votes.emplace(seat, *vote);
  }
}

// --- Agreement -----------------------------------------------------------------------------------

void ElasticGroup::Implementation::throw_without_state() {
  if (entries_->is_finished())
    throw Error(Fault::aborted, "the training ended before this process joined it");
  throw Error(Fault::peer_lost,
              "no rank is left that has the state of the training: start the job again from its "
              "latest checkpoint");
}

ElasticGroup::Change ElasticGroup::Implementation::agree(const StepProgress& progress) {
  const bool is_new = decision_.generation < 0;
  const std::map<Seat, int> before = places_in(decision_.members);
  std::optional<Decision> next;
  if (is_new && me_.incarnation > 0 && entries_->newest()) {
    next = join();
  } else {
    const Vote vote = progress.has_state ? Vote{progress} : Vote{};
    entries_->vote(decision_.generation + 1, me_, vote);
    next = is_new ? first_decision() : next_decision(progress);
  }
  if (!next) return {.has_left = true};
  Change change{.completed = next->completed};
  const auto place = comm::place_of(me_, next->members);
  if (!place) {
    stop_watching();
    entries_->withdraw(decision_.generation + 1, me_);
    if (next->members.empty() && !progress.leaves) {
      if (!progress.has_state) throw_without_state();
      throw Error(
          Fault::peer_lost,
          fmt::format("the training ended without rank {}, which did not come in time: start "
                      "the job again from its latest checkpoint",
                      who_.rank));
    }
    if (!progress.leaves)
      throw Error(Fault::aborted,
                  fmt::format("the other ranks continue without rank {} (process {} in its place), "
                              "which did not come in time",
                              who_.rank, me_.incarnation));
    change.has_left = true;
    return change;
  }
  decision_ = *std::move(next);
  change.joins = *place >= decision_.holders;
  for (int i = 0; i < static_cast<int>(decision_.members.size()); ++i) {
    const Seat& seat = decision_.members[static_cast<std::size_t>(i)];
    const auto former = before.find(seat);
    const int rank = is_new ? i : former == before.end() ? -1 : former->second;
    change.former_ranks.push_back(i < decision_.holders ? rank : -1);
  }
  return change;
}

// All ranks of the launcher, each by its latest process.
std::optional<Decision> ElasticGroup::Implementation::first_decision() {
  const Deadline deadline = runtime_.in(options_.init.timeout);
  std::map<Seat, Vote> votes;
  while (true) {
    const auto pause = me_.rank == 0 ? short_pause : pause_between_looks(decision_.members.size());
    if (auto found = entries_->find_decision(0, pause)) {
      if (comm::place_of(me_, found->members)) return found;
      entries_->withdraw(0, me_);
      return join();
    }
    std::vector<int> missing;
    if (me_.rank == 0) {
      for (Seat& seat : decision_.members) seat.incarnation = entries_->incarnation(seat.rank);
      read_votes(0, decision_.members, votes);
      for (const Seat& seat : decision_.members)
        if (!votes.contains(seat)) missing.push_back(seat.rank);
      if (missing.empty()) propose(votes);
    }
    if (runtime_.now() <= deadline) continue;
    entries_->withdraw(0, me_);
    throw Error(Fault::timeout,
                fmt::format("making an elastic group of {} ranks: {}", who_.world_size,
                            missing.empty()
                                ? std::string("rank 0 did not come")
                                : fmt::format("ranks {} did not come", fmt::join(missing, ", "))),
                missing);
  }
}

// Empty if this rank leaves without a decision.
std::optional<Decision> ElasticGroup::Implementation::next_decision(const StepProgress& progress) {
  const int generation = decision_.generation + 1;
  const auto begin = runtime_.now();
  std::int64_t looks = 0;
  std::map<Seat, Vote> votes;
  while (true) {
    // In ms: in ns, a long `patience` would overflow.
    const auto waited = std::chrono::floor<std::chrono::milliseconds>(runtime_.now() - begin);
    const bool is_late = waited > options_.patience;
    const bool is_first = is_first_of_living();
    const auto pause =
        is_first && !is_late ? short_pause : pause_between_looks(decision_.members.size());
    if (auto found = entries_->find_decision(generation, pause)) return found;
    if (!is_first && !is_late) continue;
    read_votes(generation, decision_.members, votes);
    entries_->beat(fmt::format("{} {}", text_of(me_), ++looks));
    if (may_propose(votes, waited, progress.leaves)) {
      propose(votes);
    } else if (is_late && progress.leaves) {
      stop_watching();
      entries_->end(me_);
      // A voter without the state would become a member. The steps of one with it count.
      if (!progress.has_state) entries_->erase_vote(generation, me_);
      return std::nullopt;
    }
  }
}

// A decision without a rank that has the state ends the training. While such a rank may still vote,
// others wait for longest_wait(), or leave without a decision.
bool ElasticGroup::Implementation::may_propose(const std::map<Seat, Vote>& votes,
                                               std::chrono::milliseconds waited, bool leaves) {
  const auto may_stay = [&](const Seat& seat) {
    const auto vote = votes.find(seat);
    if (vote == votes.end()) return !entries_->has_ended(seat);
    return vote->second.progress && !vote->second.progress->leaves;
  };
  const auto& members = decision_.members;
  const auto one_lives = [&](bool has_voted) {
    return std::ranges::any_of(members, [&](const Seat& seat) {
      return votes.contains(seat) == has_voted && !has_lost(seat) && may_stay(seat);
    });
  };
  const bool is_late = waited > options_.patience;
  if (one_lives(/*has_voted=*/true)) return is_late || !one_lives(/*has_voted=*/false);
  if (one_lives(/*has_voted=*/false)) return waited > longest_wait();
  // A rank that lives, and has only lost its connection, proposes before `patience` ends.
  return (is_late && !leaves) || std::ranges::none_of(members, may_stay);
}

void ElasticGroup::Implementation::propose(const std::map<Seat, Vote>& votes) {
  std::map<Seat, Vote> all = votes;
  for (auto& [seat, vote] : all)
    if (vote.progress && has_lost(seat)) vote.progress->leaves = true;
  std::int64_t arrivals = decision_.arrivals;
  if (decision_.generation >= 0) invite(all, arrivals);
  const Decision proposed = decide(decision_, all, arrivals);
  const bool is_too_small = proposed.holders > 0 && proposed.holders < options_.least;
  // After the decision, votes are erased.
  if (is_too_small && entries_->find_decision(proposed.generation, 0ms)) return;
  if (is_too_small)
    throw Error(Fault::peer_lost,
                fmt::format("{} of {} ranks are left, and at least {} are required to continue",
                            proposed.holders, decision_.members.size(), options_.least));
  entries_->propose(decision_, proposed);
}

// --- Processes that join -------------------------------------------------------------------------

void ElasticGroup::Implementation::invite(std::map<Seat, Vote>& votes, std::int64_t& arrivals) {
  const int generation = decision_.generation + 1;
  std::vector<Seat> invited;
  while (const auto seat = entries_->arrival(arrivals + 1)) {
    ++arrivals;
    if (!entries_->waits(*seat)) continue;
    entries_->invite(*seat, generation);
    invited.push_back(*seat);
  }
  const Deadline deadline = runtime_.in(time_to_answer);
  const auto answered = [&](const Seat& seat) { return votes.contains(seat); };
  while (!std::ranges::all_of(invited, answered) && runtime_.now() < deadline) {
    read_votes(generation, invited, votes);
    runtime_.sleep_for(short_pause);
  }
}

// Then a process without the state ends. Living ranks may wait for a stopped one, such as rank
// 0: in a call until its timeout, then for `patience`.
std::chrono::milliseconds ElasticGroup::Implementation::longest_wait() const {
  return longer_by(longer_by(options_.patience, std::min(call_timeout_, default_timeout)),
                   margin_of_wait);
}

// Returns the generation; empty if this process leaves instead.
std::optional<int> ElasticGroup::Implementation::await_invitation() {
  std::int64_t number = entries_->arrive(me_);
  std::optional<std::string> heartbeat;
  Deadline silent = runtime_.in(longest_wait());
  while (true) {
    if (runtime_.preemption_signalled()) {
      entries_->end(me_);
      return std::nullopt;
    }
    // An arrival may have come too late, or its invitation may have been erased. An invitation is
    // older than the decision that counts the arrival.
    const auto newest = entries_->newest();
    const int invited = entries_->invitation(me_);
    if (invited > invited_in_) return invited_in_ = invited;
    if (newest && newest->arrivals >= number) number = entries_->arrive(me_);
    if (entries_->is_finished()) throw_without_state();
    if (auto beat = entries_->heartbeat(); beat != heartbeat) {
      heartbeat = std::move(beat);
      silent = runtime_.in(longest_wait());
    }
    if (runtime_.now() > silent) throw_without_state();
    runtime_.sleep_for(comm::pause_before_invitation(newest ? newest->members.size() : 0));
  }
}

std::optional<Decision> ElasticGroup::Implementation::join() {
  runtime_.keep_preemption_signals();  // Otherwise they would kill it.
  while (const auto next = await_invitation()) {
    entries_->vote(*next, me_, Vote{});
    std::optional<Decision> found;
    const Deadline deadline = runtime_.in(options_.patience);
    while (!found && runtime_.now() < deadline)
      found = entries_->find_decision(*next, time_to_answer);
    if (found && comm::place_of(me_, found->members)) return found;
    entries_->withdraw(*next, me_);  // The vote came too late.
  }
  return std::nullopt;
}

void ElasticGroup::Implementation::watch_arrivals() {
  stop_watching();
  has_arrivals_ = false;
  is_stopping_ = false;
  if (group_->rank() != 0) return;
  end_watching_ = runtime_.start([this, decision = decision_, name = group_->name()] {
    try {
      watch(decision, name);
    } catch (const std::exception& error) {
      log(LogLevel::warning, fmt::format("no process can join any more: {}", error.what()));
    }
  });
}

void ElasticGroup::Implementation::watch(const Decision& decision, const std::string& name) {
  entries_->erase_before(decision, [this] { return is_stopping_.load(); });
  std::int64_t known = decision.arrivals;
  for (std::int64_t beat = 0; !is_stopping_; ++beat) {
    for (auto seat = entries_->arrival(known + 1); seat; seat = entries_->arrival(known + 1)) {
      has_arrivals_ = entries_->waits(*seat);
      if (has_arrivals_) break;
      ++known;  // It has ended.
    }
    entries_->beat(fmt::format("{} {}", name, beat));
    for (int i = 0; i < 5 && !is_stopping_; ++i) runtime_.sleep_for(long_pause);
  }
}

void ElasticGroup::Implementation::stop_watching() {
  is_stopping_ = true;
  if (const auto end = std::exchange(end_watching_, nullptr)) end();
}

// The store may have ended with the first process that exited.
void ElasticGroup::Implementation::finish() {
  try {
    entries_->end(me_);
    entries_->finish();
  } catch (const Error& error) {
    if (error.fault() != Fault::peer_lost) throw;
  }
}

// --- The group -----------------------------------------------------------------------------------

void ElasticGroup::Implementation::throw_if_lost(const Seat& seat) {
  if (has_lost(seat))
    throw Error(Fault::peer_lost,
                fmt::format("making generation {}: rank {} of the launcher has ended", generation(),
                            seat.rank));
}

// Ranks that still make the group would be left out if `patience` is shorter than their wait.
ProcessGroup ElasticGroup::Implementation::make_or_give_up(const InitOptions& init) {
  try {
    return runtime_.make_group(init, call_timeout_);
  } catch (const Error& error) {
    if (can_continue_after(error)) entries_->give_up(generation());
    throw;
  }
}

void ElasticGroup::Implementation::form() {
  InitOptions init = options_.init;
  init.name = fmt::format("world~{}", generation());
  init.timeout = std::min(options_.init.timeout, time_to_form * (1 << std::min(failures_, 10)));
  std::vector<Seat> known;  // In the group before.
  std::vector<Seat> others;
  for (const Seat& seat : decision_.members) {
    if (!made_.places.contains(seat))
      others.push_back(seat);
    else if (!has_lost(seat))  // Otherwise it has voted since: only its connection had ended.
      known.push_back(seat);
  }
  const auto look = [this, known, others, next = static_cast<std::size_t>(who_.rank),
                     due = runtime_.in(wait_slice)]() mutable {
    for (const Seat& seat : known) throw_if_lost(seat);
    if (runtime_.now() < due) return;
    due = runtime_.in(wait_slice);
    for (std::size_t i = 0; i < std::min(others.size(), most_questions); ++i)
      throw_if_lost(others[next++ % others.size()]);
    if (entries_->is_given_up(generation()))
      throw Error(
          Fault::aborted,
          fmt::format("making generation {}: another rank has stopped making it", generation()));
  };
  const auto store = std::make_shared<comm::GenerationStore>(entries_, generation(), me_,
                                                             runtime_.in(init.timeout), look);
  init.store = store;
  LaunchEnvironment who = who_;
  who.rank = *comm::place_of(me_, decision_.members);
  who.world_size = static_cast<int>(decision_.members.size());
  who.local_world_size = 0;  // Unknown.
  who.store.clear();
  who.master.clear();
  who.attempt = 0;
  init.environment = who;
  ++failures_;
  ProcessGroup made = make_or_give_up(init);
  store->release();
  failures_ = 0;
  GroupAccess::state_of(made).set_origin(origin_of(decision_.members));
  made_ = {places_in(decision_.members), GroupAccess::state_of(made).rank_context()};
  leave(std::exchange(group_, std::move(made)));
  watch_arrivals();
}

ElasticGroup::ElasticGroup(const ElasticOptions& options)
    : ElasticGroup(options, comm::elastic_runtime()) {}

ElasticGroup::ElasticGroup(const ElasticOptions& options, comm::ElasticRuntime& runtime)
    : implementation_(std::make_unique<Implementation>(options, runtime)) {}

ElasticGroup::~ElasticGroup() = default;

ElasticGroup::Change ElasticGroup::agree(const StepProgress& progress) {
  return implementation_->agree(progress);
}

void ElasticGroup::form() { implementation_->form(); }

ProcessGroup& ElasticGroup::group() { return implementation_->group(); }

int ElasticGroup::generation() const { return implementation_->generation(); }

bool ElasticGroup::has_arrivals() const { return implementation_->has_arrivals(); }

void ElasticGroup::finish() { implementation_->finish(); }

bool can_continue_after(const Error& error) {
  return error.fault() == Fault::peer_lost || error.fault() == Fault::timeout ||
         error.fault() == Fault::aborted;
}

}  // namespace lockstep

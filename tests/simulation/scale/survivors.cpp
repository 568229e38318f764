// SPDX-License-Identifier: Apache-2.0
#include "tests/simulation/scale/survivors.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <utility>

namespace lockstep::simulation {
namespace {

using Ask = job::StoreRequest::Kind;
using Kind = job::StoreReply::Kind;
using comm::Decision;
using comm::long_pause;
using comm::short_pause;
using comm::time_to_answer;
using comm::Vote;
using std::chrono::milliseconds;

// As in comm/elastic_entries.cpp.
constexpr const char* newest_key = "newest";
std::string seat_key(int rank) { return fmt::format("seat/{}", rank); }
std::string vote_key(int generation, const Seat& seat) {
  return fmt::format("vote/{}/{}", generation, comm::text_of(seat));
}
std::string decision_key(int generation) { return fmt::format("decision/{}", generation); }
std::string arrival_key(std::int64_t number) { return fmt::format("arrival/{}", number); }
std::string invitation_key(const Seat& seat) {
  return fmt::format("invitation/{}", comm::text_of(seat));
}

std::string key_in_store(const std::string& key) {
  return fmt::format("lockstep/elastic/0/{}", key);
}

int number_in(const std::string& text) {
  int number = 0;
  std::from_chars(text.data(), text.data() + text.size(), number);
  return number;
}

Seat seat_in(const std::string& text) {
  Seat seat;
  const char* const end = text.data() + text.size();
  const auto [dot, error] = std::from_chars(text.data(), end, seat.rank);
  if (error == std::errc() && dot != end) std::from_chars(dot + 1, end, seat.incarnation);
  return seat;
}

}  // namespace

Survivors::Survivors(StoreHost& store, Simulation& simulation, int ranks)
    : store_(store), simulation_(simulation), ranks_(static_cast<std::size_t>(ranks)) {
  for (int rank = 0; rank < ranks; ++rank) {
    at(rank).seat = {rank, 0};
    decision_.members.push_back({rank, 0});
  }
}

// --- Requests ------------------------------------------------------------------------------------

void Survivors::ask(int rank, Ask kind, const std::string& key, const std::string& value,
                    const std::string& expected, StoreHost::Then then) {
  const std::string full = key_in_store(key);
  store_.ask(rank, {.kind = kind, .key = full, .value = value, .expected = expected},
             std::move(then));
}

void Survivors::find(int rank, const std::string& key, std::function<void(const Value&)> then) {
  ask(rank, Ask::find, key, "", "", [then = std::move(then)](const StoreHost::Answer& answer) {
    then(answer.kind == Kind::value ? answer.bytes : nullptr);
  });
}

void Survivors::set(int rank, const std::string& key, const std::string& value,
                    std::function<void()> then) {
  ask(rank, Ask::set, key, value, "",
      [then = std::move(then)](const StoreHost::Answer&) { then(); });
}

// --- Agreement -----------------------------------------------------------------------------------

void Survivors::assume_group() {
  decision_.generation = 0;
  decision_.holders = static_cast<int>(decision_.members.size());
  encoded_ = encode(decision_);
  set(0, newest_key, encoded_, [] {});
}

void Survivors::lose(int first, int n) {
  for (int rank = first; rank < first + n; ++rank) at(rank).lives = false;
  has_decided_.clear();
  late_at_ = simulation_.now() + patience;
  left_ = 0;
  for (const Seat& seat : decision_.members) left_ += at(seat.rank).lives ? 1 : 0;
  for (const Seat& seat : decision_.members)
    if (at(seat.rank).lives) vote(seat.rank);
}

void Survivors::vote(int rank) {
  Rank& self = at(rank);
  self.votes.clear();
  set(rank, vote_key(decision_.generation + 1, self.seat),
      encode(Vote{StepProgress{.completed = 1000, .prepared = 1000}}),
      [this, rank] { look(rank); });
}

bool Survivors::proposes(int rank) const { return rank == first_ || simulation_.now() > late_at_; }

// One iteration of next_decision(). A rank that is not the first looks whether that one has ended
// in order.
void Survivors::look(int rank) {
  if (rank == first_) return await_decision(rank, proposes(rank));
  find(rank, seat_key(first_),
       [this, rank](const Value&) { await_decision(rank, proposes(rank)); });
}

// As ElasticEntries::find_decision().
void Survivors::await_decision(int rank, bool may_propose) {
  const int generation = decision_.generation + 1;
  const bool is_soon = rank == first_ && simulation_.now() <= late_at_;
  store_.wait(rank, key_in_store(decision_key(generation)),
              is_soon ? short_pause : comm::pause_between_looks(decision_.members.size()),
              [this, rank, may_propose](const Value& found) {
                if (found) return finish(rank, found);
                find(rank, newest_key, [this, rank, may_propose](const Value& newest) {
                  if (newest && *newest != encoded_) return finish(rank, newest);
                  if (!may_propose) return look(rank);
                  read_votes(rank, 0);
                });
              });
}

void Survivors::read_votes(int rank, std::size_t next) {
  auto& votes = at(rank).votes;
  while (next < decision_.members.size() && votes.contains(decision_.members[next])) ++next;
  if (next == decision_.members.size()) {
    return set(rank, "heartbeat",
               fmt::format("{} {}", comm::text_of(at(rank).seat), ++at(rank).looks),
               [this, rank] { check_votes(rank, 0); });
  }
  const Seat seat = decision_.members[next];
  find(rank, vote_key(decision_.generation + 1, seat), [this, rank, next, seat](const Value& text) {
    if (text) at(rank).votes.emplace(seat, comm::decode_vote(*text));
    read_votes(rank, next + 1);
  });
}

// Whether all have voted or are lost. It asks the store about one that is neither.
void Survivors::check_votes(int rank, std::size_t next) {
  for (; next < decision_.members.size(); ++next) {
    const Seat& seat = decision_.members[next];
    if (at(rank).votes.contains(seat) || !at(seat.rank).lives) continue;
    if (simulation_.now() > late_at_) break;
    return find(rank, seat_key(seat.rank), [this, rank](const Value&) { look(rank); });
  }
  read_arrival(rank, decision_.arrivals + 1, {});
}

// As ElasticGroup::Implementation::invite().
void Survivors::read_arrival(int rank, std::int64_t number, std::vector<Seat> invited) {
  find(rank, arrival_key(number),
       [this, rank, number, invited = std::move(invited)](const Value& text) mutable {
         if (!text)
           return read_invited(rank, number - 1, std::move(invited), 0,
                               simulation_.now() + time_to_answer);
         const Seat seat = seat_in(*text);
         invited.push_back(seat);
         find(rank, seat_key(seat.rank),
              [this, rank, number, seat, invited = std::move(invited)](const Value&) mutable {
                set(rank, invitation_key(seat), std::to_string(decision_.generation + 1),
                    [this, rank, number, invited = std::move(invited)]() mutable {
                      read_arrival(rank, number + 1, std::move(invited));
                    });
              });
       });
}

void Survivors::read_invited(int rank, std::int64_t arrivals, std::vector<Seat> invited,
                             std::size_t next, Time deadline) {
  auto& votes = at(rank).votes;
  while (next < invited.size() && votes.contains(invited[next])) ++next;
  if (next < invited.size()) {
    const Seat seat = invited[next];
    return find(rank, vote_key(decision_.generation + 1, seat),
                [this, rank, arrivals, invited = std::move(invited), next, deadline,
                 seat](const Value& text) mutable {
                  if (text) at(rank).votes.emplace(seat, comm::decode_vote(*text));
                  read_invited(rank, arrivals, std::move(invited), next + 1, deadline);
                });
  }
  const bool answered =
      std::ranges::all_of(invited, [&](const Seat& seat) { return votes.contains(seat); });
  if (answered || simulation_.now() >= deadline) return propose(rank, arrivals);
  simulation_.after(short_pause, [this, rank, arrivals, invited = std::move(invited), deadline] {
    read_invited(rank, arrivals, invited, 0, deadline);
  });
}

void Survivors::propose(int rank, std::int64_t arrivals) {
  const Decision next = decide(decision_, at(rank).votes, arrivals);
  const auto text = std::make_shared<const std::string>(encode(next));
  ask(rank, Ask::compare_set, newest_key, *text, encoded_,
      [this, rank, text, next](const StoreHost::Answer& answer) {
        if (answer.kind == Kind::error || *answer.bytes != *text) return look(rank);
        if (next_.generation < next.generation) {
          next_ = next;
          const int admitted = static_cast<int>(next.members.size()) - next.holders;
          left_ -= next.generation > 0 ? waiting_ - admitted : 0;
          waiting_ -= next.generation > 0 ? admitted : 0;
        }
        set(rank, decision_key(next.generation), *text, [this, rank] { look(rank); });
      });
}

// The latest rank that gets the decision makes it that of all.
void Survivors::finish(int rank, const Value& decision) {
  if (std::exchange(has_decided_[rank], true)) return;
  last_ = simulation_.now();
  if (--left_ > 0) return;
  decision_ = comm::decode_decision(*decision);
  encoded_ = *decision;
  has_decided_.clear();
}

// --- Processes that join -------------------------------------------------------------------------

void Survivors::join(int first, int n) {
  for (int rank = first; rank < first + n; ++rank) {
    Rank& self = at(rank);
    self = {.seat = {rank, self.seat.incarnation + 1}};
    enter(rank);
  }
  waiting_ = n;
  admit_more();
}

void Survivors::admit_more() {
  left_ = static_cast<int>(decision_.members.size()) + waiting_;
  late_at_ = Time::max();
  is_watching_ = true;
  watch(0);
}

// Rank 0's thread looks for arrivals; then all vote after the step.
void Survivors::watch(int rank) {
  if (!is_watching_) return;
  find(rank, arrival_key(decision_.arrivals + 1), [this, rank](const Value& text) {
    if (!text) {
      set(rank, "heartbeat", "world~1 1", [] {});
      simulation_.after(5 * long_pause, [this, rank] { watch(rank); });
      return;
    }
    is_watching_ = false;
    find(rank, seat_key(seat_in(*text).rank), [this](const Value&) {
      late_at_ = simulation_.now() + patience;
      for (const Seat& seat : decision_.members) vote(seat.rank);
    });
  });
}

// As ElasticEntries::enter(), agree() and arrive().
void Survivors::enter(int rank) {
  const std::string mine = std::to_string(at(rank).seat.incarnation);
  const std::string before = std::to_string(at(rank).seat.incarnation - 1);
  ask(rank, Ask::compare_set, seat_key(rank), mine, "",
      [this, rank, mine, before](const StoreHost::Answer&) {
        ask(rank, Ask::compare_set, seat_key(rank), mine, before,
            [this, rank](const StoreHost::Answer&) {
              find(rank, newest_key, [this, rank](const Value&) {
                find(rank, newest_key,
                     [this, rank](const Value&) { arrive(rank, decision_.arrivals + 1); });
              });
            });
      });
}

void Survivors::arrive(int rank, std::int64_t number) {
  const std::string mine = comm::text_of(at(rank).seat);
  ask(rank, Ask::compare_set, arrival_key(number), mine, "",
      [this, rank, number, mine](const StoreHost::Answer& answer) {
        if (*answer.bytes != mine) return arrive(rank, number + 1);
        await_invitation(rank);
      });
}

void Survivors::await_invitation(int rank) {
  find(rank, newest_key, [this, rank](const Value&) {
    find(rank, invitation_key(at(rank).seat), [this, rank](const Value& text) {
      const int invited = text ? number_in(*text) : 0;
      if (invited > at(rank).invited_in) {
        at(rank).invited_in = invited;
        return set(rank, vote_key(invited, at(rank).seat), encode(Vote{}),
                   [this, rank, invited] { await_admission(rank, invited); });
      }
      find(rank, "finished", [this, rank](const Value&) {
        find(rank, "heartbeat", [this, rank](const Value&) {
          simulation_.after(comm::pause_before_invitation(decision_.members.size()),
                            [this, rank] { await_invitation(rank); });
        });
      });
    });
  });
}

void Survivors::await_admission(int rank, int generation) {
  store_.wait(rank, key_in_store(decision_key(generation)), time_to_answer,
              [this, rank, generation](const Value& found) {
                if (!found) return await_admission(rank, generation);
                const Seat& seat = at(rank).seat;
                if (comm::place_of(seat, next_.members)) return finish(rank, found);
                // The vote came too late.
                ask(rank, Ask::erase, vote_key(generation, seat), "", "",
                    [this, rank](const StoreHost::Answer&) { arrive(rank, next_.arrivals + 1); });
              });
}

}  // namespace lockstep::simulation

// SPDX-License-Identifier: Apache-2.0
#include "lockstep/comm/elastic_entries.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>

#include "lockstep/base/error.h"

namespace lockstep::comm {
namespace {

constexpr const char* newest_key = "newest";
constexpr std::string_view ended_suffix = " ended";

std::string seat_key(int rank) { return fmt::format("seat/{}", rank); }
std::string vote_key(int generation, const Seat& seat) {
  return fmt::format("vote/{}/{}", generation, text_of(seat));
}
std::string decision_key(int generation) { return fmt::format("decision/{}", generation); }
std::string given_up_key(int generation) { return fmt::format("given-up/{}", generation); }
std::string arrival_key(std::int64_t number) { return fmt::format("arrival/{}", number); }
std::string invitation_key(const Seat& seat) { return fmt::format("invitation/{}", text_of(seat)); }
std::string keys_key(int generation, const Seat& seat) {
  return fmt::format("keys/{}/{}", generation, text_of(seat));
}

// The number at the text's begin, or 0.
int number_in(const std::optional<std::string>& text) {
  int number = 0;
  if (text) std::from_chars(text->data(), text->data() + text->size(), number);
  return number;
}

}  // namespace

ElasticEntries::ElasticEntries(std::shared_ptr<Store> job, int attempt, ElasticRuntime& runtime)
    : job_(std::move(job)),
      store_(*job_, fmt::format("lockstep/elastic/{}/", attempt)),
      runtime_(runtime) {}

// --- Processes -----------------------------------------------------------------------------------

// A request of a killed process may arrive after those of its successor.
void ElasticEntries::enter(const Seat& seat) {
  const std::string mine = std::to_string(seat.incarnation);
  std::string before;
  while (true) {
    std::string found = store_.compare_set(seat_key(seat.rank), before, mine);
    if (number_in(found) >= seat.incarnation) return;
    before = found == before ? std::string() : std::move(found);  // It was erased.
  }
}

// Unless it has a successor.
void ElasticEntries::end(const Seat& seat) {
  const std::string running = std::to_string(seat.incarnation);
  store_.compare_set(seat_key(seat.rank), running, running + std::string(ended_suffix));
}

bool ElasticEntries::has_ended(const Seat& seat) {
  const auto text = store_.find(seat_key(seat.rank));
  const int newest = number_in(text);
  return newest > seat.incarnation ||
         (text && newest == seat.incarnation && text->ends_with(ended_suffix));
}

int ElasticEntries::incarnation(int rank) { return number_in(store_.find(seat_key(rank))); }

// --- Votes and decisions -------------------------------------------------------------------------

void ElasticEntries::vote(int generation, const Seat& seat, const Vote& vote) {
  store_.set(vote_key(generation, seat), encode(vote));
}

std::optional<Vote> ElasticEntries::find_vote(int generation, const Seat& seat) {
  const auto text = store_.find(vote_key(generation, seat));
  return text ? std::optional(decode_vote(*text)) : std::nullopt;
}

void ElasticEntries::withdraw(int generation, const Seat& seat) {
  erase_vote(generation, seat);
  erase_keys(generation - 1, seat);
  store_.erase(given_up_key(generation - 1));
}

std::optional<Decision> ElasticEntries::newest() {
  const auto text = store_.find(newest_key);
  return text ? std::optional(decode_decision(*text)) : std::nullopt;
}

// The proposer may have died before it announced the decision.
std::optional<Decision> ElasticEntries::find_decision(int generation,
                                                      std::chrono::milliseconds limit) {
  try {
    return decode_decision(store_.wait(decision_key(generation), runtime_.in(limit)));
  } catch (const Error& error) {
    if (error.fault() != Fault::timeout) throw;
  }
  std::optional<Decision> last = newest();
  if (!last || last->generation < generation) return std::nullopt;
  if (last->generation == generation) store_.set(decision_key(generation), encode(*last));
  return last;
}

void ElasticEntries::propose(const Decision& last, const Decision& next) {
  const std::string before = last.generation < 0 ? std::string() : encode(last);
  const std::string text = encode(next);
  if (store_.compare_set(newest_key, before, text) == text)
    store_.set(decision_key(next.generation), text);  // Ends the waits for it.
}

void ElasticEntries::give_up(int generation) { store_.set(given_up_key(generation), "1"); }

bool ElasticEntries::is_given_up(int generation) {
  return store_.find(given_up_key(generation)).has_value();
}

// --- Processes that join -------------------------------------------------------------------------

std::int64_t ElasticEntries::arrive(const Seat& seat) {
  const auto last = newest();
  std::int64_t number = last ? last->arrivals + 1 : 1;
  const std::string text = text_of(seat);
  while (store_.compare_set(arrival_key(number), "", text) != text) ++number;
  return number;
}

std::optional<Seat> ElasticEntries::arrival(std::int64_t number) {
  const auto text = store_.find(arrival_key(number));
  if (!text) return std::nullopt;
  Seat seat{.rank = -1};
  const char* const end = text->data() + text->size();
  const auto [dot, error] = std::from_chars(text->data(), end, seat.rank);
  if (error == std::errc() && dot != end) std::from_chars(dot + 1, end, seat.incarnation);
  return seat;
}

bool ElasticEntries::waits(const Seat& seat) {
  return store_.find(seat_key(seat.rank)) == std::to_string(seat.incarnation);
}

void ElasticEntries::invite(const Seat& seat, int generation) {
  store_.set(invitation_key(seat), std::to_string(generation));
}

int ElasticEntries::invitation(const Seat& seat) {
  return number_in(store_.find(invitation_key(seat)));
}

void ElasticEntries::beat(const std::string& value) { store_.set("heartbeat", value); }

std::optional<std::string> ElasticEntries::heartbeat() { return store_.find("heartbeat"); }

void ElasticEntries::finish() { store_.set("finished", "1"); }

bool ElasticEntries::is_finished() { return store_.find("finished").has_value(); }

// --- Entries that no rank needs any more ---------------------------------------------------------

void ElasticEntries::note_keys(int generation, const Seat& seat,
                               const std::set<std::string>& keys) {
  using nlohmann::json;
  store_.set(keys_key(generation, seat),
             json(keys).dump(-1, ' ', false, json::error_handler_t::replace));
}

void ElasticEntries::erase_vote(int generation, const Seat& seat) {
  store_.erase(vote_key(generation, seat));
}

void ElasticEntries::erase_keys(int generation, const Seat& seat) {
  const std::string noted = keys_key(generation, seat);
  const auto text = store_.find(noted);
  if (!text) return;
  const auto keys = nlohmann::json::parse(*text, nullptr, /*allow_exceptions=*/false);
  for (const auto& key : keys)
    if (key.is_string()) job_->erase(key.get<std::string>());
  store_.erase(noted);
}

// The processes that asked to join after arrival `after`. Erases entries up to `last`.
std::vector<Seat> ElasticEntries::erase_arrivals(std::int64_t after, std::int64_t last) {
  std::vector<Seat> seats;
  for (std::int64_t number = after + 1;; ++number) {
    const auto seat = arrival(number);
    if (seat) seats.push_back(*seat);
    if (!seat && number > last) return seats;
    if (!seat || number > last) continue;
    store_.erase(invitation_key(*seat));
    store_.erase(arrival_key(number));
  }
}

// In the order of generations, ending with `current`.
std::vector<Decision> ElasticEntries::known_until(const Decision& current) {
  std::vector<Decision> known{current};
  while (known.back().generation > 0) {
    const auto text = store_.find(decision_key(known.back().generation - 1));
    if (!text) break;
    known.push_back(decode_decision(*text));
  }
  std::ranges::reverse(known);
  return known;
}

// A decision is erased last: an interrupted call can be repeated.
void ElasticEntries::erase_before(const Decision& current,
                                  const std::function<bool()>& is_interrupted) {
  const std::vector<Decision> known = known_until(current);
  for (const Seat& seat : known.front().members)
    if (known.front().generation == 0)  // An earlier process in its place may have voted.
      for (int incarnation = 0; incarnation <= seat.incarnation; ++incarnation)
        erase_vote(0, {seat.rank, incarnation});
  for (std::size_t i = 1; i < known.size(); ++i) {
    const Decision& before = known[i - 1];
    const Decision& next = known[i];
    std::vector<Seat> voters = erase_arrivals(before.arrivals, next.arrivals);
    for (const std::vector<Seat>* more : {&before.members, &next.members})
      voters.insert(voters.end(), more->begin(), more->end());
    for (const Seat& seat : voters) {
      if (is_interrupted()) return;
      erase_vote(next.generation, seat);
    }
    for (const Seat& seat : before.members) {
      if (is_interrupted()) return;
      erase_keys(before.generation, seat);
    }
    store_.erase(given_up_key(before.generation));
    store_.erase(decision_key(before.generation));
  }
}

}  // namespace lockstep::comm

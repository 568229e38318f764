// SPDX-License-Identifier: Apache-2.0
#include "tests/simulation/scale/ranks.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

namespace lockstep::simulation {
namespace {

using Ask = job::StoreRequest::Kind;
using Kind = job::StoreReply::Kind;

constexpr std::chrono::hours no_limit{10};

// With the members of RankInfo (comm/hosts/rendezvous.h), for an engine over TCP.
std::string description_of(int rank) {
  return nlohmann::json{
      {"rank", rank},
      {"pid", 100'000 + rank},
      {"host", fmt::format("node{:05}", rank / 8)},
      {"place", "0a1b2c3d-0123-4567-89ab-0123456789ab net:[4026531840] 1000 "},
      {"address", fmt::format("10.0.{}.{}:40000", rank / 8 / 256, rank / 8 % 256)},
      {"backend", ""},
      {"engines", {{"tcp", ""}}},
      {"contradiction", ""}}
      .dump();
}

std::string key_of(int rank) { return fmt::format("lockstep/world/rank/{}", rank); }

}  // namespace

void RanksMeeting::leave() {
  --left_;
  last_ = simulation_.now();
}

void RanksMeeting::meet_at_word(std::optional<Duration> thread) {
  left_ = ranks_;
  if (thread) return start_threads(0, *thread);
  for (int rank = 0; rank < ranks_; ++rank) connect(rank);
}

void RanksMeeting::start_threads(int rank, Duration cost) {
  if (rank == ranks_) return;
  simulation_.at(store_.work(cost), [this, rank, cost] {
    connect(rank);
    start_threads(rank + 1, cost);
  });
}

void RanksMeeting::connect(int rank) {
  store_.connect(rank, [this, rank] {
    if (rank != 0) return await_word(rank);
    store_.ask(0, {.kind = Ask::set, .key = "word", .value = "the word"},
               [this](const StoreHost::Answer&) { await_word(0); });
  });
}

void RanksMeeting::await_word(int rank) {
  store_.ask(rank, {.kind = Ask::wait, .key = "word"},
             [this](const StoreHost::Answer&) { leave(); });
}

void RanksMeeting::exchange_table() {
  left_ = ranks_;
  for (int rank = 0; rank < ranks_; ++rank) {
    const std::string key = key_of(rank);
    const std::string value = description_of(rank);
    store_.ask(rank, {.kind = Ask::compare_set, .key = key, .value = value},
               [this, rank](const StoreHost::Answer&) {
                 if (rank == 0) return collect(0);
                 store_.wait(rank, "lockstep/world/all", no_limit,
                             [this](const auto&) { leave(); });
               });
  }
}

void RanksMeeting::collect(int rank) {
  if (rank < ranks_) {
    store_.ask(0, {.kind = Ask::wait, .key = key_of(rank)},
               [this, rank](const StoreHost::Answer& answer) {
                 table_ += (rank == 0 ? R"({"cards":[)" : ",") + *answer.bytes;
                 collect(rank + 1);
               });
    return;
  }
  table_ += R"(],"secret":"0123456789012345678901234567890123456789012"})";
  store_.ask(0, {.kind = Ask::set, .key = "lockstep/world/all", .value = table_},
             [this](const StoreHost::Answer& answer) {
               if (answer.kind == Kind::error) {
                 error_ = *answer.bytes;
                 return;
               }
               store_.wait(0, "lockstep/world/all", no_limit, [this](const auto&) { leave(); });
             });
}

}  // namespace lockstep::simulation

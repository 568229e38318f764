// SPDX-License-Identifier: Apache-2.0
#include "lockstep/comm/hosts/rank_card.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>

#include "lockstep/base/error.h"
#include "lockstep/base/processes.h"
#include "lockstep/base/text.h"
#include "lockstep/job/store/tcp_store.h"

namespace lockstep {
namespace {

using Json = nlohmann::json;

// Other ranks wait a little longer than rank 0, which then tells them who is missing.
constexpr std::chrono::seconds time_for_cards{2};

constexpr std::size_t longest_text = 4096;  // Bytes.

Json to_json(const RankCard& card) {
  return {{"rank", card.rank},       {"pid", card.pid},
          {"host", card.host},       {"place", card.place},
          {"address", card.address}, {"backend", card.backend},
          {"engines", card.engines}, {"contradiction", card.contradiction}};
}

// Makes text safe to quote in messages.
std::string clean(const std::string& text) { return clean_text(text, longest_text); }

RankCard card_of(const Json& json) {
  RankCard card;
  json.at("rank").get_to(card.rank);
  json.at("pid").get_to(card.pid);
  card.host = clean(json.at("host"));
  json.at("place").get_to(card.place);
  json.at("address").get_to(card.address);
  card.backend = clean(json.at("backend"));
  for (const auto& [engine, why_not] : json.at("engines").items())
    card.engines.emplace(clean(engine), clean(why_not));
  card.contradiction = clean(json.value("contradiction", ""));
  return card;
}

std::string key_of(const std::string& prefix, int rank) {
  return fmt::format("{}rank/{}", prefix, rank);
}

// Stores this rank's card. Errors: misuse when another process has stored one as this rank.
void put_down(Store& store, const std::string& prefix, const RankCard& mine) {
  const std::string card = to_json(mine).dump();
  const std::string there = store.compare_set(key_of(prefix, mine.rank), "", card);
  if (there == card) return;
  const RankCard other = card_of(Json::parse(there));
  throw Error(Fault::misuse,
              fmt::format("rank {} is taken already, by process {} on {}: two ranks have the same "
                          "RANK, or the store is of an earlier start of the job",
                          mine.rank, other.pid, other.host));
}

// Collects all ranks' cards, on rank 0.
std::string gather_cards(Store& store, const std::string& prefix, int world_size,
                         Deadline deadline) {
  Json cards = Json::array();
  std::string missing;
  for (int rank = 0; rank < world_size; ++rank) {
    try {
      cards.push_back(Json::parse(store.wait(key_of(prefix, rank), deadline)));
    } catch (const Error& error) {
      if (error.fault() != Fault::timeout) throw;
      missing += fmt::format("{}{}", missing.empty() ? "" : ", ", rank);
    }
  }
  if (!missing.empty()) return Json{{"missing", missing}}.dump();
  return Json{{"secret", std::string(make_job_token().text())}, {"cards", std::move(cards)}}.dump();
}

}  // namespace

std::string this_place() {
  char net[64] = {};
  if (::readlink("/proc/self/ns/net", net, sizeof net - 1) < 0) net[0] = '\0';
  std::ifstream in("/proc/sys/kernel/random/boot_id");
  std::string boot;
  in >> boot;
  const char* told = std::getenv("LOCKSTEP_HOST_ID");
  return fmt::format("{} {} {} {}", boot, net, ::getuid(), told == nullptr ? "" : told);
}

RollCall call_the_roll(Store& store, const std::string& prefix, const RankCard& mine,
                       int world_size, Deadline deadline) {
  const std::string all = prefix + "all";
  try {
    put_down(store, prefix, mine);
    if (mine.rank == 0) store.set(all, gather_cards(store, prefix, world_size, deadline));
    const bool waits = mine.rank != 0 && deadline != no_deadline;
    const Json said = Json::parse(store.wait(all, waits ? deadline + time_for_cards : deadline));
    if (said.contains("missing"))
      throw Error(Fault::timeout, fmt::format("of {} ranks, these did not come: {}", world_size,
                                              clean(said["missing"])));
    RollCall roll{.secret = said.at("secret"), .cards = {}};
    for (const Json& card : said.at("cards")) roll.cards.push_back(card_of(card));
    if (roll.cards.size() != static_cast<std::size_t>(world_size))
      throw Error(Fault::corrupt, fmt::format("the store has {} cards for {} ranks",
                                              roll.cards.size(), world_size));
    return roll;
  } catch (const Json::exception& error) {
    throw Error(Fault::corrupt,
                fmt::format("what ranks said in the store under '{}': {}", prefix, error.what()));
  }
}

}  // namespace lockstep

// SPDX-License-Identifier: Apache-2.0
#include "lockstep/comm/core/given_up.h"

#include <fmt/format.h>

#include <utility>

namespace lockstep {
namespace {

std::string whom_it_blames(const GivenUp& why) {
  if (why.ranks.empty()) return {};
  const std::string more = why.more > 0 ? fmt::format(" and {} more", why.more) : "";
  return fmt::format(" ({}: {}{})", why.fault == Fault::timeout ? "waits for" : "differ",
                     as_ranges(why.ranks), more);
}

}  // namespace

std::string describe(const GivenUp& why) {
  std::string text;
  if (why.rank >= 0) text += fmt::format("rank {}{}: ", why.rank, whom_it_blames(why));
  if (!why.call.empty()) text += why.call + ": ";
  return text + why.reason;
}

GroupGivenUp::GroupGivenUp(std::string_view context, GivenUp why, std::source_location where)
    : Error(why.fault, fmt::format("{}: the group was given up: {}", context, describe(why)),
            why.ranks, where),
      why_(std::move(why)) {}

GroupGivenUp::GroupGivenUp(GivenUp why, std::string_view text, std::source_location where)
    : Error(why.fault, text, why.ranks, where), why_(std::move(why)) {}

void throw_again(const Error& error, std::string_view text) {
  const auto where = std::source_location::current();
  if (const auto* given_up = dynamic_cast<const GroupGivenUp*>(&error))
    throw GroupGivenUp(given_up->why(), text, where);
  throw Error(error.fault(), text, error.ranks(), where);
}

}  // namespace lockstep

// SPDX-License-Identifier: Apache-2.0
#include "lockstep/comm/core/abort_reason.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "lockstep/base/text.h"

namespace lockstep::comm {
namespace {

// "rank 2 waited for ranks 1,3-4", or "rank 2 found that rank 1 differs".
std::string finding_of(const AbortReason& why) {
  std::string who = fmt::format("rank {}", why.rank);
  if (why.ranks.empty() || why.fault == Fault::peer_lost) return who;  // Or `reason` names them.
  const bool is_one = why.ranks.size() == 1 && why.more == 0;
  const std::string blamed =
      name_of_ranks(why.ranks) + (why.more > 0 ? fmt::format(" and {} more", why.more) : "");
  if (why.fault == Fault::timeout) return fmt::format("{} waited for {}", who, blamed);
  return fmt::format("{} found that {} {}", who, blamed, is_one ? "differs" : "differ");
}

std::string text_without(const std::string& context, const Error& error) {
  std::string text = bare_text(error);
  if (text.starts_with(context + ": ")) text.erase(0, context.size() + 2);
  return text;
}

const AbortReason* reason_of_another(const Error& error) {
  const auto* aborted = dynamic_cast<const GroupAborted*>(&error);
  return aborted == nullptr ? nullptr : &aborted->why();
}

// `why` for a message of another rank that already names the same call.
AbortReason without_call(AbortReason why, std::string_view context) {
  const auto call_of = [](std::string_view text) {
    return text.substr(0, text.rfind(" on rank "));
  };
  if (call_of(why.call) == call_of(context)) why.call.clear();
  return why;
}

}  // namespace

std::string describe(const AbortReason& why) {
  std::string text;
  if (why.rank >= 0) text += finding_of(why) + ": ";
  if (!why.call.empty()) text += why.call + ": ";
  return text + why.reason;
}

GroupAborted::GroupAborted(std::string_view context, AbortReason why, std::source_location where)
    : Error(why.fault,
            fmt::format("{}: the group was aborted: {}", context,
                        describe(without_call(why, context))),
            why.ranks, where),
      why_(std::move(why)) {}

GroupAborted::GroupAborted(AbortReason why, std::string_view text, std::source_location where)
    : Error(why.fault, text, why.ranks, where), why_(std::move(why)) {}

void throw_again(const Error& error, std::string_view text) {
  const auto where = std::source_location::current();
  if (const auto* aborted = dynamic_cast<const GroupAborted*>(&error))
    throw GroupAborted(aborted->why(), text, where);
  throw Error(error.fault(), text, error.ranks(), where);
}

bool blames_the_living(const Error& error) {
  return error.fault() == Fault::timeout || error.fault() == Fault::mismatch;
}

bool blames_ranks(const Error& error) {
  return blames_the_living(error) || (error.fault() == Fault::peer_lost && !error.ranks().empty());
}

AbortReason abort_reason_for(const Error& error, int rank, const std::string& context) {
  AbortReason why;
  if (const AbortReason* theirs = reason_of_another(error)) {
    why = *theirs;
  } else {
    why = {.rank = rank, .call = context, .reason = text_without(context, error)};
    if (blames_ranks(error))
      why.ranks = ranks_within(error.ranks(), std::numeric_limits<int>::max());
    const std::size_t named = std::min(why.ranks.size(), most_blamed);
    why.more = static_cast<int>(why.ranks.size() - named);
    why.ranks.resize(named);
  }
  const bool is_told_as_it_is = blames_the_living(error) || error.fault() == Fault::peer_lost;
  why.fault = is_told_as_it_is ? error.fault() : Fault::aborted;
  return why;
}

Failure blame_in(const Error& error, int rank, const std::string& context,
                 std::chrono::milliseconds timeout) {
  Failure failure{.detected_by = rank, .ranks = error.ranks()};
  failure.call = context.substr(0, context.rfind(" on rank "));
  if (error.fault() == Fault::peer_lost && !failure.ranks.empty()) {
    failure.rank = failure.ranks.front();
    failure.left = true;
    return failure;
  }
  failure.fault = error.fault();
  failure.what = text_without(context, error);
  if (failure.ranks.empty()) return failure;
  failure.rank = failure.ranks.front();
  const bool is_late = failure.fault == Fault::timeout;
  if (const AbortReason* theirs = reason_of_another(error)) {
    failure.detected_by = theirs->rank;
    failure.what = is_late ? fmt::format("in time; {}", describe(without_call(*theirs, context)))
                           : theirs->reason;
  } else if (is_late) {
    failure.what = fmt::format("within {:g} s; rank {} waited",
                               std::chrono::duration<double>(timeout).count(), rank);
  }
  return failure;
}

}  // namespace lockstep::comm

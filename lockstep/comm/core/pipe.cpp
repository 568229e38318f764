// SPDX-License-Identifier: Apache-2.0
#include "lockstep/comm/core/pipe.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"
#include "lockstep/comm/core/abort_reason.h"

namespace lockstep::comm {

Error error_of_the_left(const std::string& context, const std::vector<int>& ranks,
                        std::string_view group, const std::optional<Failure>& why,
                        std::source_location where) {
  if (why) return {context, *why, where};
  return {Fault::peer_lost,
          fmt::format("{}: {} {} left group {} in order", context, name_of_ranks(ranks),
                      ranks.size() == 1 ? "has" : "have", group),
          ranks, where};
}

// A rank may leave its group before others have seen the new one. They see it at the second look.
std::function<void()> watch_the_making(const Pipes& pipes, std::string group, std::string made,
                                       std::vector<int> ranks, std::function<void()> watch) {
  return
      [&pipes, group = std::move(group), context = "making group " + made, ranks = std::move(ranks),
       had_left = std::vector<int>(), watch = std::move(watch)]() mutable {
        pipes.throw_if_over(context);
        std::vector<int> left;
        std::ranges::copy_if(ranks, std::back_inserter(left),
                             [&](int rank) { return pipes.has_left(rank); });
        if (!left.empty() && left == had_left)
          throw error_of_the_left(context, left, group, pipes.why_left(left.front()));
        had_left = std::move(left);
        watch();
      };
}

void throw_for_the_making(const GroupAborted& error, const std::function<void()>& watch) {
  watch();
  throw Error(error.fault(), bare_text(error), error.ranks());
}

}  // namespace lockstep::comm

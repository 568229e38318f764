// SPDX-License-Identifier: Apache-2.0
#include "lockstep/comm/core/disagreement.h"

#include <fmt/format.h>

#include <algorithm>

#include "lockstep/base/text.h"

namespace lockstep {
namespace {

// Groups ranks by call, in the order of each group's first rank.
std::vector<std::vector<int>> by_call(const std::vector<Signature>& calls) {
  std::vector<std::vector<int>> camps;
  for (std::size_t rank = 0; rank < calls.size(); ++rank) {
    const auto camp = std::find_if(camps.begin(), camps.end(), [&](const auto& ranks) {
      return calls[static_cast<std::size_t>(ranks.front())] == calls[rank];
    });
    if (camp == camps.end())
      camps.push_back({static_cast<int>(rank)});
    else
      camp->push_back(static_cast<int>(rank));
  }
  return camps;
}

}  // namespace

Disagreement disagreement_of(const std::vector<Signature>& calls,
                             const std::vector<std::string>& labels) {
  Disagreement found;
  std::string others;
  for (const std::vector<int>& camp : by_call(calls)) {
    const int first = camp.front();
    const auto index = static_cast<std::size_t>(first);
    found.text += fmt::format("{}rank {} called {}", found.text.empty() ? "" : ", ", first,
                              describe(calls[index], labels.empty() ? "" : labels[index]));
    if (camp.size() > 1)
      others += fmt::format("; {} called what rank {} did",
                            name_of_ranks({camp.begin() + 1, camp.end()}), first);
    if (2 * camp.size() <= calls.size())
      found.differing.insert(found.differing.end(), camp.begin(), camp.end());
  }
  std::sort(found.differing.begin(), found.differing.end());
  found.text += others;
  return found;
}

}  // namespace lockstep

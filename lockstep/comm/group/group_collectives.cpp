// SPDX-License-Identifier: Apache-2.0
#include "lockstep/comm/group/group_collectives.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <numeric>

#include "lockstep/base/error.h"
#include "lockstep/comm/core/signature.h"
#include "lockstep/comm/reduce/compose.h"

namespace lockstep::comm {

GroupCollectives::GroupCollectives(GroupContext& group)
    : group_(group), packed_name_(pack_group_name(group.identity().name)) {}

void GroupCollectives::throw_unless_all_agree(const Collective& collective) const {
  const Signature& first = group_.backend().entered(0);
  for (int peer = 1; peer < group_.identity().size; ++peer)
    if (group_.backend().entered(peer) != first) throw_mismatch(collective);
}

// All ranks see the same signatures, so they report the same.
void GroupCollectives::throw_mismatch(const Collective& collective) const {
  std::vector<Signature> calls;
  for (int peer = 0; peer < group_.identity().size; ++peer)
    calls.push_back(group_.backend().entered(peer));
  const Disagreement found = disagreement_of(calls, labels_of(calls, collective));
  throw Error(Fault::mismatch,
              fmt::format("{}: {}", group_.identity().describe(collective), found.text),
              found.differing);
}

// Ranks exchange labels only if these differ. After a failure, only labels equal to this rank's are
// known.
std::vector<std::string> GroupCollectives::labels_of(const std::vector<Signature>& calls,
                                                     const Collective& collective) const {
  const auto is_own = [&](const Signature& call) {
    return call.label == collective.signature.label;
  };
  if (!std::ranges::all_of(calls, is_own)) {
    Collective exchange = collective;
    exchange.timeout =
        std::min<std::chrono::milliseconds>(exchange.timeout, std::chrono::seconds(2));
    try {
      return group_.backend().labels(exchange);
    } catch (const Error&) {  // The mismatch is the error to report.
    }
  }
  std::vector<std::string> labels;
  for (const Signature& call : calls) labels.emplace_back(is_own(call) ? collective.label : "");
  return labels;
}

void GroupCollectives::execute(Collective& collective) {
  if (collective.signature.layout != layout_uneven_pairs)
    return perform(collective, [this](const Collective& entered) { complete(entered); });
  Collective announced = collective;  // The backend does not have all counts yet.
  announced.only_says = true;
  announced.counts = {};
  perform(announced, [&](const Collective& entered) {
    collective.sequence = entered.sequence;
    all_to_all_of_uneven_parts(collective);
  });
}

void GroupCollectives::complete(const Collective& collective) {
  if (is_on_device(collective) || group_.backend().native(collective.signature.operation))
    group_.backend().run(collective);
  else
    compose([this](const Collective& inner) { run_native(inner); }, collective,
            group_.identity().rank, group_.identity().size);
}

void GroupCollectives::run_native(const Collective& collective) {
  group_.backend().enter(collective);
  throw_unless_all_agree(collective);
  group_.backend().run(collective);
}

void GroupCollectives::all_gather_words(const Collective& outer, std::span<const std::int64_t> mine,
                                        std::vector<std::int64_t>& all) {
  all.resize(mine.size() * static_cast<std::size_t>(group_.identity().size));
  Collective inner = outer;
  inner.signature = {
      .count = mine.size(), .operation = Operation::all_gather, .dtype = DType::int64};
  inner.input = buffer_of(mine);
  inner.output = buffer_of(all);
  inner.counts = {};
  run_native(inner);
}

// Each rank has only its own row and column: all gather the table and check it.
void GroupCollectives::all_to_all_of_uneven_parts(const Collective& collective) {
  const auto n = static_cast<std::size_t>(group_.identity().size);
  const std::vector<std::int64_t> mine(collective.counts.begin(), collective.counts.end());
  std::vector<std::int64_t> all;
  all_gather_words(collective, mine, all);
  Counts pairs(n * n);
  for (std::size_t s = 0; s < n; ++s)
    for (std::size_t d = 0; d < n; ++d) {
      const std::int64_t sent = all[s * 2 * n + d];
      const std::int64_t received = all[d * 2 * n + n + s];
      if (sent != received)
        throw Error(Fault::mismatch,
                    fmt::format("{}: rank {} sends {} elements to rank {}, which receives {} from "
                                "it",
                                group_.identity().describe(collective), s, sent, d, received),
                    s == d ? std::vector{static_cast<int>(s)}
                           : std::vector{static_cast<int>(std::min(s, d)),
                                         static_cast<int>(std::max(s, d))});
      pairs[s * n + d] = static_cast<std::size_t>(sent);
    }
  Collective inner = collective;
  inner.signature.count = std::accumulate(pairs.begin(), pairs.end(), std::size_t{0});
  inner.counts = pairs;
  run_native(inner);
}

}  // namespace lockstep::comm

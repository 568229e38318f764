// SPDX-License-Identifier: Apache-2.0
#include "lockstep/comm/core/signature.h"

#include <fmt/format.h>

#include <algorithm>

#include "lockstep/base/text.h"

namespace lockstep::comm {
namespace {

std::string what(const Signature& signature) {
  std::string text(name(signature.operation));
  const OperationFacts& facts = facts_of(signature.operation);
  if (facts.shape == OperationShape::barrier) return text;
  switch (signature.operation) {
    case Operation::none:
      return text;
    case Operation::allocate:
    case Operation::allocate_shared:
      return fmt::format("{} of {} bytes", text, signature.count);
    case Operation::split:
      return fmt::format("split #{} into sub-groups", signature.count);
    case Operation::destroy:
      if (signature.count == 0) return text;
      return fmt::format("{} with {} messages that nobody received", text, signature.count);
    default:
      break;
  }
  if (facts.reduces) text += fmt::format("({})", name(signature.op));
  if (facts.rooted == OperationRoot::from) text += fmt::format(" from rank {}", signature.root);
  if (facts.rooted == OperationRoot::to) text += fmt::format(" to rank {}", signature.root);
  return text + fmt::format(" of {} {}", signature.count, name(signature.dtype));
}

// Ranks by call, in the order of their first ranks.
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

std::string describe(const Signature& signature, std::string_view label) {
  std::string text = what(signature);
  if (signature.layout & layout_on_cuda) text += " on CUDA";
  if ((signature.layout & ~layout_on_cuda) != 0)
    text += fmt::format(" in uneven parts {:08x}", signature.layout >> 32);
  if (signature.label == 0) return text;
  if (label.empty()) return text + ", with a label";
  const std::string_view shown = cut_text(label, most_label_bytes);
  text += fmt::format(", label '{}'", clean_text(shown));
  if (shown.size() == label.size()) return text;
  return text + fmt::format(" and more ({:016x})", signature.label);  // The hidden part may differ.
}

std::uint64_t hash_of(const void* data, std::size_t bytes) {
  std::uint64_t hash = 0xcbf29ce484222325;
  for (std::size_t i = 0; i < bytes; ++i)
    hash = (hash ^ static_cast<const unsigned char*>(data)[i]) * 0x100000001b3;
  return hash == 0 ? 1 : hash;
}

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

}  // namespace lockstep::comm

// SPDX-License-Identifier: Apache-2.0
#include "lockstep/checkpoint/save_plan.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <numeric>
#include <optional>
#include <tuple>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/checkpoint/box_cover.h"
#include "lockstep/checkpoint/manifest.h"
#include "lockstep/checkpoint/safetensors_file.h"

namespace lockstep::checkpoint {
namespace {

using Json = nlohmann::json;
using Share = PlannedTensor::Share;

struct Holding {
  int rank = 0;
  bool is_whole = false;
  bool of_rank_0 = false;
  std::int64_t begin = 0;  // Elements of the local tensor.
  std::int64_t end = 0;
  Boxes boxes;
};

struct Holdings {
  PlannedTensor tensor;
  bool in_parts = false;
  bool in_boxes = false;
  std::vector<Holding> of;
};

using Key = std::pair<std::string, std::string>;  // Part and name.

std::string text_of(const Key& key) { return key.first + ": tensor " + shown(key.second); }

[[noreturn]] void disagree(const Key& key, const std::string& what) {
  throw Error(Fault::mismatch, text_of(key) + " " + what);
}

std::uint64_t size_in_bytes(const SafetensorsEntry& entry) {
  return std::accumulate(entry.shape.begin(), entry.shape.end(), std::uint64_t{size_of(entry.type)},
                         [](std::uint64_t product, std::int64_t dimension) {
                           return product * static_cast<std::uint64_t>(dimension);
                         });
}

std::int64_t elements_of(const SafetensorsEntry& entry) {
  return static_cast<std::int64_t>(size_in_bytes(entry) / size_of(entry.type));
}

Boxes without_whole(const Boxes& boxes, const std::vector<std::int64_t>& shape) {
  const Box all{.offsets = std::vector<std::int64_t>(shape.size()), .sizes = shape};
  return boxes.list.size() == 1 && boxes.list[0] == all ? Boxes() : boxes;
}

void require_in_tensor(const std::string& part, const std::string& name, const StateTensor& tensor,
                       std::int64_t elements) {
  const std::string text = text_of(Key(part, name));
  const std::string wrong = mismatch(tensor.boxes, tensor.shape);
  require(wrong.empty(), [&] { return text + ": " + wrong; });
  require(tensor.boxes.empty() || tensor.strides.empty(),
          [&] { return text + " has boxes and strides, but boxes are counted row by row"; });
  const std::int64_t local = tensor.boxes.empty() ? elements : elements_of(tensor.boxes);
  const std::int64_t end = tensor.begin + tensor.data.numel();
  require(0 <= tensor.begin && end <= local, [&] {
    return text + " has no elements " + std::to_string(tensor.begin) + " to " +
           std::to_string(end) + ": there are " + std::to_string(local) + " on this rank";
  });
}

Json encode(const Boxes& boxes) {
  Json list = Json::array();
  for (const Box& box : boxes.list) list.push_back(Json::array({box.offsets, box.sizes}));
  return Json::array({boxes.cat_dim, std::move(list)});
}

Boxes decode_boxes(const Json& json) {
  Boxes boxes{.list = {}, .cat_dim = json.at(0).get<std::int64_t>()};
  for (const Json& box : json.at(1))
    boxes.list.push_back(
        {box.at(0).get<std::vector<std::int64_t>>(), box.at(1).get<std::vector<std::int64_t>>()});
  return boxes;
}

Json describe(const std::string& part, const std::string& name, const StateTensor& tensor) {
  SafetensorsEntry entry = entry_for(name, tensor.data);
  entry.shape = tensor.shape;
  const std::int64_t elements = elements_of(entry);
  require_in_tensor(part, name, tensor, elements);
  const Boxes boxes = without_whole(tensor.boxes, tensor.shape);
  const std::int64_t count = tensor.data.numel();
  const bool in_order = boxes.empty() && (tensor.strides.empty() || tensor.is_whole());
  const bool is_whole = count == elements && (in_order || elements == 0);
  return Json::array({part, name, static_cast<int>(entry.type), tensor.shape, tensor.strides,
                      is_whole, tensor.of_rank_0, tensor.begin, tensor.begin + count,
                      encode(boxes)});
}

PlannedTensor planned(const Json& item) {
  PlannedTensor tensor;
  tensor.part = item.at(0);
  tensor.entry.name = item.at(1);
  tensor.entry.type = static_cast<SafetensorsType>(item.at(2).get<int>());
  tensor.entry.shape = item.at(3).get<std::vector<std::int64_t>>();
  tensor.entry.end = size_in_bytes(tensor.entry);
  tensor.strides = item.at(4).get<std::vector<std::int64_t>>();
  return tensor;
}

Holding holding(const Json& item, int rank) {
  return {.rank = rank,
          .is_whole = item.at(5).get<bool>(),
          .of_rank_0 = item.at(6).get<bool>(),
          .begin = item.at(7).get<std::int64_t>(),
          .end = item.at(8).get<std::int64_t>(),
          .boxes = decode_boxes(item.at(9))};
}

void add(const Json& item, int rank, std::map<Key, Holdings>& all) {
  const Key key{item.at(0), item.at(1)};
  const PlannedTensor tensor = planned(item);
  const auto [slot, is_new] = all.try_emplace(key);
  Holdings& holdings = slot->second;
  if (is_new)
    holdings.tensor = tensor;
  else if (holdings.tensor.entry.type != tensor.entry.type ||
           holdings.tensor.entry.shape != tensor.entry.shape)
    disagree(key, "has another type or shape on rank " + std::to_string(rank) + " than on rank " +
                      std::to_string(holdings.of.front().rank));
  holdings.of.push_back(holding(item, rank));
  if (holdings.of.back().is_whole) return;
  if (holdings.in_parts && holdings.tensor.strides != tensor.strides)
    disagree(key, "has another order in memory on rank " + std::to_string(rank) +
                      " than on an earlier rank");
  holdings.in_parts = true;
  holdings.in_boxes = holdings.in_boxes || !holdings.of.back().boxes.empty();
  holdings.tensor.strides = tensor.strides;
}

// Ranks with the whole tensor; only the lowest one if its tensor counts.
std::vector<int> whole_on(const Key& key, const Holdings& holdings) {
  std::vector<int> ranks;
  bool of_rank_0 = false;
  for (const Holding& each : holdings.of) {
    of_rank_0 = of_rank_0 || each.of_rank_0;
    if (each.is_whole) ranks.push_back(each.rank);
  }
  if (!of_rank_0) return ranks;
  if (ranks.empty()) disagree(key, "is not whole on any rank");
  return {std::ranges::min(ranks)};
}

std::vector<RankBox> boxes_of(const Holdings& holdings) {
  std::vector<RankBox> boxes;
  for (const Holding& each : holdings.of) {
    if (each.begin == each.end) continue;
    if (!holdings.in_boxes)
      boxes.push_back({each.rank, place(each.begin, each.end)});
    else
      for (PlacedBox& box : place(holdings.tensor.entry.shape, each.boxes, each.begin, each.end))
        boxes.push_back({each.rank, std::move(box)});
  }
  return boxes;
}

void share_out(const Key& key, Holdings& holdings) {
  PlannedTensor& tensor = holdings.tensor;
  tensor.grid =
      holdings.in_boxes ? tensor.entry.shape : std::vector<std::int64_t>{elements_of(tensor.entry)};
  BoxCover chosen = cover(tensor.grid, boxes_of(holdings));
  if (!chosen.complaint.empty()) disagree(key, chosen.complaint);
  std::map<int, Share> shares;
  for (RankBox& each : chosen.boxes) shares[each.rank].boxes.push_back(std::move(each.placed));
  for (const Holding& each : holdings.of)
    if (const auto share = shares.find(each.rank); share != shares.end()) {
      share->second.rank = each.rank;
      share->second.elements = each.end - each.begin;
      tensor.shares.push_back(std::move(share->second));
    }
}

// As text, NaNs are equal.
bool are_equal(const StateValue& a, const StateValue& b) {
  const auto text = [](const StateValue& value) {
    Manifest manifest;
    manifest.values["a"]["b"] = value;
    return format_manifest(manifest);
  };
  return a == b || text(a) == text(b);
}

void add_values(const std::map<std::string, StateValues>& of_rank, int rank,
                std::map<std::string, StateValues>& all) {
  for (const auto& [part, values] : of_rank)
    for (const auto& [name, value] : values) {
      const auto [slot, is_new] = all[part].try_emplace(name, value);
      if (is_new || are_equal(slot->second, value)) continue;
      throw Error(Fault::mismatch, part + ": value " + shown(name) + " differs between rank " +
                                       std::to_string(rank) + " and an earlier rank");
    }
}

// Gives each tensor to the candidate with the fewest bytes: tensors with one candidate first, then
// the largest.
void choose_writers(std::vector<PlannedTensor>& tensors,
                    const std::vector<std::vector<int>>& candidates, std::size_t ranks) {
  std::vector<std::size_t> order(tensors.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::ranges::stable_sort(order, {}, [&](std::size_t i) {
    return std::pair(candidates[i].size() > 1, ~tensors[i].bytes());
  });
  std::vector<std::uint64_t> load(ranks);
  for (const std::size_t i : order) {
    tensors[i].writer = *std::ranges::min_element(
        candidates[i], {}, [&](int rank) { return load[static_cast<std::size_t>(rank)]; });
    load[static_cast<std::size_t>(tensors[i].writer)] += tensors[i].bytes();
  }
}

// As lay_out().
std::vector<std::pair<Key, Holdings>> in_order_of_files(const std::map<Key, Holdings>& all) {
  std::vector<std::pair<Key, Holdings>> ordered(all.begin(), all.end());
  std::ranges::stable_sort(ordered, [](const auto& a, const auto& b) {
    const SafetensorsEntry& x = a.second.tensor.entry;
    const SafetensorsEntry& y = b.second.tensor.entry;
    return std::tie(a.first.first, y.type, x.name) < std::tie(b.first.first, x.type, y.name);
  });
  return ordered;
}

struct Description {
  Manifest values;
  Json tensors;
};

Description parse(const std::string& text) {
  const Json both = Json::parse(text);
  return {parse_manifest("a rank's values", both.at(0).get_ref<const std::string&>()), both.at(1)};
}

void require_same_parts(const std::vector<Description>& all) {
  const auto parts = [](const Description& description) {
    std::vector<std::string> names;
    for (const auto& [part, values] : description.values.values) names.push_back(part);
    return names;
  };
  for (std::size_t rank = 1; rank < all.size(); ++rank)
    if (parts(all[rank]) != parts(all[0]))
      throw Error(Fault::mismatch,
                  "the parts of the state differ between rank 0 and rank " + std::to_string(rank));
}

}  // namespace

std::string describe(const NamedStateDicts& states) {
  Manifest values;
  Json tensors = Json::array();
  for (const auto& [part, state] : states) {
    require(values.values.emplace(part, state.values).second,
            [&, &part = part] { return "the state has two parts called " + shown(part); });
    for (const auto& [name, tensor] : state.tensors)
      tensors.push_back(describe(part, name, tensor));
  }
  try {
    return Json::array({format_manifest(values), std::move(tensors)}).dump();
  } catch (const Json::exception&) {
    throw Error(Fault::misuse, "the state has a tensor whose name is not UTF-8");
  }
}

SavePlan make_plan(const std::vector<std::string>& descriptions) {
  std::vector<Description> ranks;
  for (const std::string& description : descriptions) ranks.push_back(parse(description));
  require_same_parts(ranks);

  SavePlan plan{.tensors = {}, .values = ranks.front().values.values};
  std::map<Key, Holdings> all;
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    for (const Json& item : ranks[rank].tensors) add(item, static_cast<int>(rank), all);
    add_values(ranks[rank].values.values, static_cast<int>(rank), plan.values);
  }
  std::vector<std::vector<int>> candidates;
  for (auto& [key, holdings] : in_order_of_files(all)) {
    std::vector<int> writers = whole_on(key, holdings);
    if (writers.empty()) {
      share_out(key, holdings);
      for (const Share& share : holdings.tensor.shares) writers.push_back(share.rank);
    }
    candidates.push_back(std::move(writers));
    plan.tensors.push_back(std::move(holdings.tensor));
  }
  choose_writers(plan.tensors, candidates, ranks.size());
  return plan;
}

std::string file_name(const std::string& part, std::size_t index, std::size_t count) {
  std::array<char, 64> numbers{};
  std::snprintf(numbers.data(), numbers.size(), "-%05zu-of-%05zu.safetensors", index, count);
  return part + numbers.data();
}

}  // namespace lockstep::checkpoint

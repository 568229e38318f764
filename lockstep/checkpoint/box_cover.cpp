// SPDX-License-Identifier: Apache-2.0
#include "lockstep/checkpoint/box_cover.h"

#include <algorithm>
#include <set>
#include <utility>

namespace lockstep::checkpoint {
namespace {

using Numbers = std::vector<std::int64_t>;

std::int64_t end_in(const Box& box, std::size_t dim) { return box.offsets[dim] + box.sizes[dim]; }

bool overlap(const Box& a, const Box& b) {
  for (std::size_t dim = 0; dim < a.sizes.size(); ++dim)
    if (a.offsets[dim] >= end_in(b, dim) || b.offsets[dim] >= end_in(a, dim)) return false;
  return true;
}

bool lies_within(const Box& inner, const Box& outer) {
  for (std::size_t dim = 0; dim < inner.sizes.size(); ++dim)
    if (inner.offsets[dim] < outer.offsets[dim] || end_in(inner, dim) > end_in(outer, dim))
      return false;
  return true;
}

std::size_t most_cut(std::size_t dims, const std::vector<RankBox>& held) {
  std::size_t best = 0, most = 0;
  for (std::size_t dim = 0; dim < dims; ++dim) {
    std::set<std::int64_t> offsets;
    for (const RankBox& each : held) offsets.insert(each.placed.box.offsets[dim]);
    if (offsets.size() <= most) continue;
    best = dim;
    most = offsets.size();
  }
  return best;
}

std::string text_of_overlap(const RankBox& a, const RankBox& b) {
  const auto& [first, second] = std::minmax(a.rank, b.rank);
  const std::string boxes = a.placed.box.sizes.size() == 1
                                ? ""
                                : ": " + text_of(a.placed.box) + ", " + text_of(b.placed.box);
  if (a.rank == b.rank) return "lies twice on rank " + std::to_string(first) + boxes;
  return "lies on ranks " + std::to_string(first) + " and " + std::to_string(second) +
         " in parts that overlap" + boxes;
}

// The first element in row-major order outside the disjoint `boxes`. In each dimension, box ends
// divide the tensor into slabs; the first incomplete slab has the element.
Numbers first_gap(const Numbers& shape, std::vector<const Box*> boxes) {
  Numbers gap;
  for (std::size_t dim = 0; dim < shape.size(); ++dim) {
    std::int64_t rest = 1;  // Elements of a slab of thickness 1.
    for (std::size_t after = dim + 1; after < shape.size(); ++after) rest *= shape[after];
    std::set<std::int64_t> starts{0};
    for (const Box* box : boxes) starts.insert({box->offsets[dim], end_in(*box, dim)});
    for (const std::int64_t start : starts) {
      std::vector<const Box*> in_slab;
      std::int64_t held = 0;
      for (const Box* box : boxes) {
        if (box->offsets[dim] > start || end_in(*box, dim) <= start) continue;
        in_slab.push_back(box);
        std::int64_t elements = 1;
        for (std::size_t after = dim + 1; after < shape.size(); ++after)
          elements *= box->sizes[after];
        held += elements;
      }
      if (held == rest) continue;
      gap.push_back(start);
      boxes = std::move(in_slab);
      break;
    }
  }
  return gap;
}

std::string text_of_gap(const Numbers& shape, const std::vector<RankBox>& chosen) {
  std::vector<const Box*> boxes;
  for (const RankBox& each : chosen) boxes.push_back(&each.placed.box);
  const Numbers gap = first_gap(shape, boxes);
  if (gap.size() == 1)
    return "is incomplete: no rank has its elements from " + std::to_string(gap[0]) + " on";
  return "is incomplete: no rank has its element " + bracketed(gap);
}

}  // namespace

BoxCover cover(const std::vector<std::int64_t>& shape, std::vector<RankBox> held) {
  const std::size_t dim = most_cut(shape.size(), held);
  // A box within another follows it.
  std::ranges::stable_sort(held, {}, [&](const RankBox& each) {
    return std::pair(each.placed.box.offsets[dim], -elements_of(each.placed.box));
  });
  BoxCover result;
  std::int64_t elements = 0;
  std::vector<std::size_t> open;  // Chosen boxes that reach the next one.
  for (RankBox& each : held) {
    const Box& box = each.placed.box;
    std::erase_if(open, [&](std::size_t i) {
      return end_in(result.boxes[i].placed.box, dim) <= box.offsets[dim];
    });
    const auto other = std::ranges::find_if(
        open, [&](std::size_t i) { return overlap(result.boxes[i].placed.box, box); });
    if (other != open.end()) {
      const RankBox& chosen = result.boxes[*other];
      if (chosen.rank != each.rank && lies_within(box, chosen.placed.box)) continue;
      return {.boxes = {}, .complaint = text_of_overlap(chosen, each)};
    }
    elements += elements_of(box);
    open.push_back(result.boxes.size());
    result.boxes.push_back(std::move(each));
  }
  if (elements != elements_of(Box{.offsets = {}, .sizes = shape}))
    return {.boxes = {}, .complaint = text_of_gap(shape, result.boxes)};
  return result;
}

}  // namespace lockstep::checkpoint

// SPDX-License-Identifier: Apache-2.0
#include "lockstep/tensor/state_types.h"

#include <functional>
#include <numeric>

#include "lockstep/tensor/placed_box.h"

namespace lockstep {
namespace {

using Numbers = std::vector<std::int64_t>;

std::int64_t product(const Numbers& numbers, std::size_t first, std::size_t last) {
  return std::accumulate(numbers.begin() + static_cast<std::ptrdiff_t>(first),
                         numbers.begin() + static_cast<std::ptrdiff_t>(last), std::int64_t{1},
                         std::multiplies<>());
}

bool lies_in(const Box& box, const Numbers& shape) {
  if (box.offsets.size() != shape.size() || box.sizes.size() != shape.size()) return false;
  for (std::size_t dim = 0; dim < shape.size(); ++dim)
    if (box.offsets[dim] < 0 || box.sizes[dim] < 0 || box.offsets[dim] > shape[dim] ||
        box.sizes[dim] > shape[dim] - box.offsets[dim])
      return false;
  return true;
}

bool agree_but_in(std::size_t free_dim, std::size_t last, const Box& a, const Box& b) {
  for (std::size_t dim = 0; dim < last; ++dim)
    if (dim != free_dim && a.sizes[dim] != b.sizes[dim]) return false;
  return true;
}

}  // namespace

std::int64_t elements_of(const Box& box) { return product(box.sizes, 0, box.sizes.size()); }

std::int64_t elements_of(const Boxes& boxes) {
  std::int64_t elements = 0;
  for (const Box& box : boxes.list) elements += elements_of(box);
  return elements;
}

std::vector<std::int64_t> local_shape(const Boxes& boxes) {
  Numbers shape = boxes.list.front().sizes;
  if (boxes.list.size() == 1) return shape;
  const auto dim = static_cast<std::size_t>(boxes.cat_dim);
  for (std::size_t i = 1; i < boxes.list.size(); ++i) {
    if (!agree_but_in(dim, shape.size(), boxes.list.front(), boxes.list[i]))
      return {elements_of(boxes)};
    shape[dim] += boxes.list[i].sizes[dim];
  }
  return shape;
}

std::string mismatch(const Boxes& boxes, const std::vector<std::int64_t>& shape) {
  const auto dims = static_cast<std::int64_t>(shape.size());
  if (boxes.cat_dim != 0 && (boxes.cat_dim < 0 || boxes.cat_dim >= dims))
    return "boxes of a tensor of " + std::to_string(dims) +
           " dimensions cannot be joined along dimension " + std::to_string(boxes.cat_dim);
  if (dims == 0 && boxes.list.size() > 1) return "a tensor without dimensions has one box at most";
  const auto last = static_cast<std::size_t>(boxes.cat_dim);
  for (const Box& box : boxes.list) {
    if (!lies_in(box, shape))
      return "a box of " + text_of(box) + " does not lie in a tensor of shape " + bracketed(shape);
    if (!agree_but_in(last, last, boxes.list.front(), box))
      return "boxes of sizes " + bracketed(boxes.list.front().sizes) + " and " +
             bracketed(box.sizes) + " cannot be joined along dimension " +
             std::to_string(boxes.cat_dim);
  }
  return {};
}

}  // namespace lockstep

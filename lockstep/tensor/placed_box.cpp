// SPDX-License-Identifier: Apache-2.0
#include "lockstep/tensor/placed_box.h"

#include <algorithm>
#include <optional>

#include "lockstep/tensor/tensor_memory.h"

namespace lockstep {
namespace {

using Numbers = std::vector<std::int64_t>;

// Strides of a contiguous tensor.
Numbers steps_in(const Numbers& sizes) {
  Numbers steps(sizes.size(), 1);
  for (std::size_t dim = sizes.size(); dim > 1; --dim)
    steps[dim - 2] = steps[dim - 1] * sizes[dim - 1];
  return steps;
}

std::int64_t elements_in(const Numbers& sizes) {
  std::int64_t elements = 1;
  for (const std::int64_t size : sizes) elements *= size;
  return elements;
}

// The largest box from element `begin` to before `end`, counted row by row.
Box box_at(const Numbers& sizes, const Numbers& steps, std::int64_t begin, std::int64_t end) {
  Box box{.offsets = Numbers(sizes.size()), .sizes = sizes};
  std::int64_t rest = begin;
  for (std::size_t dim = 0; dim < sizes.size(); ++dim) {
    box.offsets[dim] = rest / steps[dim];
    rest %= steps[dim];
    if (rest == 0 && end - begin >= steps[dim]) {
      box.sizes[dim] = std::min((end - begin) / steps[dim], sizes[dim] - box.offsets[dim]);
      break;
    }
    box.sizes[dim] = 1;
  }
  return box;
}

std::vector<Box> boxes_in(const Numbers& sizes, std::int64_t begin, std::int64_t end) {
  const Numbers steps = steps_in(sizes);
  std::vector<Box> boxes;
  for (; begin < end; begin += elements_of(boxes.back()))
    boxes.push_back(box_at(sizes, steps, begin, end));
  return boxes;
}

Numbers joined(Numbers a, const Numbers& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

// The local tensor as rows, one per index before cat_dim. Each row has a segment of every box.
class Rows {
 public:
  Rows(const Boxes& boxes, std::int64_t begin)
      : boxes_(boxes.list), cat_dim_(boxes.cat_dim), begin_(begin), outer_(head(boxes_[0].sizes)) {
    for (const Box& box : boxes_) width_ += elements_in(tail(box.sizes));
  }

  std::int64_t width() const { return width_; }

  // Appends the boxes of elements [from, to) of rows [first, last).
  void place(std::int64_t first, std::int64_t last, std::int64_t from, std::int64_t to,
             std::vector<PlacedBox>& placed) const {
    for (const Box& rows : boxes_in(outer_, first, last)) {
      std::int64_t segment = 0;  // The box's first element in a row.
      for (const Box& box : boxes_) {
        const Numbers sizes = tail(box.sizes);
        const std::int64_t size = elements_in(sizes);
        for (const Box& part : boxes_in(sizes, std::clamp(from - segment, std::int64_t{0}, size),
                                        std::clamp(to - segment, std::int64_t{0}, size)))
          placed.push_back(placed_part(box, rows, part, segment));
        segment += size;
      }
    }
  }

 private:
  Numbers head(const Numbers& numbers) const {
    return {numbers.begin(), numbers.begin() + cat_dim_};
  }
  Numbers tail(const Numbers& numbers) const { return {numbers.begin() + cat_dim_, numbers.end()}; }

  PlacedBox placed_part(const Box& box, const Box& rows, const Box& part,
                        std::int64_t segment) const {
    Numbers steps = steps_in(outer_);
    for (std::int64_t& step : steps) step *= width_;
    PlacedBox placed{.box = {.offsets = joined(rows.offsets, part.offsets),
                             .sizes = joined(rows.sizes, part.sizes)},
                     .strides = joined(std::move(steps), steps_in(tail(box.sizes))),
                     .begin = segment - begin_};
    for (std::size_t dim = 0; dim < placed.strides.size(); ++dim) {
      placed.begin += placed.box.offsets[dim] * placed.strides[dim];
      placed.box.offsets[dim] += box.offsets[dim];
    }
    return placed;
  }

  const std::vector<Box>& boxes_;
  const std::int64_t cat_dim_;
  const std::int64_t begin_;  // Where data begins in the local tensor.
  const Numbers outer_;
  std::int64_t width_ = 0;
};

}  // namespace

std::vector<PlacedBox> place(const std::vector<std::int64_t>& shape, const Boxes& boxes,
                             std::int64_t begin, std::int64_t end) {
  if (begin == end) return {};
  const Boxes all = boxes.empty() ? Boxes{.list = {{Numbers(shape.size()), shape}}} : boxes;
  const Rows rows(all, begin);
  const std::int64_t first = begin / rows.width(), last = (end - 1) / rows.width();
  const std::int64_t from = begin % rows.width(), to = (end - 1) % rows.width() + 1;
  std::vector<PlacedBox> placed;
  if (first == last) {
    rows.place(first, last + 1, from, to, placed);
    return placed;
  }
  const std::int64_t first_full = from == 0 ? first : first + 1;
  const std::int64_t end_full = to == rows.width() ? last + 1 : last;
  if (first_full > first) rows.place(first, first + 1, from, rows.width(), placed);
  rows.place(first_full, end_full, 0, rows.width(), placed);
  if (end_full <= last) rows.place(last, last + 1, 0, to, placed);
  return placed;
}

PlacedBox place(std::int64_t begin, std::int64_t end) {
  return {.box = {.offsets = {begin}, .sizes = {end - begin}}, .strides = {1}, .begin = 0};
}

at::Tensor view_in_whole(const at::Tensor& tensor, const Box& box) {
  at::Tensor view = tensor;
  for (std::size_t dim = 0; dim < box.sizes.size(); ++dim)
    view = view.narrow(static_cast<std::int64_t>(dim), box.offsets[dim], box.sizes[dim]);
  return view;
}

at::Tensor view_in_data(const at::Tensor& data, const PlacedBox& box) {
  return data.as_strided(box.box.sizes, box.strides, data.storage_offset() + box.begin);
}

at::Tensor run_in_whole(const at::Tensor& whole, const std::vector<PlacedBox>& boxes,
                        std::int64_t elements) {
  std::optional<std::int64_t> begin;  // Where the data begins in `whole`.
  std::int64_t held = 0;
  for (const PlacedBox& each : boxes) {
    const at::Tensor box = view_in_whole(whole, each.box);
    const std::int64_t begin_of_data = box.storage_offset() - whole.storage_offset() - each.begin;
    if (begin.value_or(begin_of_data) != begin_of_data || !has_strides(box, each.strides))
      return {};
    begin = begin_of_data;
    held += box.numel();
  }
  if (held != elements) return {};
  return whole.view({-1}).slice(0, *begin, *begin + elements);
}

std::string bracketed(const std::vector<std::int64_t>& numbers) {
  std::string text = "[";
  for (std::size_t i = 0; i < numbers.size(); ++i)
    text += (i == 0 ? "" : ", ") + std::to_string(numbers[i]);
  return text + "]";
}

std::string text_of(const Box& box) {
  return "offsets " + bracketed(box.offsets) + " and sizes " + bracketed(box.sizes);
}

}  // namespace lockstep

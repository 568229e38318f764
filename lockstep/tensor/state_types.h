// The types of training state that need no LibTorch: plain values, and boxes of tensors.
//
// A box is a part of a tensor: a range in each of its dimensions. The boxes of a rank form its
// local tensor.
//
// A weight of shape [8, 6] that two ranks cut along dim 1; rank 1 has the last three columns:
//   const lockstep::Boxes columns{.list = {{.offsets = {0, 3}, .sizes = {8, 3}}}};
//
// A weight of shape [8, 18] holds q | k | v, each of 6 columns. Rank 1 of two has the last three
// columns of each, joined along dim 1 into a local tensor of shape [8, 9]:
//   const lockstep::Boxes qkv{.list = {{{0, 3}, {8, 3}}, {{0, 9}, {8, 3}}, {{0, 15}, {8, 3}}},
//                             .cat_dim = 1};

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <variant>
#include <vector>

#include "lockstep/base/api.h"

namespace lockstep {

// A number, a boolean, a text or a list of numbers, for example a step or a learning rate. Texts
// are UTF-8. Doubles keep their bits, including infinities; every NaN becomes the default NaN.
using StateValue = std::variant<bool, std::int64_t, double, std::string, std::vector<double>>;

using StateValues = std::map<std::string, StateValue>;

// Elements [offsets[d], offsets[d] + sizes[d]) in each dimension d of a tensor. A size may be 0.
struct Box {
  std::vector<std::int64_t> offsets = {};
  std::vector<std::int64_t> sizes = {};

  friend bool operator==(const Box&, const Box&) = default;
};

LOCKSTEP_API std::int64_t elements_of(const Box& box);

// Boxes of one tensor, and the order of their elements in the local tensor.
struct Boxes {
  // Empty: the local tensor is the whole one. A rank without elements has one box without elements.
  std::vector<Box> list = {};

  // The local tensor is at::cat(boxes, cat_dim). The boxes have equal sizes in the dimensions
  // before `cat_dim`. For 0, the elements of the boxes follow each other, each box row by row, and
  // the boxes may have any sizes.
  std::int64_t cat_dim = 0;

  bool empty() const { return list.empty(); }
  friend bool operator==(const Boxes&, const Boxes&) = default;
};

// Elements of the local tensor.
LOCKSTEP_API std::int64_t elements_of(const Boxes& boxes);

// Shape of the local tensor. If sizes of boxes differ outside of `cat_dim`, it has one dimension.
// Requires: at least one box.
LOCKSTEP_API std::vector<std::int64_t> local_shape(const Boxes& boxes);

// Returns an empty text if all boxes are in a tensor of `shape` and `cat_dim` fits them; otherwise
// the reason.
LOCKSTEP_API std::string mismatch(const Boxes& boxes, const std::vector<std::int64_t>& shape);

}  // namespace lockstep

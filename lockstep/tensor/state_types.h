// Types of training state without LibTorch: plain values, and boxes of tensors.
//
// A box is a part of a tensor: a range in each dimension. A rank's boxes form its local tensor.
//
// Rank 1 of two has half of the columns of each of q | k | v, a weight of shape [8, 18].
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

// Texts are UTF-8. Doubles keep their bits; every NaN becomes the default NaN.
using StateValue = std::variant<bool, std::int64_t, double, std::string, std::vector<double>>;

using StateValues = std::map<std::string, StateValue>;

// Elements [offsets[d], offsets[d] + sizes[d]) in each dimension d. A size may be 0.
struct Box {
  std::vector<std::int64_t> offsets = {};
  std::vector<std::int64_t> sizes = {};

  friend bool operator==(const Box&, const Box&) = default;
};

LOCKSTEP_API std::int64_t elements_of(const Box& box);

// The boxes of a local tensor.
struct Boxes {
  // Empty: the whole tensor. A rank without elements has one box without elements.
  std::vector<Box> list = {};

  // Boxes are joined as by at::cat(boxes, cat_dim), but only sizes before `cat_dim` must be equal.
  // For 0, boxes of any sizes follow each other, each row by row.
  std::int64_t cat_dim = 0;

  bool empty() const { return list.empty(); }
  friend bool operator==(const Boxes&, const Boxes&) = default;
};

LOCKSTEP_API std::int64_t elements_of(const Boxes& boxes);

// One dimension if sizes differ outside of `cat_dim`. Requires: at least one box.
LOCKSTEP_API std::vector<std::int64_t> local_shape(const Boxes& boxes);

// Why the boxes or `cat_dim` do not fit `shape`; empty if they fit.
LOCKSTEP_API std::string mismatch(const Boxes& boxes, const std::vector<std::int64_t>& shape);

}  // namespace lockstep

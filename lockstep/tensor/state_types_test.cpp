// SPDX-License-Identifier: Apache-2.0
#include "lockstep/tensor/state_types.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "lockstep/tensor/placed_box.h"

namespace lockstep::tensor::state_types_test {
namespace {

using Shape = std::vector<std::int64_t>;

at::Tensor numbered(const Shape& shape) {
  return at::arange(elements_of(Box{.offsets = {}, .sizes = shape})).reshape(shape);
}

at::Tensor local_of(const at::Tensor& whole, const Boxes& boxes) {
  std::vector<at::Tensor> parts;
  for (const Box& box : boxes.list)
    parts.push_back(boxes.cat_dim == 0 ? view_in_whole(whole, box).flatten()
                                       : view_in_whole(whole, box));
  return at::cat(parts, boxes.cat_dim);
}

// Every range's boxes are its elements, each once.
void expect_placed(const Shape& shape, const Boxes& boxes) {
  const at::Tensor whole = numbered(shape);
  const at::Tensor local = boxes.empty() ? whole.flatten() : local_of(whole, boxes).flatten();
  for (std::int64_t begin = 0; begin <= local.numel(); ++begin)
    for (std::int64_t end = begin; end <= local.numel(); ++end) {
      const at::Tensor data = at::full({end - begin}, -1, at::kLong);
      std::int64_t elements = 0;
      for (const PlacedBox& box : place(shape, boxes, begin, end)) {
        view_in_data(data, box).copy_(view_in_whole(whole, box.box));
        elements += elements_of(box.box);
        EXPECT_GT(elements_of(box.box), 0);
      }
      EXPECT_EQ(elements, end - begin);
      EXPECT_TRUE(at::equal(data, local.slice(0, begin, end))) << begin << " to " << end;
    }
}

TEST(Boxes, AreFoundInRangesOfTheirLocalTensor) {
  expect_placed({7}, {});
  expect_placed({}, {});
  expect_placed({3, 4}, {});
  expect_placed({2, 3, 1, 4}, {});
  expect_placed({3, 4}, {.list = {{{0, 1}, {3, 2}}}});
  expect_placed({4, 6},
                {.list = {{{1, 0}, {2, 2}}, {{1, 3}, {2, 1}}, {{1, 5}, {2, 1}}}, .cat_dim = 1});
  expect_placed({4, 6}, {.list = {{{2, 0}, {2, 6}}, {{0, 1}, {1, 2}}, {{0, 5}, {2, 0}}}});
  expect_placed({3, 2, 5},
                {.list = {{{0, 0, 3}, {3, 2, 2}}, {{0, 1, 0}, {3, 1, 2}}}, .cat_dim = 1});
  expect_placed({3, 2, 5},
                {.list = {{{1, 0, 4}, {2, 2, 1}}, {{0, 0, 0}, {2, 2, 3}}}, .cat_dim = 2});
}

TEST(Boxes, AreAsManyAsTheEndsOfARangeNeed) {
  EXPECT_EQ(place({4, 5, 6}, {}, 0, 120).size(), 1u);
  EXPECT_EQ(place({4, 5, 6}, {}, 30, 90).size(), 1u);
  EXPECT_EQ(place({4, 5, 6}, {}, 1, 119).size(), 5u);
  EXPECT_EQ(place({4, 5, 6}, {}, 5, 5).size(), 0u);
}

TEST(Boxes, MakeATensorOfTheShapeOfCatWhereTheyFit) {
  const Box a{.offsets = {0, 0}, .sizes = {2, 3}}, b{.offsets = {2, 0}, .sizes = {2, 1}};
  EXPECT_EQ(local_shape({.list = {a}}), (Shape{2, 3}));
  EXPECT_EQ(local_shape({.list = {a, b}, .cat_dim = 1}), (Shape{2, 4}));
  EXPECT_EQ(local_shape({.list = {a, a}}), (Shape{4, 3}));
  EXPECT_EQ(local_shape({.list = {a, b}}), (Shape{8}));
}

TEST(Boxes, ThatDoNotFitTheTensorAreNamed) {
  const auto of_4_by_6 = [](const Boxes& boxes) { return mismatch(boxes, {4, 6}); };
  EXPECT_EQ(of_4_by_6({.list = {{{4, 6}, {0, 0}}, {{0, 0}, {4, 6}}}}), "");
  for (const Box& box : {Box{{0, 5}, {4, 2}}, Box{{-1, 0}, {1, 1}}, Box{{0, 0}, {1, -1}},
                         Box{{5, 0}, {0, 0}}, Box{{0}, {1}}})
    EXPECT_EQ(of_4_by_6({.list = {box}}),
              "a box of " + text_of(box) + " does not lie in a tensor of shape [4, 6]");
  EXPECT_EQ(of_4_by_6({.list = {{{0, 0}, {2, 1}}, {{0, 1}, {3, 1}}}, .cat_dim = 1}),
            "boxes of sizes [2, 1] and [3, 1] cannot be joined along dimension 1");
  for (const std::int64_t dim : {-1, 2})
    EXPECT_EQ(of_4_by_6({.list = {{{0, 0}, {2, 1}}}, .cat_dim = dim}),
              "boxes of a tensor of 2 dimensions cannot be joined along dimension " +
                  std::to_string(dim));
  EXPECT_EQ(mismatch({.list = {Box{}, Box{}}}, {}),
            "a tensor without dimensions has one box at most");
}

}  // namespace
}  // namespace lockstep::tensor::state_types_test

// SPDX-License-Identifier: Apache-2.0
#include "lockstep/tensor/tensor_lists.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <gtest/gtest.h>

#include "lockstep/base/error.h"
#include "lockstep/comm/in_process.h"
#include "lockstep/comm/values.h"
#include "lockstep/tensor/list_layout.h"
#include "tests/fault_of.h"

namespace lockstep::tensor::tensor_lists_test {
namespace {

using test::fault_of;

// No other rank has these shapes.
Tensors list_of(int rank) {
  Tensors list;
  for (int i = 0; i < rank; ++i) list.push_back(at::full({i + 1, rank}, 10 * rank + i, at::kHalf));
  if (rank == 0) return list;
  list.push_back(at::Tensor());
  list.push_back(at::arange(12, at::kDouble).add(rank).view({3, 4}).t());
  list.push_back(at::full({}, rank > 1, at::kBool));
  list.push_back(at::empty({0, rank}, at::kInt));
  list.push_back(at::full({1}, rank, at::kComplexFloat).expand({3}));
  list.push_back(at::full({70000}, rank, at::kFloat).requires_grad_());
  return list;
}

testing::AssertionResult same(const Tensors& a, const Tensors& b) {
  if (a.size() != b.size()) return testing::AssertionFailure() << a.size() << " and " << b.size();
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (a[i].defined() != b[i].defined())
      return testing::AssertionFailure() << i << " is undefined";
    if (!a[i].defined()) continue;
    if (a[i].scalar_type() != b[i].scalar_type() || !at::equal(a[i], b[i]) || a[i].requires_grad())
      return testing::AssertionFailure() << i << " is another";
  }
  return testing::AssertionSuccess();
}

TEST(TensorLists, ArriveUnchangedWithUnknownShapes) {
  for (const int ranks : {1, 2, 3})
    run_in_process(ranks, [](ProcessGroup& group) {
      const Tensors own = list_of(group.rank());
      const auto all = all_gather_tensors(own, group);
      ASSERT_EQ(static_cast<int>(all.size()), group.size());
      for (int r = 0; r < group.size(); ++r)
        EXPECT_TRUE(same(all[static_cast<std::size_t>(r)], list_of(r)));
      for (int root = 0; root < group.size(); ++root) {
        const bool is_root = group.rank() == root;
        EXPECT_TRUE(same(broadcast_tensors(own, group, root), list_of(root)));
        const auto gathered = gather_tensors(own, group, root);
        ASSERT_EQ(gathered.size(), is_root ? all.size() : 0U);
        for (std::size_t r = 0; r < gathered.size(); ++r)
          EXPECT_TRUE(same(gathered[r], list_of(static_cast<int>(r))));
        const auto lists = is_root ? all : std::vector<Tensors>{};
        EXPECT_TRUE(same(scatter_tensors(lists, group, root), own));
      }
    });
}

TEST(TensorLists, AreRefusedBeforeAnythingIsSent) {
  run_in_process(1, [](ProcessGroup& group) {
    const Tensors sparse{at::full({2}, 1).to_sparse()};
    EXPECT_EQ(fault_of([&] { broadcast_tensors(sparse, group); }), Fault::unsupported);
    EXPECT_EQ(fault_of([&] { all_gather_tensors(sparse, group); }), Fault::unsupported);
    EXPECT_EQ(fault_of([&] { scatter_tensors({}, group); }), Fault::misuse);
  });
}

TEST(TensorLists, WithADescriptionThatNoRankCanHaveSentAreCorrupt) {
  run_in_process(2, [](ProcessGroup& group) {
    if (group.rank() == 0)
      broadcast_bytes("no description", group);
    else
      EXPECT_EQ(fault_of([&] { broadcast_tensors({}, group); }), Fault::corrupt);
  });
}

TEST(ListLayout, DecodesOrRejectsArbitraryBytes) {
  const std::string text =
      encode_layouts({layout_of(list_of(2)), layout_of({}), layout_of(list_of(1))});
  EXPECT_EQ(encode_layouts(decode_layouts(text)), text);
  for (std::size_t size = 0; size < text.size(); ++size)
    EXPECT_EQ(fault_of([&] { decode_layouts(std::string_view(text).substr(0, size)); }),
              Fault::corrupt);
  EXPECT_EQ(fault_of([&] { decode_layouts(text + std::string(8, 0)); }), Fault::corrupt);
  for (std::size_t at = 0; at < text.size(); at += 8)
    for (const char byte :
         {'\0', '\1', '\f', 'd', '\xff'}) {  // In the lowest and the highest byte of a word.
      std::string lowest = text;
      lowest[at] = byte;
      std::string highest = text;
      highest[at + 7] = byte;
      for (const std::string& damaged : {lowest, highest}) try {
          EXPECT_EQ(encode_layouts(decode_layouts(damaged)), damaged);
        } catch (const Error& error) {
          EXPECT_EQ(error.fault(), Fault::corrupt) << error.what();
        }
    }
}

}  // namespace
}  // namespace lockstep::tensor::tensor_lists_test

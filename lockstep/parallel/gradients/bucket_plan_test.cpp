// SPDX-License-Identifier: Apache-2.0
#include "lockstep/parallel/gradients/bucket_plan.h"

#include <ATen/ops/empty.h>
#include <gtest/gtest.h>

#include <limits>

#include "tests/fault_of.h"

namespace lockstep::parallel::bucket_plan_test {
namespace {

using test::fault_of;

std::vector<at::Tensor> floats(const std::vector<std::int64_t>& counts) {
  std::vector<at::Tensor> tensors;
  for (const std::int64_t count : counts) tensors.push_back(at::empty({count}));
  return tensors;
}

TEST(BucketAssignment, ATensorThatReachesTheLimitIsTheLastOfItsBucket) {
  EXPECT_EQ(compute_bucket_assignment_by_size(floats({10, 10, 10, 10}), {80}),
            (BucketAssignment{{0, 1}, {2, 3}}));
  EXPECT_EQ(compute_bucket_assignment_by_size(floats({10, 11, 10, 1}), {80}),
            (BucketAssignment{{0, 1}, {2, 3}}));
  EXPECT_EQ(compute_bucket_assignment_by_size(floats({100, 1, 1}), {80}),
            (BucketAssignment{{0}, {1, 2}}));
}

TEST(BucketAssignment, TheLastLimitHoldsForAllThatFollow) {
  EXPECT_EQ(compute_bucket_assignment_by_size(floats({10, 10, 10, 10, 10}), {40, 80}),
            (BucketAssignment{{0}, {1, 2}, {3, 4}}));
}

TEST(BucketAssignment, TypesHaveBucketsAndLimitsOfTheirOwn) {
  auto tensors = floats({10, 10, 10, 10});
  tensors[1] = at::empty({10}, at::kDouble);
  tensors[3] = at::empty({10}, at::kDouble);
  EXPECT_EQ(compute_bucket_assignment_by_size(tensors, {40, 1000}),
            (BucketAssignment{{0}, {1}, {2}, {3}}));
  EXPECT_EQ(compute_bucket_assignment_by_size(tensors, {1000}), (BucketAssignment{{0, 2}, {1, 3}}));
}

TEST(BucketAssignment, IndicesKeepTheOrderInWhichTensorsAreGiven) {
  EXPECT_EQ(compute_bucket_assignment_by_size(floats({10, 10, 10}), {80}, {2, 0, 1}),
            (BucketAssignment{{2, 0}, {1}}));
  EXPECT_EQ(fault_of([] {
              compute_bucket_assignment_by_size(floats({1, 1}), {80}, {0});
            }),
            Fault::misuse);
}

TEST(BucketLimits, AreThoseOfPyTorch) {
  constexpr std::size_t mib = 1024 * 1024;
  constexpr std::size_t whole = std::numeric_limits<std::size_t>::max();
  const auto by_default = bucket_limits({}, {}, true);
  EXPECT_EQ(by_default.first, (std::vector{whole}));
  EXPECT_EQ(by_default.rebuilt, (std::vector{mib, 25 * mib}));
  EXPECT_EQ(bucket_limits({}, {}, false).first, (std::vector{mib, 25 * mib}));
  EXPECT_EQ(bucket_limits(3, {}, true).rebuilt, (std::vector{3 * mib}));
  EXPECT_EQ(bucket_limits({}, {1, 2}, true).first, (std::vector{mib, 2 * mib}));
  EXPECT_EQ(fault_of([] { bucket_limits(3, {1, 2}, true); }), Fault::misuse);
  EXPECT_EQ(fault_of([] { bucket_limits(0, {}, true); }), Fault::misuse);
}

}  // namespace
}  // namespace lockstep::parallel::bucket_plan_test

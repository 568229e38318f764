// SPDX-License-Identifier: Apache-2.0
#include "lockstep/parallel/gradients/features.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>

#include "lockstep/base/error.h"
#include "tests/fault_of.h"

namespace lockstep::parallel::features_test {
namespace {

using test::fault_of;
using Options = DistributedDataParallelOptions;

TEST(Features, AreThoseOfTheOptions) {
  const Features features(Options{.overlap = true, .mean = GradientMean::over_samples});
  EXPECT_TRUE(features.has(Feature::overlap));
  EXPECT_TRUE(features.has(Feature::over_samples));
  EXPECT_FALSE(features.has(Feature::share_parameters));
  EXPECT_FALSE(Features(Options{.overlap = false}).has(Feature::overlap));
}

TEST(Features, RejectMutuallyExclusiveOptions) {
  std::string text;
  EXPECT_EQ(
      fault_of([] { Features(Options{.bucket_cap_mb = 1, .share_parameters = true}); }, &text),
      Fault::unsupported);
  EXPECT_NE(text.find("does not go together with bucket_cap_mb: its gradients"), text.npos) << text;
  Features(Options{.static_graph = true, .share_parameters = true});
}

TEST(Features, BeginOnceAndWithoutThoseThatExcludeThem) {
  Features features{Options{}};
  features.require_allowed(Feature::join);
  features.set(Feature::join, true);
  std::string text;
  EXPECT_EQ(fault_of([&] { features.require_allowed(Feature::join); }, &text), Fault::misuse);
  EXPECT_NE(text.find("join() is in use already"), text.npos) << text;
  EXPECT_EQ(fault_of([&] { features.require_allowed(Feature::shard_gradients); }),
            Fault::unsupported);
  features.set(Feature::join, false);
  features.set(Feature::shard_gradients, true);
  EXPECT_EQ(fault_of([&] { features.require_allowed(Feature::join); }), Fault::unsupported);
}

TEST(Features, ExcludeEachOtherInEitherOrder) {
  for (const auto& [first, second] : {std::pair(Feature::join, Feature::noise_scale),
                                      std::pair(Feature::noise_scale, Feature::join),
                                      std::pair(Feature::comm_hook, Feature::sparse_gradients),
                                      std::pair(Feature::sparse_gradients, Feature::comm_hook)}) {
    Features features{Options{}};
    features.set(first, true);
    EXPECT_EQ(fault_of([&] { features.require_allowed(second); }), Fault::unsupported);
  }
}

TEST(Features, MayLastAsLongAsTheirUser) {
  Features features{Options{}};
  auto user = std::make_shared<int>();
  features.set_while(Feature::noise_scale, user);
  EXPECT_TRUE(features.has(Feature::noise_scale));
  EXPECT_FALSE(features.allow_common_parameters());
  user.reset();
  EXPECT_FALSE(features.has(Feature::noise_scale));
  EXPECT_TRUE(features.allow_common_parameters());
}

TEST(Features, MustAllowCommonParametersOfTwoModules) {
  Features features{Options{.bucket_cap_mb = 1, .overlap = true}};
  EXPECT_TRUE(features.allow_common_parameters());
  features.set(Feature::shard_gradients, true);
  EXPECT_FALSE(features.allow_common_parameters());
  EXPECT_FALSE(Features(Options{.mean = GradientMean::over_samples}).allow_common_parameters());
  std::string text;
  EXPECT_EQ(fault_of([] { Features::refuse_common_parameters("encoder.weight"); }, &text),
            Fault::unsupported);
  EXPECT_NE(text.find("has these parameters too: encoder.weight. "), text.npos) << text;
  EXPECT_NE(text.find("GradientMean::over_samples"), text.npos) << text;
}

}  // namespace
}  // namespace lockstep::parallel::features_test

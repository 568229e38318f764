// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "lockstep/tensor/vector_math.h"

namespace lockstep::test {
namespace {

// Otherwise ranks that are threads would make the first call of LibTorch's vector math
// concurrently.
class SettledVectorMath : public testing::Environment {
 public:
  void SetUp() override { settle_vector_math(); }
};

const testing::Environment* const settled =
    testing::AddGlobalTestEnvironment(new SettledVectorMath);

}  // namespace
}  // namespace lockstep::test

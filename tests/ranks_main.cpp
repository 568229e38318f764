// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "tests/ranks.h"

int main(int argc, char** argv) {
  lockstep::test::become_rank_if_asked(argc, argv);
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}

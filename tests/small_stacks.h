// Gives threads small stacks during its lifetime, as under `ulimit -s 64`.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>
#include <pthread.h>

#include <cstddef>

namespace lockstep::test {

class SmallStacks {
 public:
  SmallStacks() {
    ::pthread_getattr_default_np(&before_);
    pthread_attr_t small;
    ::pthread_getattr_default_np(&small);
    ::pthread_attr_setstacksize(&small, std::size_t{64} << 10);
    EXPECT_EQ(::pthread_setattr_default_np(&small), 0);
    ::pthread_attr_destroy(&small);
  }
  ~SmallStacks() {
    ::pthread_setattr_default_np(&before_);
    ::pthread_attr_destroy(&before_);
  }
  SmallStacks(const SmallStacks&) = delete;
  SmallStacks& operator=(const SmallStacks&) = delete;

 private:
  pthread_attr_t before_;
};

}  // namespace lockstep::test

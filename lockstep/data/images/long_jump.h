// Calls C libraries whose error handlers must not return. Their errors become BadImage.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <csetjmp>

#include "lockstep/base/memory.h"
#include "lockstep/data/images/image_reader.h"

namespace lockstep::data {

class LongJump {
 public:
  // `calls` only calls a C library, and owns no objects with destructors, which fail() skips.
  template <class Calls>
  void guard(Calls calls) {
    if (setjmp(target_) != 0) throw BadImage(text_);
    calls();
  }

  // For the library's error handler, within guard().
  [[noreturn]] void fail(const char* text) {
    copy_text(text_, text);
    std::longjmp(target_, 1);
  }

 private:
  std::jmp_buf target_;
  char text_[256] = {};
};

}  // namespace lockstep::data

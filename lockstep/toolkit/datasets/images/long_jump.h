// Calls C libraries whose error handlers must not return. Throws their errors as BadImage.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <csetjmp>

#include "lockstep/base/memory.h"
#include "lockstep/toolkit/datasets/images/image_reader.h"

namespace lockstep::datasets {

class LongJump {
 public:
  // `calls` only calls a C library: fail() would skip destructors.
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

}  // namespace lockstep::datasets

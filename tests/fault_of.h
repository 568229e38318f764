// Returns the Fault of a call that must fail.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>

#include <string>

#include "lockstep/base/error.h"

namespace lockstep::test {

// Returns the Fault of the Error that `call` throws, and stores its message in `text`. Fails the
// test if no Error is thrown.
template <class Call>
Fault fault_of(Call call, std::string* text = nullptr) {
  try {
    call();
  } catch (const Error& error) {
    if (text != nullptr) *text = error.what();
    return error.fault();
  }
  ADD_FAILURE() << "nothing was thrown";
  return Fault::bug;
}

}  // namespace lockstep::test

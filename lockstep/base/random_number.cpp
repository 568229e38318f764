// SPDX-License-Identifier: Apache-2.0
#include "lockstep/base/random_number.h"

#include <sys/random.h>

#include "lockstep/base/error.h"

namespace lockstep {

std::uint64_t random_number() {
  std::uint64_t number = 0;
  // getrandom() returns up to 256 bytes completely or fails.
  if (::getrandom(&number, sizeof number, 0) != sizeof number)
    throw_errno("reading a random number: getrandom");
  return number;
}

}  // namespace lockstep

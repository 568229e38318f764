// A store that throws when the group for which it was made cannot be made.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "lockstep/job/store/store.h"

namespace lockstep::comm {

class WatchedStore : public Store {
 public:
  // Waits that do not use the store call it, at least every 20 ms. Errors: the reason for which the
  // group cannot be made.
  virtual void look() const = 0;
};

}  // namespace lockstep::comm

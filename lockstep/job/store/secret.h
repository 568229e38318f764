// Text that no core dump of this process shows.
//
// It lies in pages of its own, which the kernel leaves out of dumps. It is not swapped out if this
// user may lock memory. Copies share the pages; the last copy overwrites them at its end.
// Thread safety: a value.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "lockstep/base/api.h"

namespace lockstep {

class LOCKSTEP_API Secret {
 public:
  // Errors: system when no memory can be left out of dumps.
  explicit Secret(std::string_view text);
  Secret(const Secret&) = default;  // No move, which would leave a Secret without text.
  Secret& operator=(const Secret&) = default;

  std::string_view text() const;

 private:
  class Pages;

  std::shared_ptr<const Pages> pages_;
};

// Returns 64 characters that distinguish secrets. A secret of 128 random bits cannot be found from
// them.
LOCKSTEP_API std::string fingerprint(const Secret& secret);

}  // namespace lockstep

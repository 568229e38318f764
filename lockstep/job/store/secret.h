// Text that no core dump of this process shows.
//
// It lies in pages of its own, which the kernel leaves out of dumps and, as far as this user may
// lock memory, does not swap out. Copies share them; they are overwritten when the last one goes.
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
  // Errors: system when there is no memory that dumps leave out.
  explicit Secret(std::string_view text);
  Secret(const Secret&) = default;  // There is no move, which would leave one without text.
  Secret& operator=(const Secret&) = default;

  std::string_view text() const;

 private:
  class Pages;

  std::shared_ptr<const Pages> pages_;
};

// 64 characters that tell two secrets apart, and from which nobody finds one of 128 random bits.
LOCKSTEP_API std::string fingerprint(const Secret& secret);

}  // namespace lockstep

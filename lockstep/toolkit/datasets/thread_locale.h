// Sets this thread's locale, by which libarchive converts names.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <locale.h>

namespace lockstep::datasets {

// No effect if the system lacks the locale.
class ThreadLocale {
 public:
  explicit ThreadLocale(const char* name)
      : locale_(::newlocale(LC_ALL_MASK, name, nullptr)), before_(::uselocale(locale_)) {}
  ~ThreadLocale() {
    ::uselocale(before_);
    if (locale_ != nullptr) ::freelocale(locale_);
  }
  ThreadLocale(const ThreadLocale&) = delete;
  ThreadLocale& operator=(const ThreadLocale&) = delete;

 private:
  const locale_t locale_;
  const locale_t before_;
};

}  // namespace lockstep::datasets

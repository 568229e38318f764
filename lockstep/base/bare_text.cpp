// SPDX-License-Identifier: Apache-2.0
#include "lockstep/base/bare_text.h"

#include <fmt/format.h>

#include <algorithm>

namespace lockstep {

std::string bare_text(const Error& error) {
  std::string text = error.what();
  const std::string fault = fmt::format("{}: ", name(error.fault()));
  if (text.starts_with(fault)) text.erase(0, fault.size());
  if (text.ends_with(']')) text.erase(std::min(text.rfind(" ["), text.size()));
  return text;
}

}  // namespace lockstep

// SPDX-License-Identifier: Apache-2.0
#include "lockstep/comm/signature.h"

#include <fmt/format.h>

namespace lockstep {

std::string describe(const Signature& signature) {
  const auto elements = fmt::format("of {} {}", signature.count, name(signature.dtype));
  const auto tag = signature.tag == 0 ? "" : fmt::format(", tag {:016x}", signature.tag);
  switch (signature.operation) {
    case Operation::all_reduce:
      return fmt::format("all_reduce({}) {}{}", name(signature.op), elements, tag);
    case Operation::broadcast:
      return fmt::format("broadcast from rank {} {}{}", signature.root, elements, tag);
    case Operation::allocate:
      return fmt::format("allocate of {} bytes{}", signature.count, tag);
    case Operation::all_gather:
      return fmt::format("all_gather {}{}", elements, tag);
    case Operation::barrier:
    case Operation::none:
      break;
  }
  return fmt::format("{}{}", name(signature.operation), tag);
}

}  // namespace lockstep

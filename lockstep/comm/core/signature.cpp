// SPDX-License-Identifier: Apache-2.0
#include "lockstep/comm/core/signature.h"

#include <fmt/format.h>

namespace lockstep {
namespace {

std::string what(const Signature& signature) {
  std::string text(name(signature.operation));
  switch (signature.operation) {
    case Operation::barrier:
    case Operation::monitored_barrier:
    case Operation::none:
      return text;
    case Operation::allocate:
    case Operation::allocate_shared:
      return fmt::format("{} of {} bytes", text, signature.count);
    case Operation::split:
      return fmt::format("split #{} into sub-groups", signature.count);
    case Operation::destroy:
      if (signature.count == 0) return text;
      return fmt::format("{} with {} messages that nobody received", text, signature.count);
    default:
      break;
  }
  if (reduces(signature.operation)) text += fmt::format("({})", name(signature.op));
  if (signature.operation == Operation::broadcast || signature.operation == Operation::scatter)
    text += fmt::format(" from rank {}", signature.root);
  if (signature.operation == Operation::reduce || signature.operation == Operation::gather)
    text += fmt::format(" to rank {}", signature.root);
  return text + fmt::format(" of {} {}", signature.count, name(signature.dtype));
}

}  // namespace

std::string describe(const Signature& signature, std::string_view label) {
  std::string text = what(signature);
  if (signature.layout & layout_on_cuda) text += " on CUDA";
  if ((signature.layout & ~layout_on_cuda) != 0)
    text += fmt::format(" in uneven parts {:08x}", signature.layout >> 32);
  if (signature.label == 0) return text;
  if (label.empty()) return text + fmt::format(", label {:016x}", signature.label);
  const std::string_view shown = cut_text(label, most_label_bytes);
  text += fmt::format(", label '{}'", clean_text(shown));
  if (shown.size() == label.size()) return text;
  return text + fmt::format(" and more ({:016x})", signature.label);  // The difference may be in
                                                                      // the part not shown.
}

std::uint64_t hash_of(const void* data, std::size_t bytes) {
  std::uint64_t hash = 0xcbf29ce484222325;
  for (std::size_t i = 0; i < bytes; ++i)
    hash = (hash ^ static_cast<const unsigned char*>(data)[i]) * 0x100000001b3;
  return hash == 0 ? 1 : hash;
}

}  // namespace lockstep

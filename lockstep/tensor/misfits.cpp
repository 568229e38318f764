// SPDX-License-Identifier: Apache-2.0
#include "lockstep/tensor/misfits.h"

#include <algorithm>
#include <sstream>

#include "lockstep/base/error.h"

namespace lockstep {
namespace {

constexpr std::size_t most_told = 5;

std::string text_of(at::ScalarType type, at::IntArrayRef sizes) {
  std::ostringstream text;
  text << type << ' ' << sizes;  // Example: "Float [3, 2]".
  return text.str();
}

}  // namespace

const StateTensor* Misfits::find(const StateDict& saved, const std::string& name,
                                 at::ScalarType type, at::IntArrayRef sizes) {
  const auto found = saved.tensors.find(name);
  if (found == saved.tensors.end()) {
    add(name + " was not saved");
    return nullptr;
  }
  const StateTensor& tensor = found->second;
  if (tensor.data.scalar_type() == type && at::IntArrayRef(tensor.shape) == sizes) return &tensor;
  add(name + " is " + text_of(type, sizes) + " here and was saved as " +
      text_of(tensor.data.scalar_type(), tensor.shape));
  return nullptr;
}

void Misfits::require_none(std::string_view what) const {
  require(texts_.empty(), [&] {
    std::string text(what);
    for (std::size_t i = 0; i < std::min(texts_.size(), most_told); ++i)
      text += (i == 0 ? ": " : "; ") + texts_[i];
    if (texts_.size() > most_told)
      text += "; and " + std::to_string(texts_.size() - most_told) + " more";
    return text;
  });
}

}  // namespace lockstep

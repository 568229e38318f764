// SPDX-License-Identifier: Apache-2.0
#include "lockstep/tensor/cut_tensors.h"

#include <c10/util/StringUtil.h>

#include <mutex>
#include <unordered_map>
#include <utility>

namespace lockstep {
namespace {

struct KnownPart {
  c10::weak_intrusive_ptr<c10::TensorImpl> tensor;  // Prevents reuse of the address.
  std::string text;
};

class KnownParts {
 public:
  void add(const at::Tensor& parameter, std::string text) {
    const std::lock_guard lock(mutex_);
    std::erase_if(parts_, [](const auto& item) { return item.second.tensor.expired(); });
    parts_.insert_or_assign(
        parameter.unsafeGetTensorImpl(),
        KnownPart{c10::weak_intrusive_ptr<c10::TensorImpl>(parameter.getIntrusivePtr()),
                  std::move(text)});
  }

  std::string text_of(const at::Tensor& parameter) {
    const std::lock_guard lock(mutex_);
    const auto found = parts_.find(parameter.unsafeGetTensorImpl());
    return found == parts_.end() ? "" : found->second.text;
  }

 private:
  std::mutex mutex_;
  std::unordered_map<const c10::TensorImpl*, KnownPart> parts_;
};

// Never destroyed: modules may outlive static objects.
KnownParts& known_parts() {
  static auto* const all = new KnownParts;
  return *all;
}

}  // namespace

void note_part(const at::Tensor& parameter, const ParameterLayout& layout) {
  std::string text = " is ";
  for (const Box& box : layout.boxes.list)
    text += c10::str(&box == &layout.boxes.list.front() ? "" : " and ",
                     at::IntArrayRef(box.offsets), " + ", at::IntArrayRef(box.sizes));
  known_parts().add(parameter, text + " of " + c10::str(at::IntArrayRef(layout.shape)));
}

std::string part_text(const at::Tensor& parameter) { return known_parts().text_of(parameter); }

}  // namespace lockstep

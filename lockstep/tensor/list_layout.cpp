// SPDX-License-Identifier: Apache-2.0
#include "lockstep/tensor/list_layout.h"

#include <ATen/ops/empty.h>
#include <c10/core/ScalarType.h>

#include <algorithm>
#include <cstring>
#include <limits>

#include "lockstep/base/error.h"
#include "lockstep/tensor/buffers.h"

namespace lockstep {
namespace {

constexpr std::int64_t magic = 0x31'53'52'4f'53'4e'45'54;  // "TENSORS1".
constexpr std::int64_t alignment = 64;
constexpr std::int64_t most_dimensions = 64;  // LibTorch's own limit.

[[noreturn]] void fail(const std::string& what) {
  throw Error(Fault::corrupt, "a description of tensors: " + what);
}

bool can_travel(std::int64_t type) {
  if (type < 0 || type >= static_cast<std::int64_t>(at::ScalarType::NumOptions)) return false;
  const auto known = static_cast<at::ScalarType>(type);
  return known != at::ScalarType::Undefined && !c10::isQIntType(known);
}

// False beyond 63 bits.
bool append(ListLayout& list, TensorLayout tensor) {
  tensor.begin = list.bytes;
  if (tensor.type) {
    tensor.bytes = static_cast<std::int64_t>(c10::elementSize(*tensor.type));
    bool empty = false;
    for (const std::int64_t size : tensor.sizes) {
      empty = empty || size == 0;
      // A size of 0 must not hide overflow.
      const std::int64_t factor = std::max<std::int64_t>(size, 1);
      if (__builtin_mul_overflow(tensor.bytes, factor, &tensor.bytes)) return false;
    }
    if (empty) tensor.bytes = 0;
  }
  if (tensor.bytes > std::numeric_limits<std::int64_t>::max() - alignment - list.bytes)
    return false;
  list.bytes += (tensor.bytes + alignment - 1) / alignment * alignment;
  list.tensors.push_back(std::move(tensor));
  return true;
}

class Words {
 public:
  explicit Words(std::string_view text) : text_(text) {}

  std::size_t left() const { return text_.size() / sizeof(std::int64_t); }

  std::int64_t next() {
    if (left() == 0) fail("it ends too early");
    std::int64_t word = 0;
    std::memcpy(&word, text_.data(), sizeof word);
    text_.remove_prefix(sizeof word);
    return word;
  }

  // Each item has at least `words` words.
  std::size_t count(std::size_t words) {
    const std::int64_t number = next();
    if (number < 0 || static_cast<std::uint64_t>(number) > left() / words)
      fail("it cannot hold " + std::to_string(number) + " more parts");
    return static_cast<std::size_t>(number);
  }

 private:
  std::string_view text_;
};

TensorLayout decode_tensor(Words& words) {
  TensorLayout tensor;
  const std::int64_t type = words.next();
  const std::size_t dimensions = words.count(1);
  if (type == -1 && dimensions == 0) return tensor;
  if (!can_travel(type)) fail("there is no type " + std::to_string(type));
  if (dimensions > most_dimensions) fail(std::to_string(dimensions) + " dimensions");
  tensor.type = static_cast<at::ScalarType>(type);
  for (std::size_t i = 0; i < dimensions; ++i) {
    tensor.sizes.push_back(words.next());
    if (tensor.sizes.back() < 0) fail("a dimension of " + std::to_string(tensor.sizes.back()));
  }
  return tensor;
}

}  // namespace

ListLayout layout_of(const std::vector<at::Tensor>& tensors) {
  ListLayout list;
  for (const at::Tensor& tensor : tensors) {
    TensorLayout layout;
    if (tensor.defined()) {
      require_dense(tensor, "a list of tensors");
      layout.type = tensor.scalar_type();
      layout.sizes = tensor.sizes().vec();
    }
    require(append(list, std::move(layout)), "a list of tensors is larger than any memory");
  }
  return list;
}

std::string encode_layouts(const std::vector<ListLayout>& lists) {
  std::vector<std::int64_t> words{magic, static_cast<std::int64_t>(lists.size())};
  for (const ListLayout& list : lists) {
    words.push_back(list.bytes);
    words.push_back(static_cast<std::int64_t>(list.tensors.size()));
    for (const TensorLayout& tensor : list.tensors) {
      words.push_back(tensor.type ? static_cast<std::int64_t>(*tensor.type) : -1);
      words.push_back(static_cast<std::int64_t>(tensor.sizes.size()));
      words.insert(words.end(), tensor.sizes.begin(), tensor.sizes.end());
    }
  }
  return {reinterpret_cast<const char*>(words.data()), words.size() * sizeof words[0]};
}

std::vector<ListLayout> decode_layouts(std::string_view text) {
  Words words(text);
  if (text.size() % sizeof(std::int64_t) != 0 || words.next() != magic) fail("it is none");
  std::vector<ListLayout> lists(words.count(2));
  for (ListLayout& list : lists) {
    const std::int64_t bytes = words.next();
    for (std::size_t left = words.count(2); left > 0; --left)
      if (!append(list, decode_tensor(words))) fail("a tensor is larger than any memory");
    if (list.bytes != bytes)
      fail("the tensors of a list take " + std::to_string(list.bytes) + " bytes, not " +
           std::to_string(bytes));
  }
  if (words.left() != 0) fail("something follows it");
  return lists;
}

std::vector<at::Tensor> views_of(const ListLayout& list, const at::Tensor& block) {
  std::vector<at::Tensor> tensors;
  for (const TensorLayout& tensor : list.tensors)
    if (!tensor.type)
      tensors.emplace_back();
    else if (tensor.bytes == 0)
      tensors.push_back(at::empty(tensor.sizes, *tensor.type));
    else
      tensors.push_back(
          block.narrow(0, tensor.begin, tensor.bytes).view(*tensor.type).view(tensor.sizes));
  return tensors;
}

}  // namespace lockstep

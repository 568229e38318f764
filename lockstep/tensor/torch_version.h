// Differences between minor versions of LibTorch, detected by their members.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/csrc/autograd/function.h>

#include <cstdint>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>

#include "lockstep/base/error.h"

namespace lockstep {

// The pointer that owns an autograd node: a std::shared_ptr before LibTorch 2.13.
using NodePtr = decltype(torch::autograd::Edge::function);

template <class Node, class... Args>
NodePtr make_node(Args&&... args) {
  if constexpr (std::is_same_v<NodePtr, std::shared_ptr<torch::autograd::Node>>)
    return std::make_shared<Node>(std::forward<Args>(args)...);
  else
    return c10::make_intrusive<Node>(std::forward<Args>(args)...);
}

// Makes every access to the elements throw an exception with `text`. Errors: unsupported before
// LibTorch 2.12, because older versions cannot undo it.
template <class Storage>
void set_access_error(Storage& storage, const std::string& text) {
  if constexpr (requires { storage.clear_data_ptr_access_error_msg_(); })
    storage.release_data_and_set_meta_custom_data_ptr_error_msg_(text);
  else
    throw Error(Fault::unsupported, "parameters without memory need LibTorch 2.12 or later");
}

template <class Storage>
void clear_access_error(Storage& storage) {
  if constexpr (requires { storage.clear_data_ptr_access_error_msg_(); })
    storage.clear_data_ptr_access_error_msg_();
}

// Such as a cudaStream_t. Errors: before LibTorch 2.12, unsupported for streams other than the
// default.
template <class Stream>
void* native_handle_of(const Stream& stream) {
  if constexpr (requires { stream.native_handle(); })
    return stream.native_handle();
  else if (stream.id() != 0)
    throw Error(Fault::unsupported, "CUDA streams other than the default need LibTorch 2.12");
  return nullptr;
}

// The type of c10d::Work for reduce_scatter_tensor_coalesced().
template <class OpType>
constexpr OpType reduce_scatter_tensor_coalesced_type() {
  if constexpr (requires { OpType::REDUCE_SCATTER_TENSOR_COALESCED; })
    return OpType::REDUCE_SCATTER_TENSOR_COALESCED;
  else
    return OpType::COALESCED;
}

}  // namespace lockstep

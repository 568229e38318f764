// SPDX-License-Identifier: Apache-2.0
#include "lockstep/tensor/named_tensors.h"

#include <c10/core/ScalarType.h>
#include <c10/core/StorageImpl.h>
#include <openssl/evp.h>
#include <torch/nn/module.h>

#include <array>
#include <cstdint>
#include <iterator>
#include <memory>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/tensor/script_module.h"
#include "lockstep/tensor/sharded_module.h"
#include "lockstep/tensor/tensor_memory.h"

namespace lockstep {
namespace {

template <class Items>
NamedTensors defined_ones(const Items& items) {
  NamedTensors all;
  for (const auto& item : items)
    if (item.value().defined()) all.emplace_back(item.key(), item.value());
  return all;
}

class Sha256 {
 public:
  Sha256() : context_(::EVP_MD_CTX_new(), &::EVP_MD_CTX_free) {
    check(context_ && ::EVP_DigestInit_ex(context_.get(), ::EVP_sha256(), nullptr) == 1,
          "OpenSSL offers no SHA-256");
  }

  void add(const void* data, std::size_t size) {
    check(::EVP_DigestUpdate(context_.get(), data, size) == 1, "EVP_DigestUpdate failed");
  }

  std::string hex() {
    std::array<unsigned char, EVP_MAX_MD_SIZE> digest{};
    unsigned int size = 0;
    check(::EVP_DigestFinal_ex(context_.get(), digest.data(), &size) == 1,
          "EVP_DigestFinal_ex failed");
    constexpr char digits[] = "0123456789abcdef";
    std::string text;
    for (unsigned int i = 0; i < size; ++i) {
      text += digits[digest[i] >> 4];
      text += digits[digest[i] & 15];
    }
    return text;
  }

 private:
  std::unique_ptr<EVP_MD_CTX, decltype(&::EVP_MD_CTX_free)> context_;
};

// "float32 [2, 3]\n".
std::string heading(const at::Tensor& tensor) {
  std::string text(c10::getDtypeNames(tensor.scalar_type()).first);
  text += " [";
  for (std::int64_t axis = 0; axis < tensor.dim(); ++axis)
    text += (axis == 0 ? "" : ", ") + std::to_string(tensor.size(axis));
  return text + "]\n";
}

// An address or, without memory, a storage offset.
std::pair<const void*, std::int64_t> beginning_of(const at::Tensor& tensor) {
  auto* const storage = tensor.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl();
  if (storage->_mutable_data_ptr_no_checks().get() == nullptr)
    return {storage, tensor.storage_offset()};
  return {tensor.const_data_ptr(), 0};
}

void adopt_assigned_buffers(const torch::nn::Module& module) {
  if (const auto* const script = dynamic_cast<const ScriptModule*>(&module))
    script->adopt_assigned_buffers();
}

}  // namespace

NamedTensors named_parameters(const torch::nn::Module& module) {
  return defined_ones(module.named_parameters());
}

NamedTensors named_buffers(const torch::nn::Module& module) {
  adopt_assigned_buffers(module);
  for (const auto& part : module.modules(/*include_self=*/false)) adopt_assigned_buffers(*part);
  return defined_ones(module.named_buffers());
}

NamedTensors named_tensors(const torch::nn::Module& module) {
  NamedTensors all = named_parameters(module);
  NamedTensors buffers = named_buffers(module);
  all.insert(all.end(), std::move_iterator(buffers.begin()), std::move_iterator(buffers.end()));
  return all;
}

std::map<std::string, std::string> first_names(const NamedTensors& tensors) {
  using Place = std::tuple<std::pair<const void*, std::int64_t>, at::ScalarType,
                           std::vector<std::int64_t>, std::vector<std::int64_t>>;
  std::map<Place, std::string> known;
  std::map<std::string, std::string> first;
  for (const auto& [name, tensor] : tensors) {
    first.emplace(name, name);
    if (tensor.numel() == 0) continue;
    const Place place{beginning_of(tensor), tensor.scalar_type(), tensor.sizes().vec(),
                      tensor.strides().vec()};
    first[name] = known.try_emplace(place, name).first->second;
  }
  return first;
}

std::string sha256(at::TensorList tensors) {
  Sha256 digest;
  for (const at::Tensor& tensor : tensors) {
    require(tensor.defined() && tensor.layout() == at::kStrided && !tensor.is_quantized() &&
                !tensor.is_meta(),
            "sha256: a tensor is undefined, not dense or on the meta device");
    const std::string line = heading(tensor);
    digest.add(line.data(), line.size());
    const at::Tensor values = plain_values(tensor);
    digest.add(values.const_data_ptr(), values.nbytes());
  }
  return digest.hex();
}

std::string sha256(const torch::nn::Module& module) {
  require_values(named_tensors(module), "sha256");
  std::vector<at::Tensor> tensors;
  for (const auto& [name, tensor] : whole_parameters(module)) tensors.push_back(tensor);
  for (const auto& [name, tensor] : named_buffers(module)) tensors.push_back(tensor);
  return sha256(tensors);
}

}  // namespace lockstep

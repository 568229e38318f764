// SPDX-License-Identifier: Apache-2.0
#include "lockstep/tensor/digest.h"

#include <c10/core/ScalarType.h>
#include <openssl/evp.h>

#include <array>
#include <memory>
#include <string_view>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/tensor/named_tensors.h"
#include "lockstep/tensor/plain_values.h"

namespace lockstep {
namespace {

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

// Example: "float32 [2, 3]\n".
std::string heading(const at::Tensor& tensor) {
  std::string text(c10::getDtypeNames(tensor.scalar_type()).first);
  text += " [";
  for (std::int64_t axis = 0; axis < tensor.dim(); ++axis)
    text += (axis == 0 ? "" : ", ") + std::to_string(tensor.size(axis));
  return text + "]\n";
}

}  // namespace

std::string sha256(at::TensorList tensors) {
  Sha256 digest;
  for (const at::Tensor& tensor : tensors) {
    require(tensor.defined() && tensor.layout() == at::kStrided && !tensor.is_quantized(),
            "sha256: a tensor is undefined or not dense");
    const std::string line = heading(tensor);
    digest.add(line.data(), line.size());
    const at::Tensor values = plain_values(tensor);
    digest.add(values.const_data_ptr(), values.nbytes());
  }
  return digest.hex();
}

std::string sha256(const torch::nn::Module& module) {
  std::vector<at::Tensor> tensors;
  for (const auto& [name, tensor] : named_tensors(module)) tensors.push_back(tensor);
  return sha256(tensors);
}

}  // namespace lockstep

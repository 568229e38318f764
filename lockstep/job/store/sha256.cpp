// SPDX-License-Identifier: Apache-2.0
#include "lockstep/job/store/sha256.h"

#include <fmt/format.h>
#include <openssl/evp.h>

#include <array>
#include <cstddef>

#include "lockstep/base/error.h"

namespace lockstep {

std::string sha256_hex(std::string_view bytes) {
  std::array<unsigned char, 32> digest{};
  std::size_t length = 0;
  check(EVP_Q_digest(nullptr, "SHA256", nullptr, bytes.data(), bytes.size(), digest.data(),
                     &length) == 1 &&
            length == digest.size(),
        "OpenSSL offers no SHA-256");
  std::string digits;
  for (const unsigned char byte : digest) digits += fmt::format("{:02x}", byte);
  return digits;
}

}  // namespace lockstep

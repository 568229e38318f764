// SPDX-License-Identifier: Apache-2.0
#include "lockstep/job/store/secret.h"

#include <openssl/crypto.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>

#include "lockstep/base/error.h"
#include "lockstep/job/store/sha256.h"

namespace lockstep {

class Secret::Pages {
 public:
  explicit Pages(std::string_view text) : length_(text.size()) {
    const auto page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
    bytes_ = (length_ / page + 1) * page;
    void* const memory =
        ::mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) throw_errno("mapping memory for a secret");
    data_ = static_cast<char*>(memory);
    if (::madvise(memory, bytes_, MADV_DONTDUMP) != 0) {
      ::munmap(memory, bytes_);
      throw_errno("keeping a secret out of core dumps");
    }
    ::mlock(memory, bytes_);  // RLIMIT_MEMLOCK may forbid it.
    text.copy(data_, length_);
  }
  ~Pages() {
    OPENSSL_cleanse(data_, length_);
    ::munmap(data_, bytes_);
  }
  Pages(const Pages&) = delete;
  Pages& operator=(const Pages&) = delete;

  std::string_view text() const { return {data_, length_}; }

 private:
  const std::size_t length_;
  std::size_t bytes_ = 0;
  char* data_ = nullptr;
};

Secret::Secret(std::string_view text) : pages_(std::make_shared<const Pages>(text)) {}

std::string_view Secret::text() const { return pages_->text(); }

std::string fingerprint(const Secret& secret) { return sha256_hex(secret.text()); }

}  // namespace lockstep

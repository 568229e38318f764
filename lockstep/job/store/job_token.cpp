// SPDX-License-Identifier: Apache-2.0
#include <fcntl.h>
#include <fmt/format.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/rand.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstddef>
#include <cstdlib>
#include <cstring>

#include "lockstep/base/error.h"
#include "lockstep/base/file_descriptor.h"
#include "lockstep/base/memory.h"
#include "lockstep/base/variables.h"
#include "lockstep/job/store/handshake.h"
#include "lockstep/job/store/tcp_store.h"

namespace lockstep {

class Secret::Pages {
 public:
  explicit Pages(std::string_view text) : length_(text.size()) {
    bytes_ = whole_pages(length_);
    void* const memory =
        ::mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) throw_errno("mapping memory for a secret");
    data_ = static_cast<char*>(memory);
    if (::madvise(memory, bytes_, MADV_DONTDUMP) != 0) {
      ::munmap(memory, bytes_);
      throw_errno("keeping a secret out of core dumps");
    }
    ::mlock(memory, bytes_);  // RLIMIT_MEMLOCK may prevent it.
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

namespace {

constexpr std::size_t least_characters = 22;
constexpr std::size_t most_characters = 1024;

bool is_base64(char c) {
  return (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '+' ||
         c == '/' || c == '-' || c == '_';
}

// On the stack: a growing string leaves copies in memory.
struct Wiped {
  std::array<char, most_characters + 2> bytes{};
  ~Wiped() { OPENSSL_cleanse(bytes.data(), bytes.size()); }
};

// The memory that /proc/PID/environ shows; null if unset.
char* token_variable() {
  constexpr const char* name = "LOCKSTEP_JOB_TOKEN";
  return read_variable(name) == nullptr ? nullptr : ::getenv(name);
}

void wipe_variable(char* text) {
  OPENSSL_cleanse(text, std::strlen(text));
  ::unsetenv("LOCKSTEP_JOB_TOKEN");
}

JobToken read_token_file(const char* path) {
  const auto refuse = [&](std::string_view why) {
    throw Error(Fault::misuse, fmt::format("LOCKSTEP_JOB_TOKEN_FILE={}: {}", path, why));
  };
  const FileDescriptor file(::open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
  if (!file && errno == ELOOP) refuse("a symbolic link is not followed");
  if (!file) refuse(fmt::format("it cannot be opened: {}", std::strerror(errno)));
  struct stat status {};
  if (::fstat(file.get(), &status) != 0) throw_errno("fstat of the job token's file");
  if (!S_ISREG(status.st_mode)) refuse("not a regular file");
  if (status.st_uid != ::geteuid()) refuse("it belongs to another user");
  if ((status.st_mode & 077) != 0) refuse("others may read or write it: chmod 600 it");
  Wiped text;
  const ssize_t count = ::read(file.get(), text.bytes.data(), text.bytes.size());
  if (count < 0) throw_errno("reading the job token's file");
  std::string_view token(text.bytes.data(), static_cast<std::size_t>(count));
  if (token.ends_with('\n')) token.remove_suffix(1);
  return JobToken(token);
}

}  // namespace

JobToken::JobToken(std::string_view text) : secret_(text) {
  while (text.ends_with('=')) text.remove_suffix(1);
  require(text.size() <= most_characters && std::all_of(text.begin(), text.end(), is_base64),
          "a job token is base64 text of at most 1024 characters");
  require(text.size() >= least_characters,
          "a job token needs at least 22 base64 characters (128 bits): openssl rand -base64 32");
}

JobToken make_job_token() {
  std::array<unsigned char, 32> random{};
  if (RAND_bytes(random.data(), random.size()) != 1)
    throw Error(Fault::system, "OpenSSL has no random bytes");
  std::array<unsigned char, 45> text{};
  const int length = EVP_EncodeBlock(text.data(), random.data(), random.size());
  JobToken token({reinterpret_cast<const char*>(text.data()), static_cast<std::size_t>(length)});
  OPENSSL_cleanse(random.data(), random.size());
  OPENSSL_cleanse(text.data(), text.size());
  return token;
}

std::optional<JobToken> read_job_token() {
  const char* path = read_variable("LOCKSTEP_JOB_TOKEN_FILE");
  char* text = token_variable();
  require(path == nullptr || text == nullptr,
          "both LOCKSTEP_JOB_TOKEN_FILE and LOCKSTEP_JOB_TOKEN are set: unset one of them");
  if (path != nullptr) return read_token_file(path);
  if (text == nullptr) return std::nullopt;
  const JobToken token(text);
  wipe_variable(text);
  return token;
}

const std::optional<Secret>& secret_of_environment() {
  static const std::optional<Secret> kept = []() -> std::optional<Secret> {
    char* text = token_variable();
    if (text == nullptr) return std::nullopt;
    const Secret secret(text);
    wipe_variable(text);
    return secret;
  }();
  return kept;
}

}  // namespace lockstep

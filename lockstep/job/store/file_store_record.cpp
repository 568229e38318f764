// SPDX-License-Identifier: Apache-2.0
#include "lockstep/job/store/file_store_record.h"

#include <openssl/evp.h>

#include <array>

#include "lockstep/base/bytes.h"
#include "lockstep/base/error.h"
#include "lockstep/job/store/store.h"

namespace lockstep {
namespace {

constexpr std::string_view record_magic{"LSR\x01", 4};
constexpr std::size_t body_check_bytes = 16;
constexpr std::size_t header_check_bytes = 8;

// Returns the first `count` bytes of a SHA-256: detects damage, does not stop an attacker.
std::string checksum(std::string_view bytes, std::size_t count) {
  std::array<unsigned char, 32> digest{};
  if (EVP_Q_digest(nullptr, "SHA256", nullptr, bytes.data(), bytes.size(), digest.data(),
                   nullptr) != 1)
    throw Error(Fault::system, "OpenSSL cannot do SHA-256");
  return std::string(reinterpret_cast<const char*>(digest.data()), count);
}

}  // namespace

std::string encode(const FileStoreRecord& record) {
  std::string body =
      ByteWriter(record.key.size() + record.value.size()).raw(record.key).raw(record.value).take();
  std::string header = ByteWriter(record_header_bytes + body.size())
                           .raw(record_magic)
                           .number(static_cast<std::uint32_t>(record.kind))
                           .number(static_cast<std::uint32_t>(record.key.size()))
                           .number(static_cast<std::uint32_t>(record.value.size()))
                           .raw(checksum(body, body_check_bytes))
                           .take();
  header += checksum(header, header_check_bytes);
  return header + body;
}

std::size_t body_bytes(std::string_view header) {
  const std::size_t checked = record_header_bytes - header_check_bytes;
  ByteReader reader(header);
  if (reader.raw(record_magic.size()) != record_magic ||
      header.substr(checked) != checksum(header.substr(0, checked), header_check_bytes))
    throw Error(Fault::corrupt, "a record of a store file is damaged");
  reader.number<std::uint32_t>();
  const std::size_t key = reader.number<std::uint32_t>();
  const std::size_t value = reader.number<std::uint32_t>();
  if (key > Store::max_key_bytes || value > Store::max_value_bytes)
    throw Error(Fault::corrupt, "a record of a store file is too long");
  return key + value;
}

FileStoreRecord decode_record(std::string_view header, std::string_view body) {
  if (body.size() != body_bytes(header))
    throw Error(Fault::corrupt, "a record of a store file has another length than it says");
  ByteReader reader(header.substr(record_magic.size()));
  const auto kind = reader.number<std::uint32_t>();
  const std::size_t key = reader.number<std::uint32_t>();
  const std::size_t value = reader.number<std::uint32_t>();
  if (kind < 1 || kind > 2 || (kind == 2 && value > 0))
    throw Error(Fault::corrupt, "a record of a store file is of no known kind");
  if (reader.raw(body_check_bytes) != checksum(body, body_check_bytes))
    throw Error(Fault::corrupt, "a record of a store file is damaged");
  return {static_cast<FileStoreRecord::Kind>(kind), body.substr(0, key), body.substr(key)};
}

}  // namespace lockstep

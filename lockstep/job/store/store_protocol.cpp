// SPDX-License-Identifier: Apache-2.0
#include "lockstep/job/store/store_protocol.h"

#include <openssl/evp.h>

#include <array>

#include "lockstep/base/bytes.h"
#include "lockstep/base/error.h"
#include "lockstep/job/store/store.h"

namespace lockstep::job {
namespace {

std::string framed(std::string body) {
  check(body.size() <= max_frame_bytes, "a store frame is too long");
  return ByteWriter(frame_header_bytes + body.size())
      .number(static_cast<std::uint32_t>(body.size()))
      .raw(body)
      .take();
}

constexpr std::string_view record_magic{"LSR\x01", 4};
constexpr std::size_t body_check_bytes = 16;
constexpr std::size_t header_check_bytes = 8;

// Detects damage, but stops no attacker.
std::string checksum(std::string_view bytes, std::size_t count) {
  std::array<unsigned char, 32> digest{};
  if (EVP_Q_digest(nullptr, "SHA256", nullptr, bytes.data(), bytes.size(), digest.data(),
                   nullptr) != 1)
    throw Error(Fault::system, "OpenSSL cannot do SHA-256");
  return std::string(reinterpret_cast<const char*>(digest.data()), count);
}

}  // namespace

std::string encode(const StoreRequest& request) {
  ByteWriter body(32 + request.key.size() + request.value.size() + request.expected.size());
  body.number(static_cast<std::uint8_t>(request.kind)).number(request.id);
  if (request.kind == StoreRequest::Kind::cancel) return framed(body.take());
  body.prefixed(request.key);
  if (request.kind == StoreRequest::Kind::compare_set) body.prefixed(request.expected);
  if (request.kind == StoreRequest::Kind::compare_set || request.kind == StoreRequest::Kind::set)
    body.prefixed(request.value);
  if (request.kind == StoreRequest::Kind::add) body.number(request.amount);
  return framed(body.take());
}

StoreRequest decode_request(std::string_view body) {
  ByteReader reader(body);
  StoreRequest request;
  const auto kind = reader.number<std::uint8_t>();
  if (kind < 1 || kind > 7) throw Error(Fault::corrupt, "a store request of an unknown kind");
  request.kind = static_cast<StoreRequest::Kind>(kind);
  request.id = reader.number<std::uint64_t>();
  if (request.kind != StoreRequest::Kind::cancel)
    request.key = reader.prefixed(Store::max_key_bytes);
  if (request.kind == StoreRequest::Kind::compare_set)
    request.expected = reader.prefixed(Store::max_value_bytes);
  if (request.kind == StoreRequest::Kind::compare_set || request.kind == StoreRequest::Kind::set)
    request.value = reader.prefixed(Store::max_value_bytes);
  if (request.kind == StoreRequest::Kind::add) request.amount = reader.number<std::int64_t>();
  reader.end();
  return request;
}

std::string encode(const StoreReply& reply) {
  ByteWriter body(32 + reply.bytes.size());
  body.number(static_cast<std::uint8_t>(reply.kind)).number(reply.id);
  if (reply.kind == StoreReply::Kind::value) body.prefixed(reply.bytes);
  if (reply.kind == StoreReply::Kind::number) body.number(reply.number);
  if (reply.kind == StoreReply::Kind::error)
    body.number(static_cast<std::uint8_t>(reply.fault))
        .prefixed(reply.bytes.substr(0, max_reason_bytes));
  return framed(body.take());
}

StoreFrame frame_of(std::uint64_t id, const std::shared_ptr<const std::string>& value) {
  constexpr std::size_t fewest_shared_bytes = 4096;
  if (value->size() < fewest_shared_bytes)
    return {encode(StoreReply{.kind = StoreReply::Kind::value, .id = id, .bytes = *value})};
  const std::string body = ByteWriter(13)
                               .number(static_cast<std::uint8_t>(StoreReply::Kind::value))
                               .number(id)
                               .number(static_cast<std::uint32_t>(value->size()))
                               .take();
  return {ByteWriter(frame_header_bytes + body.size())
              .number(static_cast<std::uint32_t>(body.size() + value->size()))
              .raw(body)
              .take(),
          value};
}

StoreReply decode_reply(std::string_view body) {
  ByteReader reader(body);
  StoreReply reply;
  const auto kind = reader.number<std::uint8_t>();
  if (kind < 1 || kind > 5) throw Error(Fault::corrupt, "a store reply of an unknown kind");
  reply.kind = static_cast<StoreReply::Kind>(kind);
  reply.id = reader.number<std::uint64_t>();
  if (reply.kind == StoreReply::Kind::value) reply.bytes = reader.prefixed(Store::max_value_bytes);
  if (reply.kind == StoreReply::Kind::number) reply.number = reader.number<std::int64_t>();
  if (reply.kind == StoreReply::Kind::error) {
    const auto fault = reader.number<std::uint8_t>();
    if (fault > static_cast<std::uint8_t>(Fault::bug))
      throw Error(Fault::corrupt, "a store reply with an unknown fault");
    reply.fault = static_cast<Fault>(fault);
    reply.bytes = reader.prefixed(max_reason_bytes);
  }
  reader.end();
  return reply;
}

std::optional<std::string_view> first_frame(std::string_view bytes) {
  if (bytes.size() < frame_header_bytes) return std::nullopt;
  const auto length = ByteReader(bytes).number<std::uint32_t>();
  if (length == 0 || length > max_frame_bytes)
    throw Error(Fault::corrupt, "a store frame of an impossible length");
  if (bytes.size() - frame_header_bytes < length) return std::nullopt;
  return bytes.substr(frame_header_bytes, length);
}

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
    throw Error(Fault::corrupt, "a record of a store file has another length than in its header");
  ByteReader reader(header.substr(record_magic.size()));
  const auto kind = reader.number<std::uint32_t>();
  const std::size_t key = reader.number<std::uint32_t>();
  const std::size_t value = reader.number<std::uint32_t>();
  if (kind < 1 || kind > 2 || (kind == 2 && value > 0))
    throw Error(Fault::corrupt, "a record of a store file is of an unknown kind");
  if (reader.raw(body_check_bytes) != checksum(body, body_check_bytes))
    throw Error(Fault::corrupt, "a record of a store file is damaged");
  return {static_cast<FileStoreRecord::Kind>(kind), body.substr(0, key), body.substr(key)};
}

}  // namespace lockstep::job

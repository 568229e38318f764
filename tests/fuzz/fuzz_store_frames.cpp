// F1: frames from authenticated clients to a store server with one table. The first byte of each
// frame selects one of three clients.

// SPDX-License-Identifier: Apache-2.0
#include <string_view>

#include "lockstep/base/error.h"
#include "lockstep/job/store/store_protocol.h"
#include "lockstep/job/store/store_service.h"
#include "tests/fuzz/target.h"

namespace lockstep::fuzz {
namespace {

using namespace job;

using Ask = StoreRequest::Kind;

// Checks that a client can read the server's frame, and that it is the same when written again.
void check_reply(const std::string& frame) {
  const auto body = first_frame(frame);
  expect(body && body->size() + frame_header_bytes == frame.size());
  expect(encode(decode_reply(*body)) == frame);
}

// Returns false if the server would close the client.
bool take_frame(StoreService& service, StoreService::Client client, std::string_view& bytes) {
  const auto body = first_frame(bytes);
  if (!body) return false;
  const StoreRequest request = decode_request(*body);
  expect(encode(request) == bytes.substr(0, frame_header_bytes + body->size()));
  service.handle(client, request,
                 [](StoreService::Client, const StoreFrame& frame) { check_reply(frame.text()); });
  bytes.remove_prefix(frame_header_bytes + body->size());
  return true;
}

void check_table(const StoreTable& table) {
  std::size_t bytes = 0;
  for (const auto& [key, value] : table.values()) bytes += key.size() + value->size();
  expect(bytes == table.bytes());
}

}  // namespace

std::vector<std::string> seeds() {
  const auto from = [](char client, const StoreRequest& request) {
    std::string place(1, client);
    return place += encode(request);
  };
  std::vector<std::string> found{
      from(0, {.kind = Ask::set, .id = 1, .key = "k", .value = "41"}),
      from(1, {.kind = Ask::wait, .id = 2, .key = "later"}),
      from(0, {.kind = Ask::find, .id = 3, .key = "k"}),
      from(0, {.kind = Ask::add, .id = 4, .key = "k", .amount = 1}),
      from(2, {.kind = Ask::compare_set, .id = 5, .key = "k", .value = "w", .expected = "42"}),
      from(1, {.kind = Ask::cancel, .id = 2}),
      from(2, {.kind = Ask::wait, .id = 2, .key = "later"}),
      from(0, {.kind = Ask::set, .id = 6, .key = "later", .value = "now"}),
      from(0, {.kind = Ask::erase, .id = 7, .key = "k"}),
  };
  std::string all;
  for (const std::string& one : found) all += one;
  found.push_back(all);
  return found;
}

}  // namespace lockstep::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace lockstep;
  using namespace job;
  std::string_view bytes(reinterpret_cast<const char*>(data), size);
  StoreService service;
  while (!bytes.empty()) {
    const auto client = static_cast<StoreService::Client>(static_cast<unsigned char>(bytes[0]) % 3);
    bytes.remove_prefix(1);
    try {
      if (!fuzz::take_frame(service, client, bytes)) break;
    } catch (const Error& error) {
      fuzz::expect(error.fault() == Fault::corrupt);
      service.forget(client);
      break;
    }
  }
  fuzz::check_table(service.table());

  std::string_view replies(reinterpret_cast<const char*>(data), size);
  try {
    while (const auto body = first_frame(replies)) {
      fuzz::expect(encode(decode_reply(*body)) ==
                   replies.substr(0, frame_header_bytes + body->size()));
      replies.remove_prefix(frame_header_bytes + body->size());
    }
  } catch (const Error& error) {
    fuzz::expect(error.fault() == Fault::corrupt);
  }
  return 0;
}

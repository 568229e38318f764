// SPDX-License-Identifier: Apache-2.0
#include "lockstep/job/store/store_protocol.h"

#include <gtest/gtest.h>

#include <limits>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/base/bytes.h"
#include "lockstep/job/store/store_service.h"
#include "tests/fault_of.h"

namespace lockstep::job::store_protocol_test {
namespace {

using test::fault_of;
using Ask = StoreRequest::Kind;

std::vector<std::string> all_requests() {
  return {
      encode({.kind = Ask::set, .id = 1, .key = "k", .value = "v"}),
      encode({.kind = Ask::find, .id = 2, .key = "k"}),
      encode({.kind = Ask::wait, .id = 3, .key = ""}),
      encode({.kind = Ask::cancel, .id = 3}),
      encode({.kind = Ask::add, .id = 4, .key = "k", .amount = -5}),
      encode({.kind = Ask::compare_set, .id = 5, .key = "k", .value = "w", .expected = "v"}),
      encode({.kind = Ask::erase, .id = 6, .key = "k"}),
  };
}

TEST(StoreProtocol, RequestsComeBackAsTheyWere) {
  for (const std::string& frame : all_requests()) {
    const auto body = first_frame(frame);
    ASSERT_TRUE(body);
    EXPECT_EQ(encode(decode_request(*body)), frame);
  }
}

TEST(StoreProtocol, RepliesComeBackAsTheyWere) {
  using Kind = StoreReply::Kind;
  for (const std::string& frame :
       {encode({.kind = Kind::done, .id = 1}), encode({.kind = Kind::absent, .id = 2}),
        encode({.kind = Kind::value, .id = 3, .bytes = "v"}),
        encode({.kind = Kind::number, .id = 4, .number = std::numeric_limits<std::int64_t>::min()}),
        encode({.kind = Kind::error, .id = 5, .bytes = "why", .fault = Fault::system})})
    EXPECT_EQ(encode(decode_reply(*first_frame(frame))), frame);
}

TEST(StoreProtocol, TheBytesOfARequestAreFrozen) {
  const std::string frame = encode({.kind = Ask::set, .id = 0x0102, .key = "k", .value = "vw"});
  EXPECT_EQ(frame, std::string("\x14\0\0\0"                // length
                               "\x01"                      // set
                               "\x02\x01\0\0\0\0\0\0"      // id
                               "\x01\0\0\0k\x02\0\0\0vw",  // key, value
                               24));
}

TEST(StoreProtocol, EveryTruncationAndExtensionIsCorruptOrIncomplete) {
  for (const std::string& frame : all_requests()) {
    for (std::size_t length = 0; length < frame.size(); ++length)
      EXPECT_FALSE(first_frame(frame.substr(0, length)));
    const std::string body(*first_frame(frame));
    for (std::size_t length = 0; length < body.size(); ++length)
      EXPECT_EQ(fault_of([&] { decode_request(std::string_view(body).substr(0, length)); }),
                Fault::corrupt);
    EXPECT_EQ(fault_of([&] { decode_request(body + "x"); }), Fault::corrupt);
  }
}

TEST(StoreProtocol, LengthsBeyondTheLimitsAreCorruptBeforeTheirBytesAreThere) {
  for (const std::uint32_t length : {0u, 1u << 31, 0xffffffffu, std::uint32_t{max_frame_bytes} + 1})
    EXPECT_EQ(fault_of([&] { first_frame(ByteWriter(4).number(length).take()); }), Fault::corrupt);
  for (const std::uint32_t length : {1u << 31, 0xffffffffu, 4097u}) {
    const std::string body =
        ByteWriter(13).number(std::uint8_t{2}).number(std::uint64_t{1}).number(length).take();
    EXPECT_EQ(fault_of([&] { decode_request(body); }), Fault::corrupt);
  }
}

TEST(StoreService, AClientMayWaitFor1024KeysAndNoMore) {
  StoreService service;
  std::size_t delivered = 0;
  const auto count = [&](StoreService::Client, const StoreFrame&) { ++delivered; };
  for (std::uint64_t id = 0; id < StoreService::max_waits; ++id)
    service.handle(1, {.kind = Ask::wait, .id = id, .key = "k"}, count);
  const StoreRequest one_more{.kind = Ask::wait, .id = 5000, .key = "k"};
  EXPECT_EQ(fault_of([&] { service.handle(1, one_more, count); }), Fault::corrupt);
  service.handle(2, one_more, count);
  service.handle(1, {.kind = Ask::cancel, .id = 0}, count);
  service.handle(1, one_more, count);
  service.forget(2);
  EXPECT_EQ(delivered, 0u);
  service.handle(3, {.kind = Ask::set, .id = 1, .key = "k", .value = "v"}, count);
  EXPECT_EQ(delivered, 1 + StoreService::max_waits);
}

// Replies to all ranks have a table of all ranks.
TEST(StoreService, RepliesShareALongValue) {
  StoreService service;
  std::map<StoreService::Client, StoreFrame> replies;
  const auto keep = [&](StoreService::Client client, StoreFrame frame) {
    replies[client] = std::move(frame);
  };
  for (const std::size_t size : {std::size_t{0}, std::size_t{4095}, std::size_t{4096},
                                 std::size_t{Store::max_value_bytes}}) {
    const std::string key = std::to_string(size);
    const std::string value(size, 'v');
    for (StoreService::Client client = 1; client <= 3; ++client)
      service.handle(client, {.kind = Ask::wait, .id = client, .key = key}, keep);
    service.handle(0, {.kind = Ask::set, .key = key, .value = value}, keep);
    service.handle(4, {.kind = Ask::find, .id = 4, .key = key}, keep);
    service.handle(5, {.kind = Ask::wait, .id = 5, .key = key}, keep);
    for (StoreService::Client client = 1; client <= 5; ++client) {
      const StoreFrame& reply = replies.at(client);
      EXPECT_EQ(reply.text(),
                encode(StoreReply{.kind = StoreReply::Kind::value, .id = client, .bytes = value}));
      EXPECT_EQ(reply.size(), reply.text().size());
      EXPECT_EQ(reply.value, replies.at(1).value);
      EXPECT_EQ(reply.value != nullptr, size >= 4096);
    }
  }
}

TEST(StoreService, AnIdThatWaitsAlreadyIsCorrupt) {
  StoreService service;
  const auto ignore = [](StoreService::Client, const StoreFrame&) {};
  const StoreRequest wait{.kind = Ask::wait, .id = 7, .key = "k"};
  service.handle(1, wait, ignore);
  EXPECT_EQ(fault_of([&] { service.handle(1, wait, ignore); }), Fault::corrupt);
}

}  // namespace
}  // namespace lockstep::job::store_protocol_test

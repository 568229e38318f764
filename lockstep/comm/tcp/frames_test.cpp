// SPDX-License-Identifier: Apache-2.0
#include "lockstep/comm/tcp/frames.h"

#include <gtest/gtest.h>

#include "tests/fault_of.h"

namespace lockstep::comm::frames_test {
namespace {

using Kind = Frame::Kind;
using test::fault_of;

std::string encode(const Frame& frame) { return encode_head(frame) + std::string(frame.bytes); }

TEST(Frames, ComeOutAsTheyWentIn) {
  const std::string long_bytes(max_frame_bytes, 'x');
  for (const Frame& frame :
       {Frame{.kind = Kind::rank, .number = 7}, Frame{.kind = Kind::finished},
        Frame{.kind = Kind::failure, .bytes = "bytes"},
        Frame{.kind = Kind::entry, .group = ~std::uint64_t{0}, .number = 1, .bytes = "entry"},
        Frame{.kind = Kind::abort, .group = 1, .number = 5, .bytes = "why"},
        Frame{.kind = Kind::data, .group = 2, .number = 9, .bytes = long_bytes},
        Frame{.kind = Kind::read, .group = 3, .number = std::uint64_t{1} << 60},
        Frame{.kind = Kind::received, .group = 3, .number = 4},
        Frame{.kind = Kind::absent, .group = 3}, Frame{.kind = Kind::left, .group = 4}}) {
    const std::string bytes = encode(frame) + "rest";
    const auto parsed = parse_frame(bytes);
    ASSERT_TRUE(parsed);
    EXPECT_EQ(parsed->frame.kind, frame.kind);
    EXPECT_EQ(parsed->frame.group, frame.group);
    EXPECT_EQ(parsed->frame.number, frame.number);
    EXPECT_EQ(parsed->frame.bytes, frame.bytes);
    EXPECT_EQ(parsed->size, bytes.size() - 4);
  }
}

TEST(Frames, AreWaitedForUntilTheirLastByte) {
  const std::string bytes = encode({.kind = Kind::entry, .group = 1, .bytes = "entry"});
  for (std::size_t size = 0; size < bytes.size(); ++size)
    EXPECT_FALSE(parse_frame(bytes.substr(0, size))) << size;
  EXPECT_TRUE(parse_frame(bytes));
}

TEST(Frames, ThatNobodySendsAreCorrupt) {
  const auto rejects = [](std::string bytes) {
    return fault_of([&] { parse_frame(bytes); }) == Fault::corrupt;
  };
  EXPECT_TRUE(rejects(std::string("\xff\xff\xff\x7f", 4)));  // A length, before the frame is
                                                             // complete.
  EXPECT_TRUE(rejects(std::string("\x10\0\0\0", 4)));
  EXPECT_TRUE(rejects(std::string("\x12\0\1\0", 4)));  // One byte more than allowed.
  EXPECT_TRUE(rejects(encode({.kind = static_cast<Kind>(0)})));
  EXPECT_TRUE(rejects(encode({.kind = static_cast<Kind>(11)})));
  EXPECT_TRUE(rejects(encode({.kind = Kind::rank, .group = 1})));
  EXPECT_TRUE(rejects(encode({.kind = Kind::finished, .number = 1})));
  EXPECT_TRUE(rejects(encode({.kind = Kind::entry, .number = 2})));
  EXPECT_TRUE(rejects(encode({.kind = Kind::abort, .number = 9})));
  EXPECT_TRUE(rejects(encode({.kind = Kind::read, .bytes = "x"})));
  EXPECT_TRUE(rejects(encode({.kind = Kind::absent, .number = 1})));
  EXPECT_TRUE(rejects(encode({.kind = Kind::left, .bytes = "x"})));
}

TEST(Frames, CarryAllThatIsKnownOfAFailure) {
  const Failure all{.rank = 3,
                    .host = "node1",
                    .pid = 42,
                    .exit_code = -1,
                    .signal = 9,
                    .oom = true,
                    .operation = "recv",
                    .sequence = 812,
                    .peer = -1,
                    .group = "world",
                    .what = "text",
                    .connection = "how",
                    .detected_by = -1,
                    .left = true};
  const Failure got = decode_failure(encode_failure(all));
  EXPECT_EQ(describe(got), describe(all));
  EXPECT_EQ(got.exit_code, all.exit_code);
  EXPECT_EQ(got.signal, all.signal);
  EXPECT_EQ(got.oom, all.oom);
  EXPECT_EQ(got.sequence, all.sequence);
  EXPECT_EQ(got.peer, all.peer);
  EXPECT_EQ(got.what, all.what);
  EXPECT_EQ(got.connection, all.connection);
  EXPECT_EQ(got.detected_by, all.detected_by);
  EXPECT_EQ(got.left, all.left);

  const Failure little = decode_failure(encode_failure({.rank = 1, .oom = false}));
  EXPECT_FALSE(little.exit_code || little.signal || *little.oom || little.left || little.peer);
}

TEST(Frames, NoTextOfAFailureCanMoveTheCursor) {
  const std::string text = "a\x1b[2J\n\x9b\xC2\x9B";
  const Failure got = decode_failure(encode_failure(
      {.host = text, .operation = text, .group = text, .what = text, .connection = text}));
  for (const std::string& each : {got.host, got.operation, got.group, got.what, got.connection})
    EXPECT_EQ(each, "a [2J \xEF\xBF\xBD\xC2\xBF");
}

TEST(Frames, CarryTheResponsibleLivingRanks) {
  const Failure told{.rank = 1,
                     .pid = 42,
                     .what = "within 30 s; rank 0 waited",
                     .detected_by = 0,
                     .fault = Fault::timeout,
                     .ranks = {1, 3},
                     .call = "barrier #4 of group world"};
  const Failure got = decode_failure(encode_failure(told));
  EXPECT_EQ(got.fault, Fault::timeout);
  EXPECT_EQ(got.ranks, told.ranks);
  EXPECT_EQ(got.pid, 42);
  EXPECT_EQ(describe(got), describe(told));
  EXPECT_EQ(got.connection, "");
}

TEST(Frames, CutAFailuresTextsToWhatFits) {
  const std::string huge(1 << 20, 'x');
  const std::string bytes = encode_failure({.host = huge,
                                            .operation = huge,
                                            .group = huge,
                                            .what = huge,
                                            .connection = huge,
                                            .fault = Fault::timeout,
                                            .ranks = std::vector<int>(100'000, 7),
                                            .call = huge});
  EXPECT_LE(bytes.size(), max_frame_bytes);
  EXPECT_FALSE(decode_failure(bytes).what.empty());
  EXPECT_EQ(decode_failure(bytes).ranks.size(), most_blamed);
}

AbortReason decoded(const AbortReason& why) {
  const std::string bytes = encode_abort_reason(why);
  return decode_abort_reason(
      {.kind = Kind::abort, .number = static_cast<std::uint64_t>(why.fault), .bytes = bytes});
}

TEST(Frames, CarryWhyAGroupWasAborted) {
  const AbortReason told{.fault = Fault::mismatch,
                         .rank = 2,
                         .ranks = {1, 3},
                         .more = 5,
                         .call = "barrier #4 of group world on rank 2",
                         .reason = "rank 0 called barrier"};
  const AbortReason got = decoded(told);
  EXPECT_EQ(got.fault, told.fault);
  EXPECT_EQ(got.rank, told.rank);
  EXPECT_EQ(got.ranks, told.ranks);
  EXPECT_EQ(got.more, told.more);
  EXPECT_EQ(got.call, told.call);
  EXPECT_EQ(got.reason, told.reason);
  EXPECT_EQ(decoded({}).rank, -1);
}

TEST(Frames, CutTheReasonOfAnAbortToWhatFits) {
  const std::string huge(1 << 20, 'x');
  const AbortReason told{
      .ranks = std::vector<int>(100, 7), .more = 1, .call = huge, .reason = huge};
  EXPECT_LE(encode_abort_reason(told).size(), max_frame_bytes);
  EXPECT_EQ(decoded(told).ranks.size(), most_blamed);
  EXPECT_EQ(decoded(told).more, 37);
}

// The ranks come last: their count, and each.
TEST(Frames, AreCorruptIfTheyNameImpossibleRanks) {
  const std::string blames_one = encode_abort_reason({.ranks = {7}});
  const std::string failure = encode_failure({.fault = Fault::timeout, .ranks = {7}});
  const auto rejects = [](const std::string& bytes) {
    return fault_of([&] { decode_abort_reason({.bytes = bytes}); }) == Fault::corrupt;
  };
  for (const char* ranks : {"\xff\xff\xff\xff", "\0\0\0\x80"}) {
    const std::string last(ranks, 4);
    EXPECT_TRUE(rejects(blames_one.substr(0, blames_one.size() - 4) + last));
    EXPECT_EQ(fault_of([&] { decode_failure(failure.substr(0, failure.size() - 4) + last); }),
              Fault::corrupt);
  }
  const std::string none = encode_abort_reason({});
  const std::string many("\0\x94\x35\x77", 4);  // 2e9 ranks.
  EXPECT_TRUE(rejects(none.substr(0, none.size() - 4) + many));
  EXPECT_TRUE(rejects(none + "x"));
  EXPECT_TRUE(rejects(""));
}

}  // namespace
}  // namespace lockstep::comm::frames_test

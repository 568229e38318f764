// SPDX-License-Identifier: Apache-2.0
#include "lockstep/comm/values.h"

#include <gtest/gtest.h>

#include "lockstep/base/error.h"
#include "lockstep/comm/in_process.h"
#include "tests/fault_of.h"

namespace lockstep::comm::values_test {
namespace {

using test::fault_of;

std::string bytes_of(int rank) {
  std::string bytes(static_cast<std::size_t>(rank) * 300001, static_cast<char>('a' + rank));
  if (rank > 0) bytes[1] = '\0';
  return bytes;
}

std::vector<std::string> bytes_of_all(int size) {
  std::vector<std::string> all;
  for (int rank = 0; rank < size; ++rank) all.push_back(bytes_of(rank));
  return all;
}

TEST(Bytes, ArriveUnchangedForEveryLength) {
  for (const int ranks : {1, 2, 3})
    run_in_process(ranks, [](ProcessGroup& group) {
      const auto all = bytes_of_all(group.size());
      const std::string own = bytes_of(group.rank());
      EXPECT_EQ(all_gather_bytes(own, group), all);
      for (int root = 0; root < group.size(); ++root) {
        const bool is_root = group.rank() == root;
        EXPECT_EQ(broadcast_bytes(own, group, root), bytes_of(root));
        EXPECT_EQ(gather_bytes(own, group, root), is_root ? all : std::vector<std::string>{});
        EXPECT_EQ(scatter_bytes(is_root ? all : std::vector<std::string>{}, group, root), own);
      }
    });
}

TEST(Bytes, WithoutAnyAreStrings) {
  run_in_process(2, [](ProcessGroup& group) {
    EXPECT_EQ(broadcast_bytes("", group), "");
    EXPECT_EQ(all_gather_bytes({}, group), std::vector<std::string>(2));
  });
}

TEST(Bytes, BeyondTheLimitAreRefusedBeforeAnythingIsSent) {
  run_in_process(2, [](ProcessGroup& group) {
    // Never read: only its length counts.
    const std::string_view half("", byte_strings_limit / 2 + 1);
    const std::string_view whole("", byte_strings_limit + 1);
    EXPECT_EQ(fault_of([&] { all_gather_bytes(whole, group); }), Fault::misuse);
    EXPECT_EQ(fault_of([&] { all_gather_bytes(half, group); }), Fault::misuse);
    if (group.rank() == 0) {
      EXPECT_EQ(fault_of([&] { broadcast_bytes(whole, group); }), Fault::misuse);
    }
    EXPECT_EQ(all_gather_bytes("x", group), (std::vector<std::string>{"x", "x"}));
  });
}

TEST(Bytes, LengthsThatNoRankCanHaveSentAreCorrupt) {
  for (const std::int64_t length : {std::int64_t{-1}, std::int64_t{1} << 62})
    run_in_process(2, [&](ProcessGroup& group) {
      if (group.rank() == 1) {
        EXPECT_EQ(fault_of([&] { broadcast_bytes("", group); }), Fault::corrupt);
        return;
      }
      std::int64_t sent = length;
      group.broadcast({.data = &sent, .count = 1, .dtype = DType::int64}, 0);
    });
}

TEST(Bytes, NeedOneStringForEachRank) {
  run_in_process(2, [](ProcessGroup& group) {
    if (group.rank() == 0) {
      EXPECT_EQ(fault_of([&] { scatter_bytes({"one"}, group); }), Fault::misuse);
    }
    EXPECT_EQ(scatter_bytes({"zero", "one"}, group), group.rank() == 0 ? "zero" : "one");
  });
}

struct Score {
  std::int64_t samples;
  double loss;
  bool operator==(const Score&) const = default;
};

static_assert(PlainValue<Score> && PlainValue<bool> && PlainValue<Fault>);
static_assert(!PlainValue<const char*> && !PlainValue<std::string_view> &&
              !PlainValue<std::string>);

TEST(Values, ComeAsTheyWere) {
  for (const int ranks : {1, 2, 3})
    run_in_process(ranks, [](ProcessGroup& group) {
      const Score own{group.rank(), 0.5 * group.rank()};
      const auto all = all_gather_value(own, group);
      ASSERT_EQ(static_cast<int>(all.size()), group.size());
      for (int r = 0; r < group.size(); ++r)
        EXPECT_EQ(all[static_cast<std::size_t>(r)], (Score{r, 0.5 * r}));
      const int last = group.size() - 1;
      EXPECT_EQ(broadcast_value(own, group, last), (Score{last, 0.5 * last}));
      EXPECT_EQ(all_gather_value(group.rank() == 0, group)[0], true);
    });
}

TEST(Values, AreAMismatchIfTheirSizesDiffer) {
  const auto body = [](ProcessGroup& group) {
    group.rank() == 0 ? void(all_gather_value(1.0F, group)) : void(all_gather_value(1.0, group));
  };
  EXPECT_EQ(fault_of([&] { run_in_process(2, body); }), Fault::mismatch);
}

}  // namespace
}  // namespace lockstep::comm::values_test

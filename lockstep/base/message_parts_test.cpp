// SPDX-License-Identifier: Apache-2.0
#include "lockstep/base/message_parts.h"

#include <gtest/gtest.h>

namespace lockstep::message_parts_test {
namespace {

TEST(MessageParts, AreSplitAndKeepTheSourceLocation) {
  const MessageParts parts =
      parts_of("misuse: port 1 is in use; caused by process 7; to do: choose another [a/b.cpp:12]");
  EXPECT_EQ(parts.what, "misuse: port 1 is in use [a/b.cpp:12]");
  EXPECT_EQ(parts.who, "process 7");
  EXPECT_EQ(parts.to_do, "choose another");
}

TEST(MessageParts, AreOptional) {
  EXPECT_EQ(parts_of("no").what, "no");
  EXPECT_EQ(parts_of("no").who + parts_of("no").to_do, "");
  EXPECT_EQ(parts_of("no; to do: yes").to_do, "yes");
  EXPECT_EQ(parts_of("no; caused by it").who, "it");
}

TEST(MessageParts, KeepBracketsThatAreNoSourceLocation) {
  EXPECT_EQ(parts_of("no; to do: use list[0]").to_do, "use list[0]");
  EXPECT_EQ(parts_of("no; to do: use [a:b]").to_do, "use [a:b]");
  EXPECT_EQ(parts_of("no; to do: use [a:]").to_do, "use [a:]");
}

}  // namespace
}  // namespace lockstep::message_parts_test

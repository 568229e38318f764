// SPDX-License-Identifier: Apache-2.0
#include "lockstep/comm/shm/ownership.h"

#include <gtest/gtest.h>

#include <cstddef>
#include <vector>

namespace lockstep::ownership_test {
namespace {

constexpr std::byte untouched{0xee};

std::vector<std::byte> numbered(std::size_t size) {
  std::vector<std::byte> bytes(size);
  for (std::size_t i = 0; i < size; ++i) bytes[i] = static_cast<std::byte>(i * 7 + i / 251);
  return bytes;
}

TEST(Copies, ContainEveryByteOfThePagesAndNoOther) {
  constexpr std::size_t four_pages = 4 * 4096;
  for (const std::size_t size : {std::size_t{0}, std::size_t{1}, std::size_t{63}, std::size_t{4096},
                                 four_pages - 1, four_pages, four_pages + 1, 3 * four_pages + 777})
    for (const std::size_t to : {0, 1, 31, 64})
      for (const std::size_t from : {0, 5, 64}) {
        const std::vector<std::byte> source = numbered(from + size);
        std::vector<std::byte> target(to + size + 64, untouched);
        std::vector<std::byte> expected = target;
        copy_pages_past_caches(target.data() + to, source.data() + from, size);
        for (std::size_t i = 0; i < size; ++i) expected[to + i] = source[from + i];
        EXPECT_EQ(target, expected) << size << " bytes, " << from << " to " << to;
      }
}

}  // namespace
}  // namespace lockstep::ownership_test

// SPDX-License-Identifier: Apache-2.0
#include "lockstep/job/store/foreign_store.h"

#include <gtest/gtest.h>

#include "lockstep/base/error.h"
#include "lockstep/job/store/store.h"

namespace lockstep::job::foreign_store_test {
namespace {

class ForeignStore : public testing::Test {
 protected:
  void TearDown() override { register_foreign_store(nullptr); }
};

Fault fault_of(const std::string& address) {
  try {
    connect_foreign_store(address, "job/", in(std::chrono::seconds(1)));
  } catch (const Error& error) {
    return error.fault();
  }
  ADD_FAILURE() << address << " was connected to";
  return Fault::bug;
}

TEST_F(ForeignStore, IsUnsupportedAsLongAsNobodyHasRegisteredHow) {
  EXPECT_EQ(fault_of("node1:29400"), Fault::unsupported);
}

TEST_F(ForeignStore, IsOpenedByTheLastRegisteredFunction) {
  ForeignStoreAddress seen;
  register_foreign_store([](const auto&, Deadline) -> std::shared_ptr<Store> { return nullptr; });
  register_foreign_store([&](const ForeignStoreAddress& address, Deadline) {
    seen = address;
    return std::make_shared<InProcessStore>();
  });
  const auto store = connect_foreign_store("[fd00::1]:29400", "job/", no_deadline);
  ASSERT_NE(store, nullptr);
  EXPECT_EQ(seen.host, "fd00::1");
  EXPECT_EQ(seen.port, 29400);
  EXPECT_EQ(seen.prefix, "job/");
}

TEST_F(ForeignStore, AnAddressThatIsNoneIsRefusedBeforeAnybodyIsAsked) {
  register_foreign_store([](const auto&, Deadline) -> std::shared_ptr<Store> {
    ADD_FAILURE() << "was asked";
    return nullptr;
  });
  for (const char* wrong : {"", "node1", "node1:", "node1:0", ":29400"})
    EXPECT_EQ(fault_of(wrong), Fault::misuse) << wrong;
}

}  // namespace
}  // namespace lockstep::job::foreign_store_test

// SPDX-License-Identifier: Apache-2.0
#include "lockstep/job/network.h"

#include <gtest/gtest.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <functional>
#include <optional>
#include <string>
#include <thread>

#include "lockstep/base/error.h"
#include "lockstep/base/time.h"

namespace lockstep::job::network_test {
namespace {

bool has(const std::vector<NetworkInterface>& interfaces, const std::string& name,
         const std::string& address) {
  return std::any_of(interfaces.begin(), interfaces.end(), [&](const NetworkInterface& each) {
    return each.name == name && each.address == address;
  });
}

std::string refusal_of(std::string_view wanted, const std::string& master = {}) {
  try {
    const auto chosen = choose_interface(wanted, master);
    ADD_FAILURE() << wanted << " led to " << chosen.name;
  } catch (const Error& error) {
    EXPECT_EQ(error.fault(), Fault::misuse);
    return error.what();
  }
  return {};
}

void expect_in(const std::string& text, std::initializer_list<std::string_view> parts) {
  for (const std::string_view part : parts) EXPECT_NE(text.find(part), text.npos) << text;
}

// A network namespace for this test, with the default route through "other". Its interfaces: "data"
// at 10.7.0.1/16 and fd77::1/64, "other" at 10.8.0.1/24 and 10.8.0.2/24, "cut" at 10.9.0.1/24
// without a link, "bare" without an address. It ends with the thread that runs `body`.
class NetworkOfAHost : public testing::Test {
 protected:
  void SetUp() override {
    if (::geteuid() != 0) GTEST_SKIP() << "only root makes network namespaces";
    if (std::system("command -v ip >/dev/null") != 0) GTEST_SKIP() << "iproute2 is not installed";
  }

  static void in_it(const std::function<void()>& body) {
    bool is_ready = false;
    std::thread([&] {
      is_ready = ::unshare(CLONE_NEWNET) == 0 && std::system(set_up) == 0;
      if (!is_ready) return;
      await_links();
      body();
    }).join();
    ASSERT_TRUE(is_ready) << "no network namespace could be made";
  }

 private:
  // The kernel's own thread reports links as up or down, perhaps later.
  static void await_links() {
    const auto is_reported = [](const NetworkInterface& each) {
      return each.is_up == (each.name != "cut");
    };
    const Deadline deadline = in(std::chrono::seconds(20));
    while (!std::ranges::all_of(network_interfaces(), is_reported) && Clock::now() < deadline)
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }

  static constexpr const char* set_up =
      "set -e; ip link set lo up;"
      "for pair in 'data end1' 'other end2' 'bare end3'; do set -- $pair;"
      " ip link add $1 type veth peer name $2; ip link set $2 up; ip link set $1 up; done;"
      "ip link add cut type veth peer name end4; ip link set cut up;"
      "ip addr add 10.7.0.1/16 dev data; ip addr add fd77::1/64 dev data nodad;"
      "ip addr add 10.8.0.1/24 dev other; ip addr add 10.8.0.2/24 dev other;"
      "ip addr add 10.9.0.1/24 dev cut;"
      "ip route add default via 10.8.0.254";
};

TEST(Network, LoopbackIsListedAsSuch) {
  const auto interfaces = network_interfaces();
  const auto loopback = std::find_if(interfaces.begin(), interfaces.end(),
                                     [](const auto& each) { return each.address == "127.0.0.1"; });
  ASSERT_NE(loopback, interfaces.end());
  EXPECT_TRUE(loopback->is_up);
  EXPECT_TRUE(loopback->is_loopback);
}

TEST(Network, LocalhostIsReachedThroughLoopback) {
  EXPECT_TRUE(choose_interface("", "localhost").is_loopback);
  EXPECT_EQ(choose_interface("", "127.0.0.1").address, "127.0.0.1");
}

TEST(Network, AnUnknownMasterIsRefusedByName) {
  expect_in(refusal_of("", "no-such-host.invalid"), {"no-such-host.invalid"});
}

TEST(Network, RefusesAnInvalidNetwork) {
  for (const char* wrong : {"10.0.0.0/33", "10.0.0.0/", "eth0/8", "fd00::/129", "10.0.0.0/-1"})
    expect_in(refusal_of(wrong), {wrong, "is not a network"});
}

TEST_F(NetworkOfAHost, HasAllItsAddressesButLinkLocalOnes) {
  in_it([] {
    const auto interfaces = network_interfaces();
    EXPECT_TRUE(has(interfaces, "data", "10.7.0.1"));
    EXPECT_TRUE(has(interfaces, "data", "fd77::1"));
    EXPECT_TRUE(has(interfaces, "other", "10.8.0.1"));
    EXPECT_TRUE(has(interfaces, "other", "10.8.0.2"));
    for (const auto& each : interfaces) {
      EXPECT_FALSE(each.address.starts_with("fe80")) << each.name;
      EXPECT_EQ(each.is_up, each.name != "cut") << each.name;
    }
  });
}

TEST_F(NetworkOfAHost, NamesAddressesAndNetworksChoose) {
  struct Case {
    const char* wanted;
    const char* address;
  };
  in_it([] {
    for (const Case& each : {Case{"data", "10.7.0.1"},
                             {"other", "10.8.0.1"},
                             {"10.8.0.2", "10.8.0.2"},
                             {"fd77:0:0::1", "fd77::1"},
                             {"10.7.0.0/16", "10.7.0.1"},
                             {"10.0.0.0/13", "10.7.0.1"},
                             {"10.8.0.0/13", "10.8.0.1"},
                             {"fd00::/8", "fd77::1"},
                             {"127.0.0.0/8", "127.0.0.1"},
                             {"0.0.0.0/0", "127.0.0.1"},
                             {"lo", "127.0.0.1"}})
      EXPECT_EQ(choose_interface(each.wanted, "").address, each.address) << each.wanted;
  });
}

TEST_F(NetworkOfAHost, TheFirstOfSeveralThatIsThereAndUpCounts) {
  in_it([] {
    EXPECT_EQ(choose_interface("ib0,192.168.0.0/16,other,data", "").name, "other");
    EXPECT_EQ(choose_interface("cut,bare,10.9.0.0/24,data,other", "").name, "data");
  });
}

TEST_F(NetworkOfAHost, ARefusalListsAllInterfacesAndWhyRequestedOnesDoNotMatch) {
  in_it([] {
    const std::string text = refusal_of("ib0,cut,bare,192.168.0.0/16");
    expect_in(text, {"'ib0,cut,bare,192.168.0.0/16'", "cut is down", "bare is there, but has no",
                     "data 10.7.0.1", "data fd77::1", "other 10.8.0.1", "other 10.8.0.2",
                     "cut 10.9.0.1 (down)", "lo 127.0.0.1"});
    EXPECT_EQ(text.find("ib0 is"), text.npos) << text;
  });
}

TEST_F(NetworkOfAHost, TheRouteToTheMasterChooses) {
  in_it([] {
    EXPECT_EQ(choose_interface("", "10.7.3.4").address, "10.7.0.1");
    EXPECT_EQ(choose_interface("", "fd77::9").address, "fd77::1");
    EXPECT_EQ(choose_interface("", "10.8.0.77").name, "other");
    EXPECT_EQ(choose_interface("", "192.168.1.1").name, "other") << "by the default route";
  });
}

TEST_F(NetworkOfAHost, TheMasterItselfUsesTheAddressThatItIsKnownBy) {
  in_it([] {
    EXPECT_EQ(choose_interface("", "10.7.0.1").name, "data");
    EXPECT_EQ(choose_interface("", "10.8.0.2").address, "10.8.0.2");
    EXPECT_EQ(choose_interface("", "fd77::1").address, "fd77::1");
  });
}

TEST_F(NetworkOfAHost, WithoutAMasterTheDefaultRouteThenAnyThenLoopbackCounts) {
  in_it([] {
    EXPECT_EQ(choose_interface("", "").name, "other");
    ASSERT_EQ(std::system("ip route del default"), 0);
    EXPECT_EQ(choose_interface("", "").name, "data");
    ASSERT_EQ(std::system("ip link set data down; ip link set other down"), 0);
    EXPECT_EQ(choose_interface("", "").name, "lo");
    ASSERT_EQ(std::system("ip link set lo down"), 0);
    expect_in(refusal_of(""), {"lo 127.0.0.1 (down)", "data 10.7.0.1 (down)"});
  });
}

}  // namespace
}  // namespace lockstep::job::network_test

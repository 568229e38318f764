// Compares every store with a plain map.

// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <array>
#include <functional>
#include <future>
#include <map>
#include <memory>
#include <random>
#include <thread>
#include <vector>

#include "lockstep/job/store/store.h"
#include "lockstep/job/store/tcp_store.h"
#include "tests/fault_of.h"
#include "tests/ranks.h"

namespace lockstep::job::store_conformance_test {
namespace {

using std::chrono::milliseconds;
using test::fault_of;

constexpr int client_count = 4;

// Each of these rigs creates stores that share one map.
class InProcess {
 public:
  std::unique_ptr<Store> open(int) { return std::make_unique<PrefixStore>(shared_, ""); }

 private:
  InProcessStore shared_;
};

class File {
 public:
  std::unique_ptr<Store> open(int) {
    return std::make_unique<FileStore>(FileStoreOptions{.path = scratch_.path() / "store"});
  }

 private:
  test::ScratchDirectory scratch_;
};

class Tcp {
 public:
  std::unique_ptr<Store> open(int client) {
    return std::make_unique<TcpStore>(
        TcpStoreOptions{.port = server_.port(), .member = {"job", client, client_count}});
  }

 private:
  TcpStoreServer server_{{.job = {.job_id = "job", .world_size = client_count}}};
};

template <class Shared>
class StoreConformance : public testing::Test {
 protected:
  StoreConformance() {
    for (int client = 0; client < client_count; ++client) clients_.push_back(shared_.open(client));
  }
  Store& store(int client = 0) { return *clients_[static_cast<std::size_t>(client)]; }

  void all_clients(const std::function<void(int client, Store& store)>& body) {
    std::vector<std::future<void>> threads;
    for (int client = 0; client < client_count; ++client)
      threads.push_back(
          std::async(std::launch::async, [&, client] { body(client, store(client)); }));
    for (auto& thread : threads) thread.get();
  }

  Shared shared_;
  std::vector<std::unique_ptr<Store>> clients_;
};

using Stores = testing::Types<InProcess, File, Tcp>;
TYPED_TEST_SUITE(StoreConformance, Stores);

// An independent implementation of the same semantics.
struct Model {
  std::map<std::string, std::string> values;

  std::optional<std::string> find(const std::string& key) const {
    const auto found = values.find(key);
    return found == values.end() ? std::nullopt : std::optional(found->second);
  }
  std::string compare_set(const std::string& key, const std::string& expected,
                          const std::string& desired) {
    const auto present = find(key);
    if (!present && !expected.empty()) return expected;
    if (present && *present != expected) return *present;
    return values[key] = desired;
  }
};

std::string random_bytes(std::mt19937& random, std::size_t most) {
  std::string bytes(random() % (most + 1), '\0');
  for (char& c : bytes) c = static_cast<char>(random());
  return bytes;
}

TYPED_TEST(StoreConformance, TenThousandRandomOperationsAgreeWithAMap) {
  std::mt19937 random(20240607);
  Model model;
  std::vector<std::string> keys{"", "a", "b", std::string("nul\0nul", 7), "\xff\xfe", "n1", "n2"};
  for (int step = 0; step < 10'000; ++step) {
    Store& store = this->store(static_cast<int>(random() % client_count));
    const std::string& key = keys[random() % keys.size()];
    const bool number = key.starts_with("n1") || key.starts_with("n2");
    switch (random() % 6) {
      case 0: {
        const std::string value =
            number ? std::to_string(static_cast<int>(random())) : random_bytes(random, 300);
        store.set(key, value);
        model.values[key] = value;
        break;
      }
      case 1:
        ASSERT_EQ(store.find(key), model.find(key)) << step;
        break;
      case 2:
        if (model.find(key)) {
          ASSERT_EQ(store.wait(key, in(std::chrono::seconds(60))), model.find(key)) << step;
        }
        break;
      case 3:
        if (number) {
          const auto amount = static_cast<std::int64_t>(random()) - (std::int64_t{1} << 31);
          const std::int64_t sum = std::stoll(model.find(key).value_or("0")) + amount;
          ASSERT_EQ(store.add(key, amount), sum) << step;
          model.values[key] = std::to_string(sum);
        }
        break;
      case 4: {
        const std::string expected = random() % 2 ? model.find(key).value_or("") : "other";
        const std::string desired = number ? "7" : random_bytes(random, 30);
        ASSERT_EQ(store.compare_set(key, expected, desired),
                  model.compare_set(key, expected, desired))
            << step;
        break;
      }
      case 5:
        ASSERT_EQ(store.erase(key), model.values.erase(key) == 1) << step;
        break;
    }
  }
  for (const std::string& key : keys) EXPECT_EQ(this->store().find(key), model.find(key));
}

TYPED_TEST(StoreConformance, AdditionsOfAllClientsCount) {
  constexpr int each = 250;
  this->all_clients([](int, Store& store) {
    for (int i = 0; i < each; ++i) store.add("sum", 1);
  });
  EXPECT_EQ(this->store().find("sum"), std::to_string(each * client_count));
}

TYPED_TEST(StoreConformance, OneOfAllClientsWinsAComparison) {
  std::array<std::string, client_count> seen;
  this->all_clients([&](int client, Store& store) {
    seen[static_cast<std::size_t>(client)] =
        store.compare_set("leader", "", std::to_string(client));
  });
  for (const std::string& leader : seen) EXPECT_EQ(leader, this->store().find("leader"));
}

TYPED_TEST(StoreConformance, ThreadsMayShareOneClient) {
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([&, t] {
      const std::string mine = "thread" + std::to_string(t);
      for (int i = 0; i < 100; ++i) {
        this->store().set(mine, std::to_string(i));
        EXPECT_EQ(this->store().find(mine), std::to_string(i));
      }
      this->store().wait("thread" + std::to_string((t + 1) % 4), in(std::chrono::seconds(60)));
    });
  for (auto& thread : threads) thread.join();
}

TYPED_TEST(StoreConformance, WaitReturnsWhatAnotherClientSetsLater) {
  this->all_clients([](int client, Store& store) {
    if (client == 0) {
      std::this_thread::sleep_for(milliseconds(50));
      store.set("late", "value");
    } else {
      EXPECT_EQ(store.wait("late", in(std::chrono::seconds(60))), "value");
    }
  });
}

TYPED_TEST(StoreConformance, AWaitThatTimesOutNamesTheKeyAndTakesAsLongAsItWasTold) {
  const auto start = Clock::now();
  std::string text;
  EXPECT_EQ(fault_of([&] { this->store().wait("never\n", in(milliseconds(250))); }, &text),
            Fault::timeout);
  EXPECT_GE(seconds_since(start), 0.24);
  EXPECT_LT(seconds_since(start), 10.0);
  EXPECT_NE(text.find("'never\\x0a'"), text.npos) << text;
  this->store().set("never\n", "now");  // A wait that timed out has no effect.
  EXPECT_EQ(this->store().wait("never\n", in(milliseconds(0))), "now");
}

TYPED_TEST(StoreConformance, KeysAndValuesThatAreTooLongAreMisuse) {
  const std::string long_key(Store::max_key_bytes + 1, 'k');
  const std::string long_value(Store::max_value_bytes + 1, 'v');
  Store& store = this->store();
  EXPECT_EQ(fault_of([&] { store.set(long_key, ""); }), Fault::misuse);
  EXPECT_EQ(fault_of([&] { store.find(long_key); }), Fault::misuse);
  EXPECT_EQ(fault_of([&] { store.wait(long_key, in(milliseconds(0))); }), Fault::misuse);
  EXPECT_EQ(fault_of([&] { store.add(long_key, 1); }), Fault::misuse);
  EXPECT_EQ(fault_of([&] { store.erase(long_key); }), Fault::misuse);
  EXPECT_EQ(fault_of([&] { store.set("k", long_value); }), Fault::misuse);
  EXPECT_EQ(fault_of([&] { store.compare_set("k", "", long_value); }), Fault::misuse);
  EXPECT_EQ(store.find("k"), std::nullopt);
}

TYPED_TEST(StoreConformance, TheLongestKeyAndValueFit) {
  const std::string key(Store::max_key_bytes, '\xff');
  const std::string value(Store::max_value_bytes, '\x01');
  this->store(0).set(key, value);
  EXPECT_TRUE(this->store(1).wait(key, in(std::chrono::seconds(60))) == value);
  EXPECT_TRUE(this->store(2).compare_set(key, value, value) == value);
}

TYPED_TEST(StoreConformance, AFullStoreSaysSoAndGoesOn) {
  Store& store = this->store();
  const std::string value(Store::max_value_bytes, 'v');
  const std::size_t fit = Store::max_bytes / (Store::max_value_bytes + 8);
  for (std::size_t i = 0; i < fit; ++i) store.set("full" + std::to_string(1000 + i), value);
  std::string text;
  EXPECT_EQ(fault_of([&] { store.set("more", value); }, &text), Fault::system);
  EXPECT_NE(text.find("no room for key 'more'"), text.npos) << text;
  EXPECT_TRUE(store.erase("full1000"));
  store.set("more", value);
}

TYPED_TEST(StoreConformance, AddingToWhatIsNoNumberIsMisuseAndChangesNothing) {
  Store& store = this->store();
  for (const std::string value : {"", "x", "1x", " 1", "99999999999999999999"}) {
    store.set("text", value);
    EXPECT_EQ(fault_of([&] { store.add("text", 1); }), Fault::misuse) << value;
    EXPECT_EQ(store.find("text"), value);
  }
  store.set("most", "9223372036854775807");
  EXPECT_EQ(fault_of([&] { store.add("most", 1); }), Fault::misuse);
  EXPECT_EQ(store.add("most", -1), 9223372036854775806);
}

TYPED_TEST(StoreConformance, AnAbsentKeyEqualsAnEmptyExpectation) {
  Store& store = this->store();
  EXPECT_EQ(store.compare_set("k", "x", "y"), "x");
  EXPECT_EQ(store.find("k"), std::nullopt);
  EXPECT_EQ(store.compare_set("k", "", "y"), "y");
  EXPECT_EQ(store.compare_set("k", "", "z"), "y");
  EXPECT_EQ(store.compare_set("k", "y", "z"), "z");
}

TYPED_TEST(StoreConformance, PrefixesKeepTwoUsersApart) {
  PrefixStore one(this->store(0), "one/");
  PrefixStore two(this->store(1), "two/");
  one.set("k", "1");
  EXPECT_EQ(two.find("k"), std::nullopt);
  EXPECT_EQ(two.add("k", 2), 2);
  EXPECT_EQ(one.find("k"), "1");
  EXPECT_EQ(this->store(2).find("one/k"), "1");
  EXPECT_TRUE(two.erase("k"));
  EXPECT_EQ(one.wait("k", in(std::chrono::seconds(60))), "1");
}

}  // namespace
}  // namespace lockstep::job::store_conformance_test

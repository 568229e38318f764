// Without a GPU the plugin must report that; with one, every collective runs on GPU memory.

// SPDX-License-Identifier: Apache-2.0
#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <gtest/gtest.h>

#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/comm/core/buffer.h"
#include "lockstep/comm/engine/device_backend.h"
#include "lockstep/comm/engine/engine_abi.h"
#include "lockstep/comm/reduce/reduce.h"
#include "tests/rigs/engine_call.h"

namespace lockstep::comm::nccl_test {
namespace {

using Values = std::vector<float>;

const lockstep_engine& engine() {
  static const lockstep_engine* const opened = [] {
    void* const library = ::dlopen(LOCKSTEP_NCCL_PLUGIN, RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) throw std::runtime_error(::dlerror());
    const auto entry =
        reinterpret_cast<lockstep_engine_v1_function>(::dlsym(library, "lockstep_engine_v1"));
    if (entry == nullptr) throw std::runtime_error(::dlerror());
    return entry();
  }();
  return *opened;
}

int devices() {
  int count = 0;
  return cudaGetDeviceCount(&count) == cudaSuccess ? count : 0;
}

class FakeStore {
 public:
  lockstep_engine_store abi() { return {this, &set, &wait}; }

 private:
  static int set(void* self, const char* key, const void* value, std::size_t bytes,
                 lockstep_engine_error*) {
    auto& store = *static_cast<FakeStore*>(self);
    const std::lock_guard lock(store.mutex_);
    store.values_[key] = std::string(static_cast<const char*>(value), bytes);
    store.changed_.notify_all();
    return 0;
  }
  static int wait(void* self, const char* key, void* value, std::size_t capacity,
                  std::size_t* bytes, lockstep_engine_error*) {
    auto& store = *static_cast<FakeStore*>(self);
    std::unique_lock lock(store.mutex_);
    store.changed_.wait(lock, [&] { return store.values_.contains(key); });
    *bytes = store.values_[key].size();
    store.values_[key].copy(static_cast<char*>(value), capacity);
    return 0;
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::string, std::string> values_;
};

lockstep_engine_config config_of(int rank, const std::vector<int>& ranks, FakeStore& store) {
  const auto size = static_cast<int>(ranks.size());
  return {.struct_bytes = sizeof(lockstep_engine_config),
          .rank = rank,
          .size = size,
          .world_ranks = ranks.data(),
          .world_size = size,
          .name = "test",
          .local_rank = rank,
          .local_size = size,
          .interface_name = "",
          .address = "",
          .device_index = 0,
          .timeout_ms = 60'000,
          .call_timeout_ms = 60'000,
          .store = store.abi(),
          .world = nullptr};
}

class DeviceValues {
 public:
  explicit DeviceValues(const Values& values) : count_(values.size()) {
    EXPECT_EQ(cudaMalloc(&data_, count_ * sizeof(float)), cudaSuccess);
    EXPECT_EQ(cudaMemcpy(data_, values.data(), count_ * sizeof(float), cudaMemcpyHostToDevice),
              cudaSuccess);
  }
  ~DeviceValues() { cudaFree(data_); }
  DeviceValues(const DeviceValues&) = delete;
  DeviceValues& operator=(const DeviceValues&) = delete;

  lockstep_buffer buffer() const {
    return {.data = data_,
            .count = count_,
            .dtype = static_cast<std::uint8_t>(DType::float32),
            .device = 1,
            .device_index = 0,
            .stream = nullptr};
  }
  Values read() const {  // Runs on the collectives' stream, so after them.
    Values values(count_);
    EXPECT_EQ(cudaMemcpy(values.data(), data_, count_ * sizeof(float), cudaMemcpyDeviceToHost),
              cudaSuccess);
    return values;
  }

 private:
  void* data_ = nullptr;
  std::size_t count_;
};

struct Destroy {
  void operator()(void* communicator) const { engine().destroy(communicator); }
};

TEST(Nccl, ReportsWhetherItCanRunHere) {
  char text[256] = "untouched";
  lockstep_engine_error error{};
  const int failed = engine().probe(text, sizeof text, &error);
  if (devices() > 0) {
    EXPECT_EQ(failed, 0) << error.text;
    EXPECT_EQ(std::string(text).find("NCCL 2."), 0U) << text;
    return;
  }
  EXPECT_NE(failed, 0);
  EXPECT_EQ(error.fault, static_cast<int>(Fault::unsupported));
  const std::string why = error.text;
  const bool names_it = why.find("no NVIDIA driver") != std::string::npos ||
                        why.find("serves CUDA") != std::string::npos ||
                        why.find("no CUDA device") != std::string::npos;
  EXPECT_TRUE(names_it) << why;
  EXPECT_STREQ(text, "untouched");
}

TEST(Nccl, ServesCudaMemoryAlone) {
  EXPECT_EQ(engine().abi, static_cast<std::uint32_t>(LOCKSTEP_ENGINE_ABI));
  EXPECT_STREQ(engine().name, "nccl");
  EXPECT_EQ(engine().devices, 2U);
}

TEST(Nccl, MakesNoCommunicatorWithoutADevice) {
  if (devices() > 0) GTEST_SKIP() << "there is a CUDA device here";
  FakeStore store;
  const std::vector<int> ranks = {0};
  const auto config = config_of(0, ranks, store);
  void* communicator = nullptr;
  lockstep_engine_error error{};
  EXPECT_NE(engine().create(&config, &communicator, &error), 0);
  EXPECT_EQ(error.fault, static_cast<int>(Fault::unsupported)) << error.text;
}

TEST(Nccl, SupportsAllButWhatIsListed) {
  for (const Operation operation :
       {Operation::all_reduce, Operation::broadcast, Operation::reduce, Operation::all_gather,
        Operation::reduce_scatter, Operation::all_to_all})
    for (int dtype = 0; dtype < dtype_count; ++dtype)
      for (int op = 0; op < reduce_op_count; ++op) {
        const auto type = static_cast<DType>(dtype);
        const auto reduce = static_cast<ReduceOp>(op);
        if (reduces(operation) && reduce_function(type, reduce) == nullptr) continue;
        EXPECT_EQ(
            engine().supports(static_cast<std::uint8_t>(operation),
                              static_cast<std::uint8_t>(dtype), static_cast<std::uint8_t>(op)) != 0,
            cuda_unsupported(operation, type, reduce).empty())
            << name(operation) << ' ' << name(type) << ' ' << name(reduce);
      }
}

TEST(Nccl, DoesEveryCollectiveAlone) {
  if (devices() == 0) GTEST_SKIP() << "no CUDA device here";
  FakeStore store;
  const std::vector<int> ranks = {0};
  const auto config = config_of(0, ranks, store);
  void* made = nullptr;
  lockstep_engine_error error{};
  ASSERT_EQ(engine().create(&config, &made, &error), 0) << error.text;
  const std::unique_ptr<void, Destroy> communicator(made);
  const Values values = {1, 2, 3};
  const std::size_t counts[] = {3};
  const DeviceValues input(values);
  const DeviceValues output({0, 0, 0});
  const lockstep_buffer in = input.buffer();
  const lockstep_buffer out = output.buffer();
  const auto average = static_cast<std::uint8_t>(ReduceOp::average);

  const auto expect_done = [&](Operation operation, const test::EngineCall& call) {
    EXPECT_EQ(test::run(engine(), made, operation, call, &error), 0) << error.text;
  };
  expect_done(Operation::all_reduce, {.output = in});
  expect_done(Operation::all_reduce, {.output = in, .reduce_op = average});
  expect_done(Operation::broadcast, {.output = in});
  expect_done(Operation::reduce, {.output = in});
  EXPECT_EQ(input.read(), values);
  const auto expect_moved = [&] {
    EXPECT_EQ(output.read(), values);
    cudaMemset(out.data, 0, values.size() * sizeof(float));
  };
  expect_done(Operation::all_gather, {.input = in, .output = out, .receive_counts = counts});
  expect_moved();
  expect_done(Operation::reduce_scatter, {.input = in, .output = out, .send_counts = counts});
  expect_moved();
  expect_done(Operation::all_to_all,
              {.input = in, .output = out, .send_counts = counts, .receive_counts = counts});
  expect_moved();
}

TEST(Nccl, DoesNothingAfterACancel) {
  if (devices() == 0) GTEST_SKIP() << "no CUDA device here";
  FakeStore store;
  const std::vector<int> ranks = {0};
  const auto config = config_of(0, ranks, store);
  void* made = nullptr;
  lockstep_engine_error error{};
  ASSERT_EQ(engine().create(&config, &made, &error), 0) << error.text;
  const std::unique_ptr<void, Destroy> communicator(made);
  engine().cancel(made);
  const DeviceValues values({1, 2});
  const lockstep_buffer data = values.buffer();
  EXPECT_NE(test::run(engine(), made, Operation::all_reduce, {.output = data}, &error), 0);
  EXPECT_EQ(error.fault, static_cast<int>(Fault::aborted)) << error.text;
}

TEST(Nccl, RefusesTwoRanksOnOneDevice) {
  if (devices() == 0) GTEST_SKIP() << "no CUDA device here";
  FakeStore store;
  const std::vector<int> ranks = {0, 1};
  std::vector<std::jthread> threads;
  for (int rank = 0; rank < 2; ++rank)
    threads.emplace_back([&, rank] {
      const auto config = config_of(rank, ranks, store);
      void* made = nullptr;
      lockstep_engine_error error{};
      EXPECT_NE(engine().create(&config, &made, &error), 0);
      EXPECT_EQ(error.fault, static_cast<int>(Fault::misuse)) << error.text;
      EXPECT_NE(std::string(error.text).find("ranks 0 and 1 of group test are both on"),
                std::string::npos)
          << error.text;
    });
}

}  // namespace
}  // namespace lockstep::comm::nccl_test

// Ranks are threads. The device is a stand-in: its memory is the host's, and its communicator
// copies and adds there.

// SPDX-License-Identifier: Apache-2.0
#include "lockstep/comm/engine/device_backend.h"

#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <numeric>
#include <set>
#include <string>
#include <vector>

#include "lockstep/comm/reduce/reduce.h"
#include "tests/fault_of.h"
#include "tests/stand_in_engine.h"

namespace lockstep::comm::device_backend_test {
namespace {

using namespace std::chrono_literals;
using test::fault_of;

using Devices = test::StandInDevices;
using test::run_on;
using Values = std::vector<float>;

Buffer on_cuda(Values& values, int index = 0) {
  Buffer buffer = buffer_of(values);
  buffer.device = DeviceKind::cuda;
  buffer.device_index = index;
  return buffer;
}

Values values_of(int rank, std::size_t count) {
  Values values(count);
  std::iota(values.begin(), values.end(), 100.F * static_cast<float>(rank));
  return values;
}

TEST(DeviceBackend, DoesEveryCollectiveOnTheDevice) {
  Devices devices;
  run_on(2, devices, [](ProcessGroup& group) {
    const int rank = group.rank();
    Values values = values_of(rank, 3);
    group.all_reduce(on_cuda(values));
    EXPECT_EQ(values, (Values{100, 102, 104}));

    values = values_of(rank, 3);
    group.broadcast(on_cuda(values), 1);
    EXPECT_EQ(values, (Values{100, 101, 102}));

    values = values_of(rank, 2);
    group.reduce(on_cuda(values), 1);
    EXPECT_EQ(values, rank == 1 ? (Values{100, 102}) : (Values{0, 1}));

    values = values_of(rank, rank == 0 ? 1 : 2);
    Values all(3);
    group.all_gather(on_cuda(values), on_cuda(all), {1, 2});
    EXPECT_EQ(all, (Values{0, 100, 101}));

    values = values_of(rank, 3);
    Values part(rank == 0 ? 1 : 2);
    group.reduce_scatter(on_cuda(values), on_cuda(part), ReduceOp::sum, {1, 2});
    EXPECT_EQ(part, rank == 0 ? (Values{100}) : (Values{102, 104}));

    values = values_of(rank, 2);
    Values gathered(rank == 1 ? 4 : 0);
    group.gather(on_cuda(values), rank == 1 ? on_cuda(gathered) : Buffer{}, 1);
    EXPECT_EQ(gathered, rank == 1 ? (Values{0, 1, 100, 101}) : Values{});

    values = values_of(rank, 3);
    part.assign(rank == 0 ? 1 : 2, 0);
    group.scatter(rank == 0 ? on_cuda(values) : Buffer{}, on_cuda(part), 0, {1, 2});
    EXPECT_EQ(part, rank == 0 ? (Values{0}) : (Values{1, 2}));

    values = values_of(rank, 2);
    Values exchanged(2);
    group.all_to_all(on_cuda(values), on_cuda(exchanged));
    EXPECT_EQ(exchanged, rank == 0 ? (Values{0, 100}) : (Values{1, 101}));

    values = values_of(rank, 3);  // Rank 0 sends 1 and 2, rank 1 sends 3 and nothing.
    exchanged.assign(rank == 0 ? 4 : 2, 0);
    group.all_to_all(on_cuda(values), on_cuda(exchanged), rank == 0 ? Counts{1, 2} : Counts{3, 0},
                     rank == 0 ? Counts{1, 3} : Counts{2, 0});
    EXPECT_EQ(exchanged, rank == 0 ? (Values{0, 100, 101, 102}) : (Values{1, 2}));
    destroy_process_group(group);
  });
  EXPECT_EQ(devices.calls, (std::vector<std::string>{"all_reduce", "broadcast", "reduce",
                                                     "all_gather", "reduce_scatter", "all_to_all",
                                                     "all_to_all", "all_to_all", "all_to_all"}));
  EXPECT_EQ(devices.made, 2) << "one communicator for each rank";
  EXPECT_EQ(devices.cancelled, 0) << "an orderly end cancels nothing";
}

TEST(DeviceBackend, LeavesCpuMemoryToTheOther) {
  Devices devices;
  devices.why_not = "no engine here";
  run_on(2, devices, [](ProcessGroup& group) {
    Values values(2000, 1);
    group.all_reduce(buffer_of(values));
    EXPECT_EQ(values, Values(2000, 2));
    Values all(4);
    Values mine(2, static_cast<float>(group.rank()));
    group.all_gather(buffer_of(mine), buffer_of(all));
    EXPECT_EQ(all, (Values{0, 0, 1, 1}));
    EXPECT_NE(group.allocate(64).data(), nullptr);
    destroy_process_group(group);
  });
  EXPECT_EQ(devices.made, 0);
}

TEST(DeviceBackend, KeepsTheOrderOfBothKindsOfMemory) {
  Devices devices;
  run_on(3, devices, [](ProcessGroup& group) {
    Values here(5, 1);
    Values there(5, 1);
    std::vector<Work> works;
    for (int i = 0; i < 10; ++i) {
      works.push_back(group.all_reduce_async(buffer_of(here)));
      works.push_back(group.all_reduce_async(on_cuda(there)));
    }
    for (const Work& work : works) work.wait();
    EXPECT_EQ(here, Values(5, 59049));
    EXPECT_EQ(there, here);
    destroy_process_group(group);
  });
}

TEST(DeviceBackend, MakesACommunicatorForEachGroupThatUsesOne) {
  Devices devices;
  run_on(3, devices, [](ProcessGroup& group) {
    auto pair = group.split(group.rank() == 1 ? 1 : 0);
    Values values(2, 1);
    pair.all_reduce(on_cuda(values, group.rank()));
    EXPECT_EQ(values, Values(2, group.rank() == 1 ? 1 : 2));
    destroy_process_group(group);
  });
  EXPECT_EQ(devices.made, 3);
  EXPECT_EQ(devices.wires.size(), 2U);
  EXPECT_EQ(devices.indices, (std::set<int>{0, 1, 2}));
}

TEST(DeviceBackend, RefusesWhatItCannotDoWithoutBreakingTheGroup) {
  Devices devices;
  run_on(2, devices, [](ProcessGroup& group) {
    std::vector<std::int64_t> memory(4);
    for (int type = 0; type < dtype_count; ++type)
      for (int op = 0; op < reduce_op_count; ++op) {
        const auto dtype = static_cast<DType>(type);
        const auto reduce = static_cast<ReduceOp>(op);
        if (reduce_function(dtype, reduce) == nullptr) continue;
        const bool is_bitwise =
            reduce == ReduceOp::band || reduce == ReduceOp::bor || reduce == ReduceOp::bxor;
        const bool is_16_bits = dtype == DType::int16 || dtype == DType::uint16;
        EXPECT_EQ(cuda_unsupported(Operation::all_reduce, dtype, reduce).empty(),
                  !is_bitwise && !is_16_bits);
        if (!is_bitwise && !is_16_bits) continue;
        const Buffer data{
            .data = memory.data(), .count = 1, .dtype = dtype, .device = DeviceKind::cuda};
        EXPECT_EQ(fault_of([&] { group.all_reduce(data, reduce); }), Fault::unsupported);
        EXPECT_EQ(fault_of([&] { group.reduce_async(data, 0, reduce); }), Fault::unsupported);
      }
    Values values(2, 1);
    EXPECT_EQ(fault_of([&] { group.send(on_cuda(values), 1 - group.rank()); }), Fault::unsupported);
    EXPECT_EQ(fault_of([&] { group.recv(on_cuda(values)); }), Fault::unsupported);
    EXPECT_EQ(fault_of([&] { group.all_gather(on_cuda(values), buffer_of(values)); }),
              Fault::misuse);  // It has 2 elements, not 4.
    Values all(4);
    EXPECT_EQ(fault_of([&] { group.all_gather(on_cuda(values), buffer_of(all)); }), Fault::misuse);
    EXPECT_EQ(fault_of([&] { group.all_gather(on_cuda(values, 0), on_cuda(all, 1)); }),
              Fault::misuse);
    group.all_reduce(on_cuda(values));
    EXPECT_EQ(values, Values(2, 2));
    std::string text;
    EXPECT_EQ(fault_of([&] { group.all_reduce(on_cuda(values, 1)); }, &text), Fault::unsupported);
    EXPECT_NE(text.find("uses CUDA device 0 in group world"), std::string::npos) << text;
    group.barrier();
    destroy_process_group(group);
  });
}

TEST(DeviceBackend, RefusesAReductionThatTheEngineLacksWithoutBreakingTheGroup) {
  Devices devices;
  devices.lacks.insert(Operation::reduce_scatter);
  run_on(2, devices, [](ProcessGroup& group) {
    Values values(2, 1);
    Values part(1);
    std::string text;
    EXPECT_EQ(fault_of([&] { group.reduce_scatter(on_cuda(values), on_cuda(part)); }, &text),
              Fault::unsupported);
    EXPECT_NE(text.find("reduce_scatter: the engine for CUDA memory has no sum of float32"),
              std::string::npos)
        << text;
    group.all_reduce(on_cuda(values, 1));  // The refused call chose no device.
    EXPECT_EQ(values, Values(2, 2));
    destroy_process_group(group);
  });
}

TEST(DeviceBackend, ReportsWhyThereIsNoEngine) {
  Devices devices;
  devices.why_not = "there is no NVIDIA driver here";
  run_on(2, devices, [](ProcessGroup& group) {
    Values values(2, 1);
    std::string text;
    EXPECT_EQ(fault_of([&] { group.all_reduce(on_cuda(values)); }, &text), Fault::unsupported);
    EXPECT_NE(text.find("all_reduce: there is no NVIDIA driver here"), std::string::npos) << text;
    destroy_process_group(group);
  });
}

TEST(DeviceBackend, ReportsAMismatchBetweenCudaAndCpuMemory) {
  for (const std::size_t count : {1, 100'000}) {
    Devices devices;
    run_on(3, devices, [count](ProcessGroup& group) {
      Values values(count, 3);
      std::string text;
      EXPECT_EQ(
          fault_of(
              [&] { group.all_reduce(group.rank() == 1 ? on_cuda(values) : buffer_of(values)); },
              &text),
          Fault::mismatch);
      const std::string call = "called all_reduce(sum) of " + std::to_string(count) + " float32";
      EXPECT_NE(text.find("rank 0 " + call + ","), std::string::npos) << text;
      EXPECT_NE(text.find("rank 1 " + call + " on CUDA"), std::string::npos) << text;
      EXPECT_EQ(values, Values(count, 3)) << "memory was touched";
    });
    EXPECT_EQ(devices.made, 0);
  }
}

TEST(DeviceBackend, NamesWhatRanksCallOnTheDevice) {
  const auto mismatch = [](const std::function<void(ProcessGroup&, Values&)>& call,
                           const std::string& expected) {
    Devices devices;
    run_on(2, devices, [&](ProcessGroup& group) {
      Values values(4, 3);
      std::string text;
      EXPECT_EQ(fault_of([&] { call(group, values); }, &text), Fault::mismatch);
      EXPECT_NE(text.find(expected), std::string::npos) << text;
      EXPECT_EQ(values, Values(4, 3)) << "memory was touched";
    });
  };
  mismatch(
      [](ProcessGroup& group, Values& values) {
        group.rank() == 0 ? group.all_reduce(on_cuda(values)) : group.broadcast(on_cuda(values), 0);
      },
      "rank 1 called broadcast from rank 0 of 4 float32 on CUDA");
  mismatch(
      [](ProcessGroup& group, Values& values) {
        Buffer data = on_cuda(values);
        if (group.rank() == 1) data.count = 2;
        group.all_reduce(data);
      },
      "rank 1 called all_reduce(sum) of 2 float32 on CUDA");
  mismatch(
      [](ProcessGroup& group, Values& values) {
        group.rank() == 0 ? group.all_reduce(on_cuda(values)) : group.barrier();
      },
      "rank 1 called barrier");
}

TEST(DeviceBackend, BreaksTheGroupOnAllRanksWhenTheDeviceFails) {
  Devices devices;
  run_on(2, devices, [&](ProcessGroup& group) {
    Values values(2, 1);
    group.all_reduce(on_cuda(values));
    group.barrier();
    if (group.rank() == 0) devices.fails = true;
    group.barrier();
    std::string text;
    const Fault fault = fault_of([&] { group.all_reduce(on_cuda(values)); }, &text);
    // Its own failure, or the other rank's notice.
    EXPECT_TRUE(fault == Fault::system || fault == Fault::aborted) << text;
    EXPECT_NE(text.find("on fire"), std::string::npos) << text;
    EXPECT_NE(fault_of([&] { group.barrier(); }), Fault::bug) << "the group must stay broken";
  });
  EXPECT_EQ(devices.cancelled, 2);
}

TEST(DeviceBackend, EndsWhatIsOnTheDeviceWhenARankDoesNotCome) {
  Devices devices;
  run_on(2, devices, [&](ProcessGroup& group) {
    Values values(2, 1);
    group.all_reduce(on_cuda(values));
    if (group.rank() == 1)
      return;  // Leaves without destroy_process_group(): the group is abandoned.
    std::string text;
    EXPECT_EQ(fault_of([&] { group.all_reduce(on_cuda(values)); }, &text), Fault::peer_lost);
    EXPECT_NE(text.find("all_reduce #2 of group world on rank 0: "), std::string::npos) << text;
    EXPECT_TRUE(devices.is_cancelled[0]) << "what this rank's device does has no end";
  });
}

TEST(DeviceBackend, NamesTheCallThatARankDidNotComeTo) {
  Devices devices;
  std::atomic<bool> is_over{false};
  run_on(2, devices, [&](ProcessGroup& group) {
    Values values(2, 1);
    if (group.rank() == 1) return is_over.wait(false);
    std::string text;
    EXPECT_EQ(fault_of([&] { group.broadcast(on_cuda(values), 0, {.timeout = 100ms}); }, &text),
              Fault::timeout);
    EXPECT_NE(text.find("broadcast #1 of group world on rank 0: "), std::string::npos) << text;
    is_over = true;
    is_over.notify_all();
  });
}

TEST(DeviceBackend, IsCancelledByAnAbort) {
  Devices devices;
  run_on(2, devices, [&](ProcessGroup& group) {
    Values values(2, 1);
    group.all_reduce(on_cuda(values));
    if (group.rank() == 0) {
      group.abort("enough");
      EXPECT_TRUE(devices.is_cancelled[0]);
    }
    EXPECT_EQ(fault_of([&] { group.all_reduce(on_cuda(values)); }), Fault::aborted);
  });
  EXPECT_EQ(devices.cancelled, 2);
}

}  // namespace
}  // namespace lockstep::comm::device_backend_test

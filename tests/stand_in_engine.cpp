// SPDX-License-Identifier: Apache-2.0
#include "tests/stand_in_engine.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <condition_variable>
#include <cstddef>
#include <cstring>
#include <numeric>
#include <thread>

#include "lockstep/base/error.h"
#include "lockstep/comm/engine/device_backend.h"
#include "lockstep/comm/group_state.h"
#include "lockstep/comm/reduce/reduce.h"
#include "lockstep/comm/shm/shm_backend.h"
#include "lockstep/comm/shm/thread_peers.h"

namespace lockstep::test {

// Shared state of the ranks of one communicator.
struct Wire {
  explicit Wire(int size) : inputs(static_cast<std::size_t>(size)), counts(inputs.size()) {}

  // Returns once all ranks have called it. Errors: aborted if `is_cancelled` becomes true earlier;
  // timeout.
  void meet(const bool& is_cancelled, std::chrono::milliseconds patience) {
    std::unique_lock lock(mutex);
    if (is_cancelled) throw_aborted();
    if (++arrived == inputs.size()) {
      arrived = 0;
      ++meetings;
      changed.notify_all();
      return;
    }
    const auto is_over = [&, before = meetings] { return meetings != before; };
    changed.wait_until(lock, in(patience), [&] { return is_over() || is_cancelled; });
    if (is_over()) return;
    --arrived;
    if (is_cancelled) throw_aborted();
    throw Error(Fault::timeout, "not all ranks came to the device's collective");
  }

  [[noreturn]] static void throw_aborted() {
    throw Error(Fault::aborted, "the device's collective was cancelled");
  }

  std::mutex mutex;
  std::condition_variable changed;
  std::size_t arrived = 0;
  std::size_t meetings = 0;

  std::vector<std::vector<std::byte>> inputs;  // Index: rank.
  std::vector<std::vector<std::size_t>> counts;
};

namespace {

using namespace std::chrono_literals;

class StandInCommunicator final : public comm::DeviceCommunicator {
 public:
  StandInCommunicator(StandInDevices& devices, std::shared_ptr<Wire> wire, int rank)
      : devices_(devices), wire_(std::move(wire)), rank_(static_cast<std::size_t>(rank)) {}

  void cancel() override {
    if (!devices_.is_cancelled.at(rank_).exchange(true)) ++devices_.cancelled;
    const std::lock_guard lock(wire_->mutex);
    is_cancelled_ = true;
    wire_->changed.notify_all();
  }
  void all_reduce(const Buffer& data, ReduceOp op) override {
    gather_all("all_reduce", data, {});
    combine(data, 0, op);
    meet();
  }
  void broadcast(const Buffer& data, int root) override {
    gather_all("broadcast", data, {});
    take(data, 0, static_cast<std::size_t>(root), 0, data.count);
    meet();
  }
  void reduce(const Buffer& data, int root, ReduceOp op) override {
    gather_all("reduce", data, {});
    if (rank_ == static_cast<std::size_t>(root)) combine(data, 0, op);
    meet();
  }
  void all_gather(const Buffer& input, const Buffer& output, Counts counts) override {
    gather_all("all_gather", input, {});
    std::size_t begin = 0;
    for (std::size_t r = 0; r < counts.size(); begin += counts[r++])
      take(output, begin, r, 0, counts[r]);
    meet();
  }
  void reduce_scatter(const Buffer& input, const Buffer& output, Counts counts,
                      ReduceOp op) override {
    gather_all("reduce_scatter", input, {});
    combine(output, sum_before(counts, rank_), op);
    meet();
  }
  void all_to_all(const Buffer& input, const Buffer& output, Counts send_counts,
                  Counts receive_counts) override {
    gather_all("all_to_all", input, send_counts);
    std::size_t to = 0;
    for (std::size_t r = 0; r < receive_counts.size(); to += receive_counts[r++]) {
      const auto& theirs = wire_->counts[r];
      EXPECT_EQ(theirs[rank_], receive_counts[r]);
      take(output, to, r, sum_before(theirs, rank_), receive_counts[r]);
    }
    meet();
  }

 private:
  void meet() { wire_->meet(is_cancelled_, devices_.patience); }
  static std::size_t sum_before(Counts counts, std::size_t rank) {
    return std::accumulate(counts.begin(), counts.begin() + static_cast<std::ptrdiff_t>(rank),
                           std::size_t{0});
  }
  void require_not_cancelled() {
    const std::lock_guard lock(wire_->mutex);
    if (is_cancelled_) Wire::throw_aborted();
  }
  void gather_all(const char* what, const Buffer& input, Counts counts) {
    require_not_cancelled();  // Others may still read this rank's last input.
    if (devices_.fails) throw Error(Fault::system, "the device is on fire");
    EXPECT_EQ(input.device, DeviceKind::cuda);
    if (devices_.on_call) devices_.on_call(static_cast<int>(rank_), input);
    if (rank_ == 0) {
      const std::lock_guard lock(devices_.mutex);
      devices_.calls.emplace_back(what);
    }
    const auto* const bytes = static_cast<const std::byte*>(input.data);
    wire_->inputs[rank_].assign(bytes, bytes + input.bytes());
    wire_->counts[rank_].assign(counts.begin(), counts.end());
    meet();
  }
  void combine(const Buffer& to, std::size_t begin, ReduceOp op) {
    std::vector<const std::byte*> sources;
    for (const auto& input : wire_->inputs)
      sources.push_back(input.data() + begin * size_of(to.dtype));
    auto* target = static_cast<std::byte*>(to.data);
    comm::reduce_function(to.dtype, op)(sources.data(), static_cast<int>(sources.size()), &target,
                                        1, to.count);
  }
  void take(const Buffer& to, std::size_t begin, std::size_t from, std::size_t first,
            std::size_t count) {
    const std::size_t width = size_of(to.dtype);
    if (count == 0) return;
    std::memcpy(static_cast<std::byte*>(to.data) + begin * width,
                wire_->inputs[from].data() + first * width, count * width);
  }

  StandInDevices& devices_;
  const std::shared_ptr<Wire> wire_;
  const std::size_t rank_;
  bool is_cancelled_ = false;  // Guarded by the wire's mutex.
};

ProcessGroup group_of(const std::shared_ptr<comm::ThreadTeam>& team, int rank,
                      StandInDevices& devices) {
  auto peers = std::make_shared<comm::ThreadPeers>(team, rank);
  comm::DeviceMembers members{
      .name = "world", .world_ranks = std::vector<int>(team->size()), .rank = rank};
  std::iota(members.world_ranks.begin(), members.world_ranks.end(), 0);
  ProcessGroup::State::Parts parts;
  parts.identity = {.name = "world", .rank = rank, .size = team->size(), .timeout = 10s};
  parts.in_job =
      std::make_shared<comm::RankInJob>(std::shared_ptr<Activity>(team, &peers->activity(rank)));
  parts.backend = std::make_unique<comm::DeviceBackend>(
      std::make_unique<comm::ShmBackend>(peers, "world", 1min), members, engine_of(devices));
  return GroupAccess::make(std::move(parts));
}

}  // namespace

std::shared_ptr<const comm::DeviceEngine> engine_of(StandInDevices& devices) {
  return std::make_shared<const comm::DeviceEngine>(comm::DeviceEngine{
      .why_not = [&devices] { return devices.why_not; },
      .make =
          [&devices](const comm::DeviceMembers& members, int index, Deadline) {
            const std::lock_guard lock(devices.mutex);
            ++devices.made;
            devices.indices.insert(index);
            auto& wire = devices.wires[members.name];
            if (!wire) wire = std::make_shared<Wire>(static_cast<int>(members.world_ranks.size()));
            return std::make_unique<StandInCommunicator>(devices, wire, members.rank);
          },
  });
}

void run_on(int size, StandInDevices& devices, const std::function<void(ProcessGroup&)>& body) {
  const auto team = std::make_shared<comm::ThreadTeam>(size);
  std::vector<std::jthread> threads;
  for (int rank = 0; rank < size; ++rank)
    threads.emplace_back([&, rank] {
      ProcessGroup group = group_of(team, rank, devices);
      try {
        body(group);
      } catch (const std::exception& error) {
        ADD_FAILURE() << "rank " << rank << ": " << error.what();
      }
    });
}

}  // namespace lockstep::test

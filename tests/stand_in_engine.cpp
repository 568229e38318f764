// SPDX-License-Identifier: Apache-2.0
#include "tests/stand_in_engine.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <condition_variable>
#include <cstddef>
#include <cstring>
#include <numeric>
#include <span>
#include <string_view>
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
  using Counts = std::span<const std::size_t>;

 public:
  StandInCommunicator(StandInDevices& devices, std::shared_ptr<Wire> wire, int rank)
      : devices_(devices), wire_(std::move(wire)), rank_(static_cast<std::size_t>(rank)) {}

  void cancel() override {
    if (!devices_.is_cancelled.at(rank_).exchange(true)) ++devices_.cancelled;
    const std::lock_guard lock(wire_->mutex);
    is_cancelled_ = true;
    wire_->changed.notify_all();
  }
  bool supports(Operation operation, DType, ReduceOp) const override {
    return !devices_.lacks.contains(operation);
  }
  void run(const comm::Collective& collective) override {
    const Operation operation = collective.signature.operation;
    const auto root = static_cast<std::size_t>(collective.signature.root);
    const ReduceOp op = collective.signature.op;
    const auto counts = comm::part_counts(collective, static_cast<int>(rank_), size());
    const Buffer& output = collective.output;
    const bool in_place = shape_of(operation) == OperationShape::in_place;
    gather_all(name(operation), in_place ? output : collective.input, counts.sent);
    switch (operation) {
      case Operation::all_reduce:
        combine(output, 0, op);
        break;
      case Operation::broadcast:
        take(output, 0, root, 0, output.count);
        break;
      case Operation::reduce:
        if (rank_ == root) combine(output, 0, op);
        break;
      case Operation::all_gather:
      case Operation::all_to_all:
        take_parts(output, counts.received);
        break;
      case Operation::reduce_scatter:
        combine(output, sum_before(counts.sent, rank_), op);
        break;
      default:
        ADD_FAILURE() << "not supported: " << name(operation);
    }
    meet();
  }

 private:
  void meet() { wire_->meet(is_cancelled_, devices_.patience); }
  int size() const { return static_cast<int>(wire_->inputs.size()); }
  // From each rank's input, or from this rank's part of it.
  void take_parts(const Buffer& output, Counts received) {
    std::size_t to = 0;
    for (std::size_t r = 0; r < received.size(); to += received[r++]) {
      const auto& theirs = wire_->counts[r];
      const bool is_exchange = !theirs.empty();
      EXPECT_TRUE(!is_exchange || theirs[rank_] == received[r]);
      take(output, to, r, is_exchange ? sum_before(theirs, rank_) : 0, received[r]);
    }
  }
  static std::size_t sum_before(Counts counts, std::size_t rank) {
    return std::accumulate(counts.begin(), counts.begin() + static_cast<std::ptrdiff_t>(rank),
                           std::size_t{0});
  }
  void require_not_cancelled() {
    const std::lock_guard lock(wire_->mutex);
    if (is_cancelled_) Wire::throw_aborted();
  }
  void gather_all(std::string_view what, const Buffer& input, Counts counts) {
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
  parts.rank_context =
      std::make_shared<comm::RankContext>(std::shared_ptr<Activity>(team, &peers->activity(rank)));
  parts.backend = std::make_unique<comm::DeviceBackend>(
      std::make_unique<comm::ShmBackend>(peers, "world", 1min), members, engine_of(devices));
  return GroupAccess::make(std::move(parts));
}

}  // namespace

std::shared_ptr<const comm::DeviceEngine> engine_of(StandInDevices& devices) {
  return std::make_shared<const comm::DeviceEngine>(comm::DeviceEngine{
      .why_not = [&devices] { return devices.why_not; },
      .supports = [&devices](Operation operation, DType,
                             ReduceOp) { return !devices.lacks.contains(operation); },
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

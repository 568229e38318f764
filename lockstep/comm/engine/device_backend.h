// A backend that moves CUDA memory beside what the one that it is made of moves.
//
// Collectives on CPU memory pass through. Those on CUDA memory are entered as if they were a
// barrier that carries the signature: so ranks compare what they call, wait with a deadline and
// learn of deaths as always. Then they are enqueued on a communicator of all ranks, which the first
// of them makes. Ranks of which some call with CUDA memory and some with the CPU's get a mismatch:
// the signature tells, see layout_on_cuda.
//
// A collective is complete when it is enqueued on its buffers' stream: what is enqueued there later
// finds the result, and the host is not held up. A rank that dies after that leaves the others'
// devices waiting until their next call, or give_up(), ends it.
//
// Each rank uses one device in a group, the one of its first call.
//
// Operations: all, but for what cuda_unsupported() lists.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "lockstep/comm/core/backend.h"
#include "lockstep/comm/engine/device_communicator.h"

namespace lockstep {

class DeviceBackend final : public Backend {
 public:
  // Collective where `inner` is; asks nothing of `engine` before the first call on CUDA memory.
  DeviceBackend(std::unique_ptr<Backend> inner, DeviceMembers members,
                std::shared_ptr<const DeviceEngine> engine);

  // Waits for the device, unless the group was given up.
  ~DeviceBackend() override = default;

  std::string_view name() const override { return inner_->name(); }
  Place local() const override { return inner_->local(); }
  bool native(Operation operation, DType dtype, ReduceOp op) const override {
    return inner_->native(operation, dtype, op);
  }
  std::string refusal_on_device(const Collective& collective) override;
  void enter(const Collective& collective) override;
  const Signature& entered(int rank) const override;
  std::vector<std::string> labels(const Collective& collective) override {
    return inner_->labels(collective);
  }
  void run(const Collective& collective) override;
  Allocation allocate(const Collective& collective) override {
    return inner_->allocate(collective);
  }
  void post(std::shared_ptr<Message> message) override { inner_->post(std::move(message)); }
  void progress() override { inner_->progress(); }
  void drop_messages() override { inner_->drop_messages(); }
  std::size_t messages_pending() const override { return inner_->messages_pending(); }
  std::uint32_t message_bell() const override { return inner_->message_bell(); }
  void await_messages(std::uint32_t seen) override { inner_->await_messages(seen); }
  std::unique_ptr<Backend> among(const std::vector<int>& ranks, const std::string& group,
                                 std::chrono::milliseconds timeout) override;
  void give_up(Fault fault, std::string_view reason) override;

 private:
  DeviceCommunicator& communicator(const Collective& collective);
  void run_on_device(const Collective& collective);
  void all_to_all(DeviceCommunicator& communicator, const Collective& collective) const;
  std::vector<std::size_t> part_counts(const Collective& collective) const;
  void cancel();

  const std::unique_ptr<Backend> inner_;
  const DeviceMembers members_;
  const std::shared_ptr<const DeviceEngine> engine_;
  mutable std::vector<Signature> said_;  // By rank, as entered() tells it.
  std::atomic<int> device_;              // Of this rank; none before the first call.

  std::mutex mutex_;  // Guards these two, for give_up().
  bool is_over_ = false;
  std::unique_ptr<DeviceCommunicator> communicator_;
};

}  // namespace lockstep

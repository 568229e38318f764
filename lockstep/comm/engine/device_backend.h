// Adds CUDA memory to another backend. Not for the operations that cuda_unsupported() lists.
//
// A collective on CUDA memory first enters the inner backend as a barrier with its signature. Ranks
// thus compare their calls, wait with a deadline and detect deaths as usual. A mix of CUDA and CPU
// memory among ranks is a mismatch (layout_on_cuda).
//
// A collective is complete when enqueued on its buffers' stream; the host does not wait for the
// device. If a rank dies later, the others' devices wait until their next call, or abort(), cancels
// the collective. Each rank uses one device in a group, that of its first call.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/comm/core/backend.h"
#include "lockstep/comm/core/buffer.h"
#include "lockstep/comm/engine/device_communicator.h"
#include "lockstep/job/detail/operation.h"

namespace lockstep::comm {

// Why collectives cannot do this on CUDA memory; empty for supported calls. `op` only matters for
// reductions. Also empty for combinations refused for all memory, such as an average of booleans.
constexpr std::string_view cuda_unsupported(Operation operation, DType dtype, ReduceOp op) {
  if (operation == Operation::send || operation == Operation::recv)
    return "messages move CPU memory only";
  if (!reduces(operation)) return {};
  if (op == ReduceOp::band || op == ReduceOp::bor || op == ReduceOp::bxor)
    return "CUDA memory cannot be combined bit by bit";
  if (dtype == DType::int16 || dtype == DType::uint16)
    return "integers of 16 bits cannot be combined in CUDA memory";
  return {};
}

class DeviceBackend final : public Backend {
 public:
  // Not collective.
  DeviceBackend(std::unique_ptr<Backend> inner, DeviceMembers members,
                std::shared_ptr<const DeviceEngine> engine);

  // Waits at most a few seconds for the device, unless a call failed or the group was aborted.
  ~DeviceBackend() override = default;

  std::string_view name() const override { return inner_->name(); }
  Place local() const override { return inner_->local(); }
  bool native(Operation operation) const override { return inner_->native(operation); }
  std::string refusal_on_device(const Collective& collective) override;
  void enter(const Collective& collective) override;
  std::optional<int> last_to_enter() const override { return inner_->last_to_enter(); }
  const Signature& entered(int rank) const override;
  std::vector<std::string> labels(const Collective& collective) override {
    return inner_->labels(collective);
  }
  void run(const Collective& collective) override;
  Allocation allocate(const Collective& collective) override {
    return inner_->allocate(collective);
  }
  RegisteredMemory allocate_local(std::size_t bytes) override {
    return inner_->allocate_local(bytes);
  }
  Pipes& pipes() override { return inner_->pipes(); }
  std::unique_ptr<Backend> among(const std::vector<int>& ranks, const std::string& group,
                                 std::chrono::milliseconds timeout,
                                 const std::function<void()>& watch) override;
  void leave() override { inner_->leave(); }
  void abort(const AbortReason& why) override;

 private:
  DeviceCommunicator& communicator(const Collective& collective);
  void run_on_device(const Collective& collective);
  void cancel();

  const std::unique_ptr<Backend> inner_;
  const DeviceMembers members_;
  const std::shared_ptr<const DeviceEngine> engine_;
  mutable std::vector<Signature> said_;
  std::atomic<int> device_;  // Unset before the first call.

  std::mutex mutex_;  // Guards the next two members, for abort().
  bool is_over_ = false;
  std::unique_ptr<DeviceCommunicator> communicator_;
};

}  // namespace lockstep::comm

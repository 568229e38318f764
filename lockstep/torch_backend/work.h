// Work objects of torch.distributed.
//
// Thread safety: any thread.
// Errors: wait() and futures fail with the operation's Error as Python's lockstep.Error (errors.h).

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/ivalue.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <vector>

#include "lockstep/comm/work.h"
#include "lockstep/torch_backend/membership.h"

namespace lockstep::torch_backend {

using Tensors = std::vector<at::Tensor>;

struct Operands {
  c10d::OpType type;
  const char* title;             // Name in the profiler: "lockstep:all_reduce".
  Tensors inputs;                // For the profiler.
  std::vector<Tensors> outputs;  // Value of the future: the list, or the list of lists.
};

class OperationWork : public c10d::Work {
 public:
  OperationWork(std::shared_ptr<Membership> membership, Operands operands, std::uint64_t sequence);

  // Sequentially consistent: one thread ends the operation, then reads has_future(); another sets
  // that, then reads is_over(). At least one of them calls complete_future().
  bool is_over() const { return over_.load(); }
  bool has_future() const { return asked_.load(); }

  // Completes the future, if any, and runs its callbacks. Further calls do nothing.
  void complete_future();

  bool isCompleted() override { return is_over(); }
  bool isSuccess() const override;
  Tensors result() override;
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;
  std::uint64_t getSequencenumber() const override { return sequence_; }
  void abort() override;  // Aborts the group.

 protected:
  // Call it once.
  void end_with(std::exception_ptr error);
  void throw_if_failed() const;
  Membership& membership() const { return *membership_; }

 private:
  void complete(c10::ivalue::Future& future) const;

  const std::shared_ptr<Membership> membership_;
  const std::vector<Tensors> outputs_;
  const std::uint64_t sequence_;
  std::atomic<bool> over_{false};
  std::atomic<bool> asked_{false};
  c10::intrusive_ptr<c10::ivalue::Future> future_;  // Guarded by mutex_, as is `told_`.
  bool told_ = false;
};

// Run by the first available thread: ordered_calls.h.
class CollectiveWork final : public OperationWork {
 public:
  using Body = std::function<void()>;

  CollectiveWork(std::shared_ptr<Membership> membership, Operands operands, std::uint64_t sequence,
                 Body body);

  void perform();  // Call it once.
  void fail(const std::exception_ptr& error);

  bool wait(std::chrono::milliseconds timeout) override;
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;

 private:
  Body body_;
};

class MessageWork final : public OperationWork {
 public:
  // After `message` succeeds, `arrived` runs; then this object is complete.
  MessageWork(std::shared_ptr<Membership> membership, Operands operands, std::uint64_t sequence,
              lockstep::Work message, std::function<void()> arrived);

  bool isCompleted() override;
  bool wait(std::chrono::milliseconds timeout) override;
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;
  int sourceRank() const override;

 private:
  void settle();

  const lockstep::Work message_;
  const std::function<void()> arrived_;
  std::once_flag settled_;
};

}  // namespace lockstep::torch_backend

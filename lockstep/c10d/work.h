// Operations of a group, as torch.distributed sees them.
//
// Thread safety: any thread may call any member at any time.
// Errors: wait() throws the operation's Error as Python's lockstep.Error (errors.h), and futures
// fail with it.

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

#include "lockstep/c10d/membership.h"
#include "lockstep/comm/work.h"

namespace lockstep::c10d {

using Tensors = std::vector<at::Tensor>;

// The names of an operation, and its tensors.
struct Operands {
  ::c10d::OpType type;
  const char* title;             // As the profiler shows it: "lockstep:all_reduce".
  Tensors inputs;                // Whose shapes the profiler shows.
  std::vector<Tensors> outputs;  // The value of the future: the list, or the list of lists.
};

// An operation with a future.
class OperationWork : public ::c10d::Work {
 public:
  OperationWork(std::shared_ptr<Membership> membership, Operands operands, std::uint64_t sequence);

  // Sequentially consistent, each of them. A thread ends the operation and asks for has_future(),
  // another one sets that and asks for is_over(): one of the two calls tell().
  bool is_over() const { return over_.load(); }
  bool has_future() const { return asked_.load(); }

  // Completes the future of a finished operation, and runs its callbacks. Only the first call does.
  void tell();

  bool isCompleted() override { return is_over(); }
  bool isSuccess() const override;
  Tensors result() override;
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;
  std::uint64_t getSequencenumber() const override { return sequence_; }
  void abort() override;  // Aborts the group, as one call alone cannot be.

 protected:
  // Marks the end. Once.
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

// A collective, which runs on the thread that comes first: ordered_calls.h.
class CollectiveWork final : public OperationWork {
 public:
  using Body = std::function<void()>;

  CollectiveWork(std::shared_ptr<Membership> membership, Operands operands, std::uint64_t sequence,
                 Body body);

  void perform();  // Once.
  void fail(const std::exception_ptr& error);

  bool wait(std::chrono::milliseconds timeout) override;
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;

 private:
  Body body_;
};

// A message, which lockstep's own threads move.
class MessageWork final : public OperationWork {
 public:
  // `arrived` runs before the message counts as complete.
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

}  // namespace lockstep::c10d

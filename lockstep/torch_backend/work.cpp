// SPDX-License-Identifier: Apache-2.0
#include "lockstep/torch_backend/work.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/grad_mode.h>
#include <ATen/core/jit_type.h>

#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/base/time.h"
#include "lockstep/comm/group_hooks.h"
#include "lockstep/torch_backend/errors.h"
#include "lockstep/torch_backend/gil.h"
#include "lockstep/torch_backend/interrupts.h"

namespace lockstep::torch_backend {
namespace {

Deadline deadline_of(std::chrono::milliseconds timeout) {
  return timeout == kNoTimeout ? no_deadline : in(timeout);
}

bool has_lists(const std::vector<Tensors>& outputs) { return outputs.size() > 1; }

c10::TypePtr type_of_future(const std::vector<Tensors>& outputs) {
  auto list = c10::ListType::create(c10::TensorType::get());
  return has_lists(outputs) ? c10::ListType::create(std::move(list)) : std::move(list);
}

std::exception_ptr error_of(const std::function<void()>& act) {
  // As with Gloo, autograd does not see the change.
  const at::NoGradGuard no_grad;
  const at::AutoDispatchBelowADInplaceOrView plain;
  try {
    act();
    return nullptr;
  } catch (...) {
    return std::current_exception();
  }
}

}  // namespace

// --- OperationWork -------------------------------------------------------------------------------

OperationWork::OperationWork(std::shared_ptr<Membership> membership, Operands operands,
                             std::uint64_t sequence)
    : Work(membership->place().rank, operands.type, operands.title, std::move(operands.inputs)),
      membership_(std::move(membership)),
      outputs_(std::move(operands.outputs)),
      sequence_(sequence) {}

void OperationWork::abort() { membership_->abort("torch.distributed aborted an operation"); }

bool OperationWork::isSuccess() const { return is_over() && !exception(); }

Tensors OperationWork::result() {
  throwing_in_python([&] {
    require(!has_lists(outputs_), "result: it is a list of lists, which only the future can give");
  });
  return outputs_.empty() ? Tensors{} : outputs_.front();
}

void OperationWork::end_with(std::exception_ptr error) {
  finish(std::move(error));
  over_.store(true);
}

void OperationWork::throw_if_failed() const {
  const auto error = exception();
  if (!error) return;
  note_failed_call();
  rethrow_in_python(error);
}

c10::intrusive_ptr<c10::ivalue::Future> OperationWork::getFuture() {
  c10::intrusive_ptr<c10::ivalue::Future> future;
  {
    const std::lock_guard lock(mutex_);
    if (!future_) future_ = c10::make_intrusive<c10::ivalue::Future>(type_of_future(outputs_));
    future = future_;
    asked_.store(true);
  }
  if (is_over()) complete_future();
  return future;
}

void OperationWork::complete_future() {
  c10::intrusive_ptr<c10::ivalue::Future> future;
  {
    const std::lock_guard lock(mutex_);
    if (!future_ || std::exchange(told_, true)) return;
    future = future_;
  }
  complete(*future);
}

void OperationWork::complete(c10::ivalue::Future& future) const {
  if (const auto error = exception())
    future.setError(in_python(error));
  else if (has_lists(outputs_))
    future.markCompleted(c10::IValue(outputs_));
  else
    future.markCompleted(c10::IValue(outputs_.empty() ? Tensors{} : outputs_.front()));
}

// --- CollectiveWork ------------------------------------------------------------------------------

CollectiveWork::CollectiveWork(std::shared_ptr<Membership> membership, Operands operands,
                               std::uint64_t sequence, Body body)
    : OperationWork(std::move(membership), std::move(operands), sequence), body_(std::move(body)) {}

void CollectiveWork::perform() {
  auto error = error_of(body_);
  body_ = nullptr;  // Destroys captured objects before the end is visible.
  end_with(std::move(error));
}

void CollectiveWork::fail(const std::exception_ptr& error) {
  body_ = nullptr;
  end_with(error);
  complete_future();
}

bool CollectiveWork::wait(std::chrono::milliseconds timeout) {
  throwing_in_python([&] {
    if (is_over()) return;
    const Interruptible interruptible(membership());
    if (!membership().calls()->await(*this, deadline_of(timeout)))
      throw Error(Fault::timeout, "Timed out waiting for an operation, which still runs");
  });
  throw_if_failed();
  return true;
}

c10::intrusive_ptr<c10::ivalue::Future> CollectiveWork::getFuture() {
  auto future = OperationWork::getFuture();
  if (!is_over()) membership().calls()->hurry();
  return future;
}

// --- MessageWork ---------------------------------------------------------------------------------

MessageWork::MessageWork(std::shared_ptr<Membership> membership, Operands operands,
                         std::uint64_t sequence, lockstep::Work message,
                         std::function<void()> arrived)
    : OperationWork(std::move(membership), std::move(operands), sequence),
      message_(std::move(message)),
      arrived_(std::move(arrived)) {}

void MessageWork::settle() {
  std::call_once(settled_, [this] {
    auto error = message_.error();
    if (!error && arrived_) error = error_of(arrived_);
    end_with(std::move(error));
  });
  complete_future();  // Callbacks may take the GIL, which a thread waiting here may hold.
}

bool MessageWork::isCompleted() {
  if (!message_.is_completed()) return false;
  settle();
  return true;
}

bool MessageWork::wait(std::chrono::milliseconds timeout) {
  const Interruptible interruptible(membership());
  try {
    message_.wait(timeout == kNoTimeout ? std::chrono::milliseconds::max() : timeout);
  } catch (const Error&) {
    if (!message_.is_completed()) rethrow_in_python(std::current_exception());
  }
  settle();
  throw_if_failed();
  return true;
}

c10::intrusive_ptr<c10::ivalue::Future> MessageWork::getFuture() {
  auto self = c10::intrusive_ptr<MessageWork>::unsafe_reclaim_from_nonowning(this);
  if (!has_future())
    message_.on_completion([self = std::move(self)]() mutable {
      const auto settle = [&] {
        self->settle();
        self.reset();  // Destroys Python callbacks.
      };
      if (!before_python_ends(settle)) static_cast<void>(self.release());
    });
  return OperationWork::getFuture();
}

int MessageWork::sourceRank() const { return message_.source().rank; }

}  // namespace lockstep::torch_backend

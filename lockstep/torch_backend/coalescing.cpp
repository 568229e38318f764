// SPDX-License-Identifier: Apache-2.0
#include "lockstep/torch_backend/coalescing.h"

#include <ATen/core/ivalue.h>
#include <ATen/core/jit_type.h>

#include <algorithm>
#include <memory>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/base/time.h"

namespace lockstep::torch_backend {

// --- Coalescing ----------------------------------------------------------------------------------

void Coalescing::begin() {
  const auto left = take();  // Destroyed unlocked: destructors may take the GIL.
  const std::lock_guard lock(mutex_);
  works_[std::this_thread::get_id()];
  threads_ = works_.size();
}

bool Coalescing::has_begun() const {
  if (threads_ == 0) return false;
  const std::lock_guard lock(mutex_);
  return works_.contains(std::this_thread::get_id());
}

void Coalescing::add(const Started& work) {
  if (threads_ == 0) return;
  const std::lock_guard lock(mutex_);
  const auto mine = works_.find(std::this_thread::get_id());
  if (mine != works_.end()) mine->second.push_back(work);
}

std::vector<Started> Coalescing::end() {
  auto mine = take();
  require(!mine.empty(), "endCoalescing: this thread did not call startCoalescing()");
  return std::move(mine.mapped());
}

Coalescing::Works::node_type Coalescing::take() {
  const std::lock_guard lock(mutex_);
  auto mine = works_.extract(std::this_thread::get_id());
  threads_ = works_.size();
  return mine;
}

// --- CoalescedWork -------------------------------------------------------------------------------

CoalescedWork::CoalescedWork(int rank, std::vector<Started> works)
    : Work(rank, c10d::OpType::COALESCED), works_(std::move(works)) {}

bool CoalescedWork::isCompleted() {
  return std::ranges::all_of(works_, [](const Started& work) { return work->isCompleted(); });
}

bool CoalescedWork::isSuccess() const {
  return std::ranges::all_of(works_, [](const Started& work) { return work->isSuccess(); });
}

std::exception_ptr CoalescedWork::exception() const {
  for (const Started& work : works_)
    if (auto error = work->exception()) return error;
  return nullptr;
}

bool CoalescedWork::wait(std::chrono::milliseconds timeout) {
  constexpr std::chrono::milliseconds least{1};  // 0 would mean no limit.
  const Deadline deadline = timeout == kNoTimeout ? no_deadline : in(timeout);
  for (const Started& work : works_)
    work->wait(timeout == kNoTimeout ? timeout : std::max(least, until(deadline)));
  return true;
}

void CoalescedWork::abort() {
  for (const Started& work : works_) work->abort();
}

c10::intrusive_ptr<c10::ivalue::Future> CoalescedWork::getFuture() {
  auto all = c10::make_intrusive<c10::ivalue::Future>(c10::ListType::ofTensors());
  const auto complete = [all] { all->markCompleted(c10::IValue(std::vector<at::Tensor>())); };
  if (works_.empty()) complete();
  const auto left = std::make_shared<std::atomic<std::size_t>>(works_.size());
  for (const Started& work : works_)
    work->getFuture()->addCallback([all, complete, left](c10::ivalue::Future& one) {
      if (one.hasError()) all->setErrorIfNeeded(one.exception_ptr());
      if (left->fetch_sub(1) == 1 && !all->completed()) complete();
    });
  return all;
}

}  // namespace lockstep::torch_backend

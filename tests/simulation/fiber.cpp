// SPDX-License-Identifier: Apache-2.0
#include "tests/simulation/fiber.h"

#include <cxxabi.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <exception>
#include <utility>
#include <vector>

#include "lockstep/base/error.h"

namespace lockstep::simulation {
namespace {

constexpr std::size_t stack_bytes = std::size_t{256} << 10;

// Stacks are used again: mapping one costs more than a short life of a process.
class Stacks {
 public:
  std::byte* take() {
    if (!free_.empty()) {
      std::byte* const stack = free_.back();
      free_.pop_back();
      return stack;
    }
    void* const mapped = ::mmap(nullptr, stack_bytes, PROT_READ | PROT_WRITE,
                                MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (mapped == MAP_FAILED) throw_errno("mapping the stack of a fiber");
    const auto page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
    if (::mprotect(mapped, page, PROT_NONE) != 0) throw_errno("protecting the end of a stack");
    return static_cast<std::byte*>(mapped);
  }

  void give_back(std::byte* stack) { free_.push_back(stack); }

 private:
  std::vector<std::byte*> free_;
};

Stacks& stacks() {
  static auto& all = *new Stacks;  // Never destroyed.
  return all;
}

}  // namespace

Fiber::Fiber(std::function<void()> body) : body_(std::move(body)), stack_(stacks().take()) {
  ::getcontext(&inside_);
  inside_.uc_stack.ss_sp = stack_;
  inside_.uc_stack.ss_size = stack_bytes;
  inside_.uc_link = nullptr;
  const auto self = reinterpret_cast<std::uintptr_t>(this);
  ::makecontext(&inside_, reinterpret_cast<void (*)()>(&Fiber::begin), 2,
                static_cast<unsigned int>(self >> 32), static_cast<unsigned int>(self));
}

Fiber::~Fiber() { release(); }

void Fiber::release() {
  if (stack_ != nullptr) stacks().give_back(std::exchange(stack_, nullptr));
  body_ = nullptr;
}

void Fiber::begin(unsigned int high, unsigned int low) {
  auto* const self =
      reinterpret_cast<Fiber*>(static_cast<std::uintptr_t>(high) << 32 | std::uintptr_t{low});
  try {
    self->body_();
  } catch (const Killed&) {  // The process is dead.
  }
  self->has_ended_ = true;
  self->suspend();
}

void Fiber::swap_exceptions() {
  auto* const current = reinterpret_cast<Exceptions*>(abi::__cxa_get_globals());
  std::swap(*current, exceptions_);
}

void Fiber::switch_to(ucontext_t& from, const ucontext_t& to) {
  swap_exceptions();
  ::swapcontext(&from, &to);
}

void Fiber::resume() { switch_to(outside_, inside_); }

void Fiber::suspend() { switch_to(inside_, outside_); }

}  // namespace lockstep::simulation

// SPDX-License-Identifier: Apache-2.0
#include "lockstep/base/thread.h"

#include <algorithm>
#include <cstddef>

#include "lockstep/base/error.h"

namespace lockstep {
namespace {

// The default on most systems. Only pages that are used take memory.
constexpr std::size_t least_stack_bytes = std::size_t{8} << 20;

class Attributes {
 public:
  Attributes() {
    std::size_t bytes = 0;
    check(::pthread_getattr_default_np(&attributes_) == 0 &&
              ::pthread_attr_getstacksize(&attributes_, &bytes) == 0 &&
              ::pthread_attr_setstacksize(&attributes_, std::max(bytes, least_stack_bytes)) == 0,
          "a thread cannot have a stack of its own size");
  }
  ~Attributes() { ::pthread_attr_destroy(&attributes_); }
  Attributes(const Attributes&) = delete;
  Attributes& operator=(const Attributes&) = delete;

  const pthread_attr_t* get() const { return &attributes_; }

 private:
  pthread_attr_t attributes_;
};

}  // namespace

void Thread::start(void* (*routine)(void*), void* body) {
  const Attributes attributes;
  pthread_t id{};
  const int error = ::pthread_create(&id, attributes.get(), routine, body);
  if (error != 0) throw_errno("starting a thread", error);
  id_ = id;
}

Thread& Thread::operator=(Thread&& other) noexcept {
  check(!joinable(), "a thread that may run is replaced");
  id_ = std::exchange(other.id_, std::nullopt);
  return *this;
}

Thread::~Thread() { check(!joinable(), "a thread that may run is given up"); }

void Thread::join() {
  const int error = ::pthread_join(*id_, nullptr);
  id_.reset();
  check(error == 0, "a thread is joined that cannot be");
}

void Thread::detach() { ::pthread_detach(*std::exchange(id_, std::nullopt)); }

}  // namespace lockstep

// The exception that ends a LibTorch backward(), for code that observes its graph task.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <c10/util/intrusive_ptr.h>

#include <exception>

namespace c10::ivalue {
struct Future;
}

namespace lockstep {

// The outcome of one backward().
class GraphTaskResult {
 public:
  // The backward() that this thread is executing. Errors: bug if there is none.
  static GraphTaskResult of_this_thread();

  GraphTaskResult(const GraphTaskResult&);
  GraphTaskResult& operator=(const GraphTaskResult&) = delete;
  ~GraphTaskResult();

  // Null before the end, after success, and for an exception not derived from std::exception.
  std::exception_ptr exception() const;

 private:
  explicit GraphTaskResult(c10::intrusive_ptr<c10::ivalue::Future> future);

  c10::intrusive_ptr<c10::ivalue::Future> future_;
};

}  // namespace lockstep

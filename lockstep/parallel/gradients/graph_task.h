// The exception that ends a backward() of LibTorch's, for those who look after its graph task.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <c10/util/intrusive_ptr.h>

#include <exception>

namespace c10::ivalue {
struct Future;
}

namespace lockstep {

// How one backward() ends.
class GraphTaskResult {
 public:
  // Of the backward() that this thread is in the midst of. Errors: bug when it is in none.
  static GraphTaskResult of_this_thread();

  GraphTaskResult(const GraphTaskResult&);
  GraphTaskResult& operator=(const GraphTaskResult&) = delete;
  ~GraphTaskResult();

  // Null before its end, after an orderly one, and for what is not derived from std::exception.
  std::exception_ptr exception() const;

 private:
  explicit GraphTaskResult(c10::intrusive_ptr<c10::ivalue::Future> future);

  c10::intrusive_ptr<c10::ivalue::Future> future_;
};

}  // namespace lockstep

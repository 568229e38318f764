// Drives a group's messages: whoever waits for one moves all of them on; a thread of its own does
// while there are asynchronous ones.
//
// The first Error ends it: every message that is still under way is dropped, so that nothing of
// ours touches its buffer again, and fails with that Error, as does every later one.
//
// Thread safety: every member may be called from any thread at once.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <string>

#include "lockstep/base/thread.h"
#include "lockstep/comm/core/backend.h"
#include "lockstep/comm/work.h"

namespace lockstep {

class PointToPoint {
 public:
  // Told once of the Error that ends a message, null for success; must not throw.
  using Done = std::function<void(std::exception_ptr)>;

  explicit PointToPoint(std::shared_ptr<Backend> backend);
  // As end(), with aborted.
  ~PointToPoint();
  PointToPoint(const PointToPoint&) = delete;
  PointToPoint& operator=(const PointToPoint&) = delete;

  // Blocks until `message` is complete. Errors: its own; timeout, which names what `describe`
  // gives.
  void run(const std::shared_ptr<Message>& message, const std::function<std::string()>& describe,
           Deadline deadline);

  // The same of `what` beside the caller; `done` is called, and dropped, once it has ended.
  Work start(std::shared_ptr<Message> message, std::string what, Deadline deadline, Done done);

  // Messages that were sent to or by this rank and that nobody has received.
  std::size_t pending() const;

  // From now on every message fails with `error`; if there was one before, with that.
  void end(std::exception_ptr error);

 private:
  struct Shared;

  static void loop(const std::shared_ptr<Shared>& shared);

  const std::shared_ptr<Shared> shared_;  // With the thread, which may outlive us.
  std::mutex starting_;
  Thread thread_;
};

}  // namespace lockstep

// Drives a group's messages.
//
// A thread that waits for one message advances all of them; while none waits, a background thread
// does.
//
// Thread safety: any thread.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstddef>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <string>

#include "lockstep/base/thread.h"
#include "lockstep/base/time.h"
#include "lockstep/comm/core/backend.h"
#include "lockstep/comm/work.h"

namespace lockstep::comm {

// The first Error ends this object, unless the message's peer has left. Unfinished and later
// messages fail with this Error, and their buffers are no longer accessed.
class PointToPoint {
 public:
  // Receives the Error of a message once, null for success; must not throw.
  using Done = std::function<void(std::exception_ptr)>;

  // `group` names the backend's group in errors.
  PointToPoint(std::shared_ptr<Backend> backend, const std::string& group);
  // Calls end() with aborted.
  ~PointToPoint();
  PointToPoint(const PointToPoint&) = delete;
  PointToPoint& operator=(const PointToPoint&) = delete;

  // Blocks until `message` is complete. Errors: the message's; timeout.
  void run(const std::shared_ptr<Message>& message, Deadline deadline);

  // Tries once on this thread, then in the background. Calls `done` at the end and then destroys
  // it.
  Work start(std::shared_ptr<Message> message, Deadline deadline, Done done);

  // As Mailbox::pending().
  std::size_t pending() const;

  // Makes all messages fail with `error`, or with the first error if there was one.
  void end(std::exception_ptr error);

 private:
  class Shared;

  const std::shared_ptr<Shared> shared_;  // The thread may outlive this object.
  std::mutex starting_;
  Thread thread_;
};

}  // namespace lockstep::comm

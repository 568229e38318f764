// Drives a group's messages.
//
// A thread that waits for one message advances all of them. A background thread advances
// asynchronous messages for which no thread waits.
//
// Thread safety: any thread may call any member at any time.

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

// The first Error ends it. Every unfinished message is dropped, so its buffer is no longer
// accessed, and fails with that Error. Later messages fail with it too.
class PointToPoint {
 public:
  // Receives the Error of a message once, null for success; must not throw.
  using Done = std::function<void(std::exception_ptr)>;

  explicit PointToPoint(std::shared_ptr<Backend> backend);
  // Calls end() with aborted.
  ~PointToPoint();
  PointToPoint(const PointToPoint&) = delete;
  PointToPoint& operator=(const PointToPoint&) = delete;

  // Blocks until `message` is complete. Errors: the message's; timeout, with the text from
  // `describe`.
  void run(const std::shared_ptr<Message>& message, const std::function<std::string()>& describe,
           Deadline deadline);

  // Like run(), in the background, after a first attempt on this thread. `what` describes the
  // message. Calls `done` at the end and then destroys it.
  Work start(std::shared_ptr<Message> message, std::string what, Deadline deadline, Done done);

  // Returns the number of messages to or from this rank that were sent but not received.
  std::size_t pending() const;

  // Makes every later message fail with `error`, or with the first error if there was one.
  void end(std::exception_ptr error);

 private:
  class Shared;

  const std::shared_ptr<Shared> shared_;  // Shared with the thread, which may outlive this object.
  std::mutex starting_;
  Thread thread_;
};

}  // namespace lockstep::comm

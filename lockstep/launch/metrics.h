// Figures of a job for Prometheus, which asks for them over HTTP: `lockstep run --metrics-port`.
//
// Each launcher serves the ranks of its own host. The text is Prometheus's exposition format 0.0.4
// (prometheus.io/docs/instrumenting/exposition_formats). Counters of ranks begin at 0 after a
// restart, as Prometheus expects of counters.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <poll.h>

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/base/file_descriptor.h"
#include "lockstep/base/time.h"
#include "lockstep/launch/loop.h"
#include "lockstep/launch/status.h"

namespace lockstep::launch {

// Returns all figures of a job, in the order of its ranks.
std::string metrics_of(const JobStatus& job);

// Returns the HTTP response to a request, of which the first line counts. `metrics` is called for
// GET and HEAD of /metrics only.
std::string metrics_response(std::string_view request, const std::function<std::string()>& metrics);

// The agent's side. It answers each connection once and closes it.
//
// Thread safety: none; used by the one thread whose poll() loop it is part of.
// Blocking: never. A client that sends no request, or does not read the answer, is dropped after
// 2 s, or when 16 newer ones have come. A request beyond 8 KiB is refused.
class MetricsService final : public Pollable {
 public:
  // `endpoint` is ADDRESS:PORT or [IPV6]:PORT, numeric; port 0 means any free port. Errors: misuse
  // for an invalid endpoint, and for a port in use, with the process that holds it; system.
  MetricsService(const std::string& endpoint, std::function<JobStatus()> status);

  // "http://127.0.0.1:9100/metrics".
  std::string url() const;

  void watch(std::vector<pollfd>& entries) const override;
  Deadline deadline() const override;
  void serve(const std::vector<pollfd>& entries) override;

 private:
  struct Client {
    FileDescriptor socket;
    Deadline deadline;
    std::string request = {};
    std::string rest = {};  // Bytes of the answer still to be sent.
    bool is_answered = false;
  };

  void accept_client();
  bool serve(Client& client);  // False when the client has gone.
  void answer(Client& client) const;
  static bool send(Client& client);

  const FileDescriptor listener_;
  const std::function<JobStatus()> status_;
  std::vector<Client> clients_;
  Deadline accept_again_ = Clock::now();
};

}  // namespace lockstep::launch

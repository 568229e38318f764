// Metrics of this host's ranks for Prometheus, over HTTP in the exposition format 0.0.4
// (prometheus.io/docs/instrumenting/exposition_formats): `lockstep run --metrics-port`.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <functional>
#include <string>
#include <string_view>

#include "lockstep/launch/client_service.h"
#include "lockstep/launch/status.h"

namespace lockstep::launch {

std::string metrics_of(const JobStatus& job);

// Only the request's first line counts. Calls `metrics` only for GET and HEAD of /metrics.
std::string metrics_response(std::string_view request, const std::function<std::string()>& metrics);

// Refuses requests of more than 8 KiB. Thread safety, Blocking: as ClientService.
class MetricsService final : public ClientService {
 public:
  // `endpoint` is numeric; port 0: any free port. Errors: misuse if invalid, or in use, with its
  // holder; system.
  MetricsService(const std::string& endpoint, std::function<JobStatus()> status,
                 std::chrono::milliseconds client_timeout = default_client_timeout);

  // "http://127.0.0.1:9100/metrics".
  std::string url() const;

 private:
  bool welcome(Client&) override { return true; }
  bool go_on(Client& client) override;
  void answer(Client& client) const;
  static bool send(Client& client);

  const std::function<JobStatus()> status_;
};

}  // namespace lockstep::launch

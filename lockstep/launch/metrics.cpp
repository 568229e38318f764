// SPDX-License-Identifier: Apache-2.0
#include "lockstep/launch/metrics.h"

#include <fmt/format.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <iterator>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"
#include "lockstep/job/store/tcp_socket.h"

namespace lockstep::launch {
namespace {

constexpr std::size_t longest_request = std::size_t{8} << 10;

// --- The text ------------------------------------------------------------------------------------

std::string quoted(const std::string& value) {
  std::string text = "\"";
  for (const char character : clean_text(value)) {
    if (character == '\\' || character == '"') text += '\\';
    text += character;
  }
  return text + '"';
}

class Family {
 public:
  Family(std::string_view name, std::string_view type, std::string_view help)
      : name_(name), text_(fmt::format("# HELP {} {}\n# TYPE {} {}\n", name, help, name, type)) {}

  template <class Value>
  Family& add(const std::string& labels, Value value) {
    fmt::format_to(std::back_inserter(text_), "{}{{{}}} {}\n", name_, labels, value);
    return *this;
  }

  const std::string& text() const { return text_; }

 private:
  const std::string_view name_;
  std::string text_;
};

std::string rank_label(const RankStatus& rank) { return fmt::format("rank=\"{}\"", rank.rank); }

template <class Value>
std::string of_each(const JobStatus& job, Family family, const Value& value) {
  for (const RankStatus& rank : job.ranks) family.add(rank_label(rank), value(rank));
  return family.text();
}

template <class Values>
std::string of_each(const JobStatus& job, Family family, const char* key, const Values& values) {
  for (const RankStatus& rank : job.ranks)
    for (const auto& [name, value] : values(rank))
      family.add(fmt::format("{},{}={}", rank_label(rank), key, quoted(name)), value);
  return family.text();
}

std::string job_metrics(const JobStatus& job) {
  const std::string label = fmt::format("job={}", quoted(job.job_id));
  Family info("lockstep_job_info", "gauge", "The job; always 1.");
  info.add(fmt::format("{},program={},host={},state={}", label, quoted(job.program),
                       quoted(job.host), quoted(job.state)),
           1);
  return info.text() +
         Family("lockstep_job_ranks", "gauge", "Ranks on all hosts.")
             .add(label, job.world_size)
             .text() +
         Family("lockstep_job_restarts_total", "counter", "Restarts after failures.")
             .add(label, job.restarts)
             .text() +
         Family("lockstep_job_uptime_seconds", "gauge", "Since the launcher began.")
             .add(label, job.seconds)
             .text();
}

// --- HTTP ----------------------------------------------------------------------------------------

std::string response(std::string_view status, std::string_view body, bool with_body = true) {
  return fmt::format(
      "HTTP/1.1 {}\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\n"
      "Content-Length: {}\r\nConnection: close\r\n\r\n{}",
      status, body.size(), with_body ? body : "");
}

bool is_complete(std::string_view request) {
  return request.find("\r\n\r\n") != request.npos || request.find("\n\n") != request.npos;
}

std::string_view next_word(std::string_view& line) {
  const std::string_view word = line.substr(0, line.find(' '));
  line.remove_prefix(std::min(line.size(), word.size() + 1));
  return word;
}

FileDescriptor listen_at(const std::string& endpoint) {
  const auto colon = endpoint.rfind(':');
  int port = -1;
  if (colon != endpoint.npos)
    std::from_chars(endpoint.data() + colon + 1, endpoint.data() + endpoint.size(), port);
  require(port >= 0 && port <= 65535,
          [&] { return fmt::format("'{}' is not ADDRESS:PORT", clean_text(endpoint)); });
  std::string host = endpoint.substr(0, colon);
  if (host.starts_with('[') && host.ends_with(']')) host = host.substr(1, host.size() - 2);
  const SocketAddress address = numeric_address(host, port);
  FileDescriptor listener = try_to_listen(address);
  if (!listener) throw_not_listening(address, errno);
  return listener;
}

}  // namespace

std::string metrics_of(const JobStatus& job) {
  return job_metrics(job) +
         of_each(job, {"lockstep_rank_up", "gauge", "1 while the rank's process runs."},
                 [](const RankStatus& rank) { return rank.state == "ended" ? 0 : 1; }) +
         of_each(job, {"lockstep_rank_stopped", "gauge", "1 while it is stopped, as by SIGSTOP."},
                 [](const RankStatus& rank) { return rank.state == "stopped" ? 1 : 0; }) +
         of_each(job, {"lockstep_rank_steps_total", "counter", "Training steps."},
                 [](const RankStatus& rank) { return rank.step; }) +
         of_each(job,
                 {"lockstep_rank_phase_seconds_total", "counter",
                  "Time of the training loop in each phase since its first step."},
                 "phase", [](const RankStatus& rank) { return rank.seconds; }) +
         of_each(job,
                 {"lockstep_rank_waited_for_seconds_total", "counter",
                  "The longest times for which the rank has waited for others."},
                 "other", [](const RankStatus& rank) { return rank.waited_for; }) +
         of_each(job,
                 {"lockstep_rank_stood_still_seconds_total", "counter",
                  "Time in which the rank's process did not run at all."},
                 [](const RankStatus& rank) { return rank.stood_still; }) +
         of_each(job,
                 {"lockstep_rank_resident_memory_bytes", "gauge",
                  "Resident memory, with what ranks share."},
                 [](const RankStatus& rank) { return rank.memory; });
}

std::string metrics_response(std::string_view request,
                             const std::function<std::string()>& metrics) {
  std::string_view line = request.substr(0, request.find_first_of("\r\n"));
  const std::string_view method = next_word(line);
  std::string_view path = next_word(line);
  if (!line.starts_with("HTTP/1.")) return response("400 Bad Request", "not an HTTP request\n");
  if (method != "GET" && method != "HEAD")
    return response("405 Method Not Allowed\r\nAllow: GET, HEAD", "only GET and HEAD\n");
  path = path.substr(0, path.find('?'));
  const bool with_body = method == "GET";
  if (path == "/") return response("200 OK", "lockstep run: see /metrics\n", with_body);
  if (path != "/metrics") return response("404 Not Found", "see /metrics\n", with_body);
  return response("200 OK", metrics(), with_body);
}

MetricsService::MetricsService(const std::string& endpoint, std::function<JobStatus()> status,
                               std::chrono::milliseconds client_timeout)
    : ClientService(listen_at(endpoint), client_timeout), status_(std::move(status)) {}

std::string MetricsService::url() const {
  return fmt::format("http://{}/metrics", to_text(local_address(listener())));
}

// One system call per client and loop iteration, however much the client sends.
bool MetricsService::go_on(Client& client) {
  if (!client.rest.empty()) return send(client);
  std::array<char, 4096> buffer;
  const ssize_t length = ::recv(client.socket.get(), buffer.data(), buffer.size(), MSG_DONTWAIT);
  if (length < 0) return errno == EAGAIN || errno == EINTR;
  if (length == 0) return false;
  if (client.is_answered) return true;  // Ignores what follows the request.
  client.request.append(buffer.data(), static_cast<std::size_t>(length));
  answer(client);
  return client.rest.empty() || send(client);
}

void MetricsService::answer(Client& client) const {
  const bool is_too_long = client.request.size() > longest_request;
  if (!is_too_long && !is_complete(client.request)) return;
  client.is_answered = true;
  client.rest = is_too_long
                    ? response("431 Request Header Fields Too Large", "the request is too long\n")
                    : metrics_response(client.request, [this] { return metrics_of(status_()); });
}

// Closing with unread bytes of the request would reset the connection: the client might lose the
// response.
bool MetricsService::send(Client& client) {
  if (!send_rest(client)) return false;
  if (client.rest.empty()) ::shutdown(client.socket.get(), SHUT_WR);
  return true;
}

}  // namespace lockstep::launch

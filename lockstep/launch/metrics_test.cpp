// SPDX-License-Identifier: Apache-2.0
#include "lockstep/launch/metrics.h"

#include <gtest/gtest.h>
#include <sys/socket.h>

#include <array>
#include <chrono>
#include <regex>
#include <set>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/job/store/tcp_socket.h"
#include "tests/fault_of.h"

namespace lockstep::launch::metrics_test {
namespace {

using namespace std::chrono_literals;

bool has(const std::string& text, const std::string& part) { return text.find(part) != text.npos; }

JobStatus example() {
  JobStatus job{.job_id = "a1.b2", .program = "./train --name \"a\\b\"\n\xff"};
  job.host = "node3";
  job.world_size = 4;
  job.restarts = 2;
  job.state = "running";
  job.seconds = 3.5;
  job.ranks.push_back({.rank = 2,
                       .pid = 41,
                       .state = "running",
                       .step = 812,
                       .seconds = {{"data", 0.25}, {"forward", 1.5}},
                       .waited_for = {{"3", 0.125}},
                       .memory = 1 << 20});
  job.ranks.push_back({.rank = 3, .pid = 42, .state = "stopped", .stood_still = 3.25});
  return job;
}

// --- The text ------------------------------------------------------------------------------------

TEST(Metrics, ReportTheValuesOfEachRank) {
  const std::string text = metrics_of(example());
  for (const char* line :
       {"lockstep_job_ranks{job=\"a1.b2\"} 4\n", "lockstep_job_restarts_total{job=\"a1.b2\"} 2\n",
        "lockstep_rank_up{rank=\"2\"} 1\n", "lockstep_rank_stopped{rank=\"2\"} 0\n",
        "lockstep_rank_stopped{rank=\"3\"} 1\n", "lockstep_rank_steps_total{rank=\"2\"} 812\n",
        "lockstep_rank_phase_seconds_total{rank=\"2\",phase=\"forward\"} 1.5\n",
        "lockstep_rank_waited_for_seconds_total{rank=\"2\",other=\"3\"} 0.125\n",
        "lockstep_rank_stood_still_seconds_total{rank=\"3\"} 3.25\n",
        "lockstep_rank_resident_memory_bytes{rank=\"2\"} 1048576\n"})
    EXPECT_TRUE(has(text, std::string("\n") + line)) << line << " in\n" << text;
}

// The part of the grammar that we use.
TEST(Metrics, AreInPrometheusFormat) {
  const std::regex comment("# (HELP|TYPE) ([a-z_]+) .+");
  const std::string value = R"re("([^"\\]|\\["\\n])*")re";
  const std::string label = "[a-z_]+=" + value;
  const std::regex sample("([a-z_]+)\\{" + label + "(," + label + ")*\\} [-+0-9.e]+");
  std::istringstream lines(metrics_of(example()));
  std::set<std::string> families;
  std::string family;
  for (std::string line; std::getline(lines, line);) {
    std::smatch parts;
    if (std::regex_match(line, parts, comment)) {
      const bool is_first = parts[1] == "HELP";
      if (is_first) family = parts[2];
      EXPECT_EQ(families.insert(parts[2]).second, is_first) << line << ": each family is once";
      EXPECT_EQ(parts[2], family) << line;
      continue;
    }
    ASSERT_TRUE(std::regex_match(line, parts, sample)) << line;
    EXPECT_EQ(parts[1], family) << line;
  }
  EXPECT_GE(families.size(), 10U);
}

TEST(Metrics, AreServedAtOnePath) {
  const auto answer = [](const std::string& request) {
    return metrics_response(request, [] { return std::string("figures\n"); });
  };
  const std::string ok = answer("GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n");
  EXPECT_TRUE(ok.starts_with("HTTP/1.1 200 OK\r\n")) << ok;
  EXPECT_TRUE(has(ok, "\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\n")) << ok;
  EXPECT_TRUE(has(ok, "\r\nContent-Length: 8\r\n")) << ok;
  EXPECT_TRUE(ok.ends_with("\r\n\r\nfigures\n")) << ok;
  EXPECT_TRUE(answer("GET /metrics?a=b HTTP/1.0\r\n\r\n").ends_with("figures\n"));
  EXPECT_TRUE(answer("HEAD /metrics HTTP/1.1\r\n\r\n").ends_with("\r\n\r\n"));
  EXPECT_TRUE(answer("GET / HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 200 "));
  EXPECT_TRUE(answer("GET /etc/passwd HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 404 "));
  EXPECT_TRUE(answer("POST /metrics HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 405 "));
  for (const char* odd : {"", "\r\n\r\n", "GET /metrics\r\n\r\n", "\x16\x03\x01\r\n\r\n"})
    EXPECT_TRUE(answer(odd).starts_with("HTTP/1.1 400 ")) << odd;
}

// --- The service ---------------------------------------------------------------------------------

class Served {
 public:
  explicit Served(std::chrono::milliseconds client_timeout = 1min)
      : service(
            "127.0.0.1:0", [] { return example(); }, client_timeout) {}

  FileDescriptor connect() const {
    const std::string address = service.url().substr(std::string("http://").size());
    const auto [host, port] = *host_and_port(address.substr(0, address.find('/')));
    return begin_connecting(numeric_address(host, port));
  }

  void turn() {
    const Deadline limit = std::min(service.deadline(), in(1ms));
    service.serve(next_events({&service}, limit));
  }

  std::string read(const FileDescriptor& socket) {
    std::string text;
    std::array<char, 4096> buffer;
    for (const Deadline end = in(20s); Clock::now() < end;) {
      turn();
      const ssize_t length = ::recv(socket.get(), buffer.data(), buffer.size(), MSG_DONTWAIT);
      if (length == 0 || (length < 0 && errno != EAGAIN)) return text;
      if (length > 0) text.append(buffer.data(), static_cast<std::size_t>(length));
    }
    return text + " and no end";
  }

  MetricsService service;
};

// Ignores errors.
void send(const FileDescriptor& socket, const std::string& text) {
  [[maybe_unused]] const ssize_t sent =
      ::send(socket.get(), text.data(), text.size(), MSG_NOSIGNAL);
}

TEST(MetricsService, AnswersARequestThatComesInChunks) {
  Served served;
  const FileDescriptor client = served.connect();
  for (const char* chunk : {"GET /met", "rics HTTP/1.1\r\nHost: a", "\r\n\r\n"}) {
    served.turn();
    served.turn();
    send(client, chunk);
  }
  const std::string answer = served.read(client);
  EXPECT_TRUE(answer.starts_with("HTTP/1.1 200 OK\r\n")) << answer;
  EXPECT_TRUE(answer.ends_with(metrics_of(example()))) << answer;
}

TEST(MetricsService, AnswersARequestThatCameWhileItStoodStill) {
  Served served(10ms);
  const FileDescriptor client = served.connect();
  send(client, "GET /metrics HTTP/1.1\r\n\r\n");
  served.turn();
  std::this_thread::sleep_for(50ms);  // Longer than a silent client may stay.
  EXPECT_TRUE(served.read(client).starts_with("HTTP/1.1 200 "));
}

TEST(MetricsService, AnswersOtherClientsWhileOneIsSilent) {
  Served served;
  const FileDescriptor silent = served.connect();
  served.turn();
  for (int i = 0; i < 3; ++i) {
    const FileDescriptor client = served.connect();
    send(client, "GET /metrics HTTP/1.1\r\n\r\n");
    const std::string answer = served.read(client);
    EXPECT_TRUE(answer.starts_with("HTTP/1.1 200 ")) << answer;
  }
}

TEST(MetricsService, DropsASilentClient) {
  Served served(10ms);
  EXPECT_EQ(served.read(served.connect()), "");
}

TEST(MetricsService, DropsTheOldestOfTooManyClients) {
  Served served;
  std::vector<FileDescriptor> clients;
  for (int i = 0; i < 17; ++i) {
    clients.push_back(served.connect());
    served.turn();
    served.turn();
  }
  EXPECT_EQ(served.read(clients.front()), "");
  send(clients.back(), "GET /metrics HTTP/1.1\r\n\r\n");
  const std::string newest = served.read(clients.back());
  EXPECT_TRUE(newest.starts_with("HTTP/1.1 200 ")) << newest;
}

TEST(MetricsService, RefusesARequestWithoutEnd) {
  Served served;
  const FileDescriptor client = served.connect();
  served.turn();
  send(client, "GET /metrics HTTP/1.1\r\nX: " + std::string(9000, 'x'));
  const std::string answer = served.read(client);
  EXPECT_TRUE(answer.starts_with("HTTP/1.1 431 ")) << answer;
}

TEST(MetricsService, NamesTheHolderOfAPort) {
  const Served served;
  const std::string address = served.service.url().substr(std::string("http://").size());
  const std::string endpoint = address.substr(0, address.find('/'));
  const auto status = [] { return example(); };
  EXPECT_EQ(test::fault_of([&] { MetricsService(endpoint, status); }), Fault::misuse);
  for (const char* wrong : {"", "9100", "127.0.0.1:", "127.0.0.1:70000", "a.host:9100"})
    EXPECT_EQ(test::fault_of([&] { MetricsService(wrong, status); }), Fault::misuse) << wrong;
}

}  // namespace
}  // namespace lockstep::launch::metrics_test

// Cost of a rendezvous of many hosts, all on this one. One loop runs an agent's side for each host,
// and a thread per rank a store's client.

// SPDX-License-Identifier: Apache-2.0
#include "lockstep/launch/rendezvous.h"

#include <lockstep/comm/comm.h>
#include <poll.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

namespace {

using lockstep::Clock;
using lockstep::Round;

constexpr auto limit = std::chrono::minutes(2);

// All bytes between this host's processes, in packets with headers.
long long bytes_on_loopback() {
  std::ifstream in("/sys/class/net/lo/statistics/rx_bytes");
  long long bytes = 0;
  in >> bytes;
  return bytes;
}

lockstep::RunOptions options_of(int hosts, int ranks, int port) {
  lockstep::RunOptions options;
  options.nproc_per_node = ranks;
  options.hosts.least = options.hosts.most = hosts;
  options.hosts.endpoint = "127.0.0.1:" + std::to_string(port);
  options.hosts.id = "bench";
  return options;
}

// Runs all loops until every host has been ordered to start its ranks.
std::vector<Round> start(const std::vector<std::unique_ptr<lockstep::Rendezvous>>& hosts) {
  std::vector<Round> rounds;
  const auto deadline = Clock::now() + limit;
  while (rounds.size() < hosts.size()) {
    if (Clock::now() > deadline) throw std::runtime_error("the hosts did not all start");
    std::vector<pollfd> entries;
    for (const auto& host : hosts) host->watch(entries);
    ::poll(entries.data(), entries.size(), 10);
    for (const auto& host : hosts) {
      host->serve(entries);
      for (const lockstep::Order& order : host->take_orders())
        if (const auto* start = std::get_if<lockstep::StartRanks>(&order))
          rounds.push_back(start->round);
    }
  }
  return rounds;
}

// As init_process_group(): rank 0 sets a value, and all ranks read it.
void meet(const Round& round, int rank, const std::optional<lockstep::JobToken>& token) {
  const auto colon = round.store.rfind(':');
  lockstep::TcpStore store({.host = round.store.substr(0, colon),
                            .port = std::stoi(round.store.substr(colon + 1)),
                            .member = {.job_id = round.job_id,
                                       .rank = rank,
                                       .world_size = round.world_size,
                                       .attempt = round.attempt},
                            .token = token});
  if (rank == 0) store.set("word", "the word");
  if (store.wait("word", Clock::now() + limit) != "the word")
    throw std::runtime_error("the store says something else");
}

double milliseconds_since(Clock::time_point begin) { return lockstep::seconds_since(begin) * 1e3; }

void measure(int hosts, int ranks) {
  const auto options = options_of(hosts, ranks, lockstep::ReservedPort().number());
  const std::string token(lockstep::make_job_token().text());
  const long long bytes = bytes_on_loopback();
  auto begin = Clock::now();
  std::vector<std::unique_ptr<lockstep::Rendezvous>> all;
  for (int host = 0; host < hosts; ++host) {
    ::setenv("LOCKSTEP_JOB_TOKEN", token.c_str(), 1);  // make_rendezvous() removes it.
    all.push_back(lockstep::make_rendezvous(options));
  }
  const std::vector<Round> rounds = start(all);
  std::printf("agents_ms %.2f\n", milliseconds_since(begin));

  begin = Clock::now();
  std::vector<std::thread> threads;
  for (const Round& round : rounds)
    for (int rank = 0; rank < ranks; ++rank)
      threads.emplace_back([&, rank] { meet(round, round.first_rank + rank, all[0]->token()); });
  for (std::thread& thread : threads) thread.join();
  std::printf("ranks_ms %.2f\nbytes %lld\nconnections %d\n", milliseconds_since(begin),
              bytes_on_loopback() - bytes, hosts - 1 + hosts * ranks);
}

}  // namespace

int main(int argc, char** argv) {
  int hosts = 8;
  int ranks = 8;
  CLI::App app("Measures the cost of a rendezvous of many hosts");
  app.add_option("--hosts", hosts, "How many")->check(CLI::Range(2, 4096))->capture_default_str();
  app.add_option("--ranks", ranks, "Of each")->check(CLI::Range(1, 4096))->capture_default_str();
  CLI11_PARSE(app, argc, argv);
  measure(hosts, ranks);
}

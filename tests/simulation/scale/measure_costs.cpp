// Measures the Costs of this host, in CPU time: prints one NAME=NANOSECONDS a line, and how many
// seconds a second of CPU time takes here.

// SPDX-License-Identifier: Apache-2.0
#include <poll.h>
#include <sys/socket.h>
#include <time.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <set>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "lockstep/base/file_descriptor.h"
#include "lockstep/base/time.h"
#include "lockstep/job/store/tcp_store.h"
#include "lockstep/launch/agent_link.h"
#include "lockstep/launch/coordinator.h"
#include "lockstep/launch/rendezvous.h"

namespace {

using lockstep::Clock;
using lockstep::FileDescriptor;
using lockstep::TcpStore;
using lockstep::TcpStoreServer;
using lockstep::launch::AgentLink;
using lockstep::launch::Coordinator;

constexpr const char* key = "lockstep/elastic/0/vote/1/1234.0";
constexpr auto limit = std::chrono::minutes(2);

double cpu_ns(clockid_t clock) {
  timespec time{};
  ::clock_gettime(clock, &time);
  return static_cast<double>(time.tv_sec) * 1e9 + static_cast<double>(time.tv_nsec);
}

// ns of this thread for each call.
double time_of(int calls, const std::function<void()>& act) {
  const double before = cpu_ns(CLOCK_THREAD_CPUTIME_ID);
  for (int i = 0; i < calls; ++i) act();
  return (cpu_ns(CLOCK_THREAD_CPUTIME_ID) - before) / calls;
}

void print(const char* name, double ns) { std::printf("%s=%.3f\n", name, std::max(0.0, ns)); }

// --- The store -----------------------------------------------------------------------------------

std::set<std::string> threads_here() {
  std::set<std::string> threads;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/task"))
    threads.insert(entry.path());
  return threads;
}

// A store's server, whose thread's CPU time the kernel counts.
class TimedServer {
 public:
  explicit TimedServer(const lockstep::TcpStoreServerOptions& options)
      : before_(threads_here()), server_(options) {
    for (const std::string& thread : threads_here())
      if (!before_.contains(thread)) thread_ = thread;
  }

  int port() const { return server_.port(); }
  double ns() const {
    std::ifstream in(thread_ + "/schedstat");
    double ns = 0;
    if (!(in >> ns)) throw std::runtime_error("no " + thread_ + "/schedstat");
    return ns;
  }

 private:
  const std::set<std::string> before_;
  const TcpStoreServer server_;
  std::string thread_;
};

struct StoreCosts {
  double server = 0;  // ns of each call.
  double client = 0;
};

StoreCosts cost_of(const TimedServer& server, int calls, const std::function<void()>& act) {
  const double before = server.ns();
  const double client = time_of(calls, act);
  std::this_thread::sleep_for(std::chrono::milliseconds(20));  // The server waits again.
  return {(server.ns() - before) / calls, client};
}

void measure_store() {
  const lockstep::JobToken token = lockstep::make_job_token();
  constexpr int waiting = 64;
  const auto member_of = [](int rank) {
    return lockstep::JobMember{.job_id = "scale", .rank = rank, .world_size = waiting + 1};
  };
  const TimedServer server({.job = member_of(0), .token = token});
  const auto connect = [&](int rank) {
    return std::make_unique<TcpStore>(lockstep::TcpStoreOptions{
        .port = server.port(), .member = member_of(rank), .token = token});
  };
  connect(0);  // Resolves the address, and loads OpenSSL's algorithms.
  const StoreCosts connected = cost_of(server, 300, [&] { connect(0); });
  print("server_connect", connected.server);
  print("client_connect", connected.client);

  const auto store = connect(waiting);
  store->set(key, R"({"completed":1000,"leaves":false,"prepared":1000})");
  const StoreCosts request = cost_of(server, 5000, [&] { store->find(key); });
  print("server_request", request.server);
  print("client_request", request.client);

  constexpr std::size_t bytes = std::size_t{1} << 20;
  store->set("large", std::string(bytes, 'x'));
  const StoreCosts large = cost_of(server, 100, [&] { store->find("large"); });
  print("server_byte", (large.server - request.server) / static_cast<double>(bytes));

  std::vector<std::unique_ptr<TcpStore>> clients;
  for (int rank = 0; rank < waiting; ++rank) clients.push_back(connect(rank));
  constexpr int rounds = 20;
  const double before = server.ns();
  for (int round = 0; round < rounds; ++round) {
    const std::string word = "word/" + std::to_string(round);
    std::vector<std::thread> threads;
    for (const auto& client : clients)
      threads.emplace_back([&] { client->wait(word, Clock::now() + limit); });
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    store->set(word, "the word");
    for (std::thread& thread : threads) thread.join();
  }
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  print("server_wait", (server.ns() - before - rounds * request.server) / (rounds * waiting));
}

// Both this thread's part and the other's.
void measure_threads() {
  constexpr int threads = 300;
  const double before = cpu_ns(CLOCK_PROCESS_CPUTIME_ID);
  for (int i = 0; i < threads; ++i) std::thread([] {}).join();
  print("start_thread", (cpu_ns(CLOCK_PROCESS_CPUTIME_ID) - before) / threads);
}

// --- Launchers -----------------------------------------------------------------------------------

struct LinkPair {
  AgentLink one;
  AgentLink other;
};

LinkPair link_pair() {
  std::array<int, 2> ends{};
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends.data()) != 0)
    throw std::runtime_error("socketpair");
  const auto now = Clock::now();
  return {AgentLink(FileDescriptor(ends[0]), now), AgentLink(FileDescriptor(ends[1]), now)};
}

void measure_links() {
  constexpr int frames = 3000;
  LinkPair pair = link_pair();
  const lockstep::launch::StateFrame frame{
      "node00000", "waiting for hosts: 500 of 1000 hosts came", {}};
  double sending = 0;
  double receiving = 0;
  for (int i = 0; i < frames; ++i) {
    sending += time_of(1, [&] { pair.one.send(frame); });
    receiving += time_of(1, [&] {
      std::vector<pollfd> entries;
      pair.other.watch(entries);
      ::poll(entries.data(), entries.size(), 0);
      pair.other.serve(entries, Clock::now());
      if (!pair.other.receive()) throw std::runtime_error("a frame was lost");
    });
  }
  print("link_send", sending / frames);
  print("link_receive", receiving / frames);
}

// A loop's iteration without events: as CoordinatingEnd::watch() and serve().
double time_of_turn(int members, int turns) {
  std::vector<LinkPair> pairs;
  for (int i = 0; i < members; ++i) pairs.push_back(link_pair());
  return time_of(turns, [&] {
    std::vector<pollfd> entries;
    for (const LinkPair& pair : pairs) pair.one.watch(entries);
    ::poll(entries.data(), entries.size(), 0);
    const auto now = Clock::now();
    for (LinkPair& pair : pairs) {
      pair.one.serve(entries, now);
      pair.one.receive();
      pair.one.silent(now);
    }
  });
}

void measure_turns() {
  constexpr int members = 400;
  print("turn_entry", time_of_turn(members, 200) / members);
}

std::unique_ptr<Coordinator> coordinator_of(int hosts, int joined) {
  Coordinator::Rules rules{.job_id = "scale", .hosts = {}};
  rules.hosts.least = rules.hosts.most = hosts;
  auto coordinator = std::make_unique<Coordinator>(rules, Clock::now());
  for (int host = 0; host < joined; ++host)
    coordinator->join(host, {.host = "node", .nproc = 8, .least = hosts, .most = hosts},
                      Clock::now());
  coordinator->take_orders();
  return coordinator;
}

double time_of_state(int hosts, int joined, int turns) {
  const auto coordinator = coordinator_of(hosts, joined);
  std::string state = coordinator->state(1);
  return time_of(turns,
                 [&] {
                   const int part = coordinator->taking_part();
                   for (int host = 0; host < joined; ++host)
                     if (coordinator->state(host, part) == state) state.shrink_to_fit();
                 }) /
         joined;
}

void measure_states() {
  print("state", time_of_state(2000, 1000, 20));
  constexpr int hosts = 2000;
  const auto coordinator = coordinator_of(hosts, hosts);
  int counted = 0;
  print("count_host", time_of(100, [&] { counted += coordinator->taking_part(); }) / hosts);
  if (counted != 100 * hosts) throw std::runtime_error("not all hosts take part");
}

// A host that joins: bench_rendezvous makes all before the first one searches.
void measure_ends() {
  constexpr int ends = 33;
  lockstep::RunOptions options;
  options.nproc_per_node = 8;
  options.hosts.least = options.hosts.most = ends;
  options.hosts.endpoint = "127.0.0.1:" + std::to_string(lockstep::ReservedPort().number());
  options.hosts.id = "scale";
  const std::string token(lockstep::make_job_token().text());
  std::vector<std::unique_ptr<lockstep::Rendezvous>> all;
  const auto make = [&] {
    ::setenv("LOCKSTEP_JOB_TOKEN", token.c_str(), 1);
    all.push_back(lockstep::make_rendezvous(options));
  };
  make();
  print("make_end", time_of(ends - 1, make));
}

// How much slower this host is for its other work.
void measure_slowness() {
  const unsigned cores = std::max(1u, std::thread::hardware_concurrency());
  std::vector<double> spent(cores);
  const auto begin = Clock::now();
  std::vector<std::thread> threads;
  for (unsigned i = 0; i < cores; ++i)
    threads.emplace_back([&, i] {
      while (Clock::now() < begin + std::chrono::milliseconds(400)) {
      }
      spent[i] = cpu_ns(CLOCK_THREAD_CPUTIME_ID);
    });
  for (std::thread& thread : threads) thread.join();
  double sum = 0;
  for (const double ns : spent) sum += ns;
  print("slowness", lockstep::seconds_since(begin) * 1e9 * cores / sum);
}

}  // namespace

int main() {
  try {
    measure_slowness();
    measure_store();
    measure_threads();
    measure_links();
    measure_turns();
    measure_states();
    measure_ends();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "scale_costs: %s\n", error.what());
    return 1;
  }
}

// Costs of a simulated host's work: scale_costs measures them.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>

namespace lockstep::simulation {

// In ns of CPU time, except where noted. The defaults are for tests.
struct Costs {
  // The store's server and its client.
  double server_connect = 60'000;  // Accepts, and proves the token.
  double client_connect = 80'000;
  double server_request = 5000;  // With its reply.
  double client_request = 8000;
  double server_wait = 8000;  // A wait, and the reply that ends it.
  double server_byte = 0.3;   // Each byte of a value.

  // The coordinator's agent.
  double link_send = 6000;  // A frame between launchers.
  double link_receive = 6000;
  double turn_entry = 100;  // Each descriptor, in each iteration of the loop.
  double state = 600;       // A Coordinator::state(), while hosts are missing.
  double count_host = 5;    // Each host that taking_part() examines.

  // In `bench_rendezvous`, whose hosts are all in one process.
  double make_end = 100'000;  // A make_rendezvous().
  double start_thread = 30'000;

  // The network, assumed: one way, and each direction of the coordinator's host.
  double latency_ns = 50'000;
  double gigabits = 25;

  // Sets one of them, such as "link_send=5000". False if there is none with this name.
  bool set(std::string_view text);
};

}  // namespace lockstep::simulation

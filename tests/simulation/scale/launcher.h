// A job's launchers on simulated hosts: the production Coordinator in the loop of its agent, the
// production frames, and heartbeats.
//
// The loop does what launch/coordinating_end.cpp does. Ranks start and end without delay.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/launch/agent_frames.h"
#include "lockstep/launch/coordinator.h"
#include "tests/simulation/scale/server.h"

namespace lockstep::simulation {

// Time of an event on the last host that it concerns; empty if it has not come to all.
struct LauncherTimes {
  std::optional<Time> start = {};  // An order to start the ranks, of the latest attempt.
  std::optional<Time> death = {};  // An order to end them.
};

// As the coordinator's agent has it.
struct SimulatedMember {
  launch::Coordinator::Id id = 0;
  bool joined = false;
  std::string state = {};
  Time last_sign = {};
  Time beat_at = {};
};

struct SimulatedAgent {
  bool is_here = false;
  bool runs = false;
  int attempt = -1;
  int beats = 0;  // Makes heartbeats of an earlier connection void.
  Time last_sign = {};
};

struct LauncherProgress {
  int attempt = -1;
  int nodes = 0;
  int started = 0;  // Hosts, in the latest attempt.
  int to_end = 0;   // Hosts that the latest order to end ranks is for,
  int ended = 0;    // and those that have received it.
  std::optional<Time> started_at = {};
  std::optional<Time> ended_at = {};
};

// All hosts, of which host 0 coordinates.
class LauncherHosts final : public Server {
 public:
  // `place.clients`: bench_rendezvous, where one loop serves all hosts.
  LauncherHosts(Simulation& simulation, const Costs& costs, Place place, int hosts, int ranks,
                int least);

  void begin();                 // All hosts join at once.
  void fail(int host);          // A rank of this host ends.
  void lose(int first, int n);  // These hosts vanish at once.
  void join_again(int first, int n);

  // Resets what reached() reports.
  void expect() { progress_.ended = progress_.to_end = 0; }
  LauncherTimes reached() const;

  int attempts() const { return progress_.attempt + 1; }
  int nodes() const { return progress_.nodes; }  // Of the latest attempt.
  int gave_up() const { return gave_up_; }       // Hosts that received nothing for 3 s.
  int declared() const { return declared_; }     // Hosts that the coordinator counts as lost.
  // Starts of an attempt for the second time, or beside an earlier attempt.
  int overlaps() const { return overlaps_; }

 private:
  double cost_of_turn() const override;
  std::vector<Peer> take_ready() override;
  void on_admitted(Peer peer) override;
  void end_turn() override;

  // The coordinator's side.
  void serve_members();
  void dispatch();
  void send_states();
  void prepare(Round& round);
  void send_order(Peer peer, const Order& order);
  void send_frame(Peer peer, std::size_t bytes, std::function<void()> arrives);
  void obey_here(const Order& order);

  // The agents' side.
  void join(Peer host);
  void post(Peer host, const launch::AgentFrame& frame, std::function<void()> read_there);
  void beat(Peer host, int beats);
  void close_link(Peer host);
  void receive(Peer host, std::function<void()> act);
  void start(Peer host, const Round& round);
  void end(Peer host);

  const int hosts_;
  const int ranks_;
  const launch::Coordinator::Rules rules_;
  launch::Coordinator coordinator_;
  std::map<Peer, SimulatedMember> members_;  // By host; ids increase with the arrival.
  std::map<launch::Coordinator::Id, Peer> hosts_of_;
  std::vector<SimulatedAgent> agents_;
  launch::Coordinator::Id next_id_ = 1;
  Time next_states_ = {};
  bool states_wait_ = false;
  LauncherProgress progress_;
  int gave_up_ = 0;
  int declared_ = 0;
  int overlaps_ = 0;
  Time last_turn_;
};

}  // namespace lockstep::simulation

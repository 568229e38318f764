// Virtual time, and the simulated processes that share it.
//
// All fibers of all processes run on one thread, one after the other. The order depends on the seed
// alone. Time advances from event to event.
//
// Thread safety: one thread.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/base/time.h"
#include "lockstep/comm/elastic_decision.h"
#include "tests/simulation/fiber.h"
#include "tests/simulation/random.h"

namespace lockstep::simulation {

using Duration = std::chrono::nanoseconds;
using Time = Clock::time_point;
using comm::Seat;

constexpr Time begin_of_time{std::chrono::hours(1)};

class Process;
class Simulation;

// One thread of a process.
class Task {
 public:
  Task(Process& process, std::function<void()> body) : process_(process), fiber_(std::move(body)) {}

  Process& process() const { return process_; }
  bool has_ended() const { return fiber_.has_ended() || is_dropped_; }

 private:
  friend class Simulation;

  Process& process_;
  Fiber fiber_;
  std::uint64_t wait_ = 0;  // Number of the current wait; events of earlier ones are ignored.
  bool has_begun_ = false;
  bool is_dropped_ = false;  // Its process died before it began.
  bool is_woken_ = false;
  std::vector<Task*> joining_;
};

class Process {
 public:
  Process(int number, Seat place, int on_host, std::uint64_t seed)
      : id(number), seat(place), host(on_host), random(seed, static_cast<std::uint64_t>(number)) {}

  const int id;
  const Seat seat;  // Rank of the launcher, and number of the process in its place.
  const int host;
  Random random;
  bool is_alive = true;  // False once it was killed or has ended.
  bool was_killed = false;
  bool died_with_host = false;
  bool is_told_to_leave = false;
  Time stopped_until = {};
  int slowness = 1;  // Factor of its latencies and computations.
  std::string outcome = {};

 private:
  friend class Simulation;

  struct Deferred {
    Task* task;
    std::uint64_t wait;
    bool wakes;
  };

  Task& add_task(std::function<void()> body) {
    tasks_.push_back(std::make_unique<Task>(*this, std::move(body)));
    return *tasks_.back();
  }

  std::vector<std::unique_ptr<Task>> tasks_;
  std::vector<Deferred> deferred_;  // Events during a stop.
};

// A rank's name in traces, such as "3.1".
inline std::string name_of(const Process& process) { return comm::text_of(process.seat); }

class Simulation {
 public:
  // Receives the trace, line by line; may be empty.
  using Trace = std::function<void(Time time, const std::string& line)>;
  // Called at each point of a process at which it may die, with the call and the key in the store.
  using Hook = std::function<void(Process& process, std::string_view what, std::string_view key)>;

  explicit Simulation(std::uint64_t seed) : seed_(seed) {}
  ~Simulation() { unwind_all(); }

  std::uint64_t seed() const { return seed_; }
  Time now() const { return now_; }
  std::uint64_t events() const { return events_; }

  void set_trace(Trace trace) { trace_ = std::move(trace); }
  void set_hook(Hook hook) { hook_ = std::move(hook); }
  void trace(const std::string& line) const {
    if (trace_) trace_(now_, line);
  }

  // --- Events

  void at(Time time, std::function<void()> act);
  void after(Duration time, std::function<void()> act) { at(now_ + time, std::move(act)); }

  // Until no event is left, `limit` or end().
  void run(Time limit);
  void end() { is_over_ = true; }

  // Ends all processes, without events. Call it before objects that they use are destroyed.
  void unwind_all();

  // --- Processes

  // The process ends when `body` returns.
  Process& start_process(Seat seat, int host, std::function<void(Process&)> body);
  const std::vector<std::unique_ptr<Process>>& processes() const { return processes_; }
  int living() const { return living_; }

  // Throws Killed if the caller is a fiber of the process.
  void kill(Process& process, bool with_host = false);
  void stop(Process& process, Time until);

  // Calls `ended` when a process was killed or has ended.
  void set_on_end(std::function<void(Process&)> ended) { on_end_ = std::move(ended); }

  // --- Within a fiber

  Task& current() const { return *current_; }
  bool is_in_fiber() const { return current_ != nullptr; }

  // A point at which the process may die.
  void point(std::string_view what, std::string_view key = {});

  // Until wake() or the deadline; false at the deadline.
  bool await(Time deadline);
  void wake(Task& task);
  void sleep(Duration time);

  Task& start_task(std::function<void()> body);
  void join(Task& task);

 private:
  struct Event {
    Time time;
    std::uint64_t number;
    Task* task;  // Null: `act`.
    std::uint64_t wait;
    bool wakes;
    std::function<void()> act;
  };
  struct Later {
    bool operator()(const Event& a, const Event& b) const {
      return a.time != b.time ? a.time > b.time : a.number > b.number;
    }
  };

  void push(Time time, Task* task, std::uint64_t wait, bool wakes, std::function<void()> act);
  void dispatch(Task& task, std::uint64_t wait, bool wakes);
  void resume(Task& task);
  void unwind(Task& task);
  void unwind(Process& process);
  void end_task(Task& task);

  const std::uint64_t seed_;
  Time now_ = begin_of_time;
  std::uint64_t events_ = 0;
  std::uint64_t pushed_ = 0;
  bool is_over_ = false;
  std::vector<Event> heap_;
  std::vector<std::unique_ptr<Process>> processes_;
  int living_ = 0;
  Task* current_ = nullptr;
  Trace trace_;
  Hook hook_;
  std::function<void(Process&)> on_end_ = [](Process&) {};
};

}  // namespace lockstep::simulation

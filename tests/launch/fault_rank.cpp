// A rank that fails or is made to fail, for tests of `lockstep run`: fault_rank WHAT [ARGUMENT].

// SPDX-License-Identifier: Apache-2.0
#include <lockstep/comm/comm.h>
#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <map>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

namespace {

using lockstep::ProcessGroup;

// Prints the last line before all ranks are in collectives.
void say_ready(const ProcessGroup& world, const std::string& text = "ready") {
  world.barrier();
  std::puts(text.c_str());
  std::fflush(stdout);
}

void reduce_once(const ProcessGroup& world) {
  std::vector<float> values(1000, 1.0F);
  world.all_reduce(lockstep::buffer_of(values));
  if (values.front() != static_cast<float>(world.size())) throw std::logic_error("a wrong sum");
}

// Reduces until it is ended, or for `seconds`.
int reduce_for(ProcessGroup& world, double seconds) {
  say_ready(world, "ready " + std::to_string(::getpid()));
  const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
  std::vector<std::int32_t> go_on(1);
  for (std::uint64_t step = 1;; ++step) {
    reduce_once(world);
    world.set_step(step);
    go_on[0] = std::chrono::steady_clock::now() < end ? 1 : 0;
    world.all_reduce(lockstep::buffer_of(go_on), lockstep::ReduceOp::min);
    if (go_on[0] == 0) break;
  }
  lockstep::destroy_process_group(world);
  return 0;
}

int throw_in_main(ProcessGroup& world, const std::string& text) {
  say_ready(world);
  if (world.rank() == 1) throw std::runtime_error(text);
  for (;;) reduce_once(world);
}

int throw_in_thread(ProcessGroup& world, const std::string& text) {
  say_ready(world);
  if (world.rank() == 1) std::thread([&] { throw std::runtime_error(text); }).join();
  for (;;) reduce_once(world);
}

// Rank 1 aborts the group, as a pipeline's stage does, and throws only after the others have
// exited.
int abort_then_throw(ProcessGroup& world, const std::string& text) {
  say_ready(world);
  if (world.rank() != 1) reduce_once(world);
  world.abort("rank 1 threw: " + text);
  std::this_thread::sleep_for(std::chrono::milliseconds(250));
  throw std::runtime_error(text);
}

// Checks that every rank has the same word, so that no rank of another job has joined.
int agree_on(ProcessGroup& world, const std::string& word) {
  for (int i = 0; i < 100; ++i) {
    std::vector<std::int64_t> low{std::stoll(word)}, high = low;
    world.all_reduce(lockstep::buffer_of(low), lockstep::ReduceOp::min);
    world.all_reduce(lockstep::buffer_of(high), lockstep::ReduceOp::max);
    if (low != high) throw std::logic_error("two jobs have met");
  }
  std::printf("%d of %d agree on %s\n", world.rank(), world.size(), word.c_str());
  lockstep::destroy_process_group(world);
  return 0;
}

// Keeps the last rank from a collective by a sleep, a busy loop, a stop, or another call.
int stay_away(ProcessGroup& world, const std::string& how) {
  reduce_once(world);
  say_ready(world);
  const bool stays_away = world.rank() == world.size() - 1;
  if (stays_away && how == "asleep") std::this_thread::sleep_for(std::chrono::hours(1));
  if (stays_away && how == "stopped") ::raise(SIGSTOP);
  volatile bool busy = stays_away && how == "busy";
  while (busy) continue;
  if (stays_away && how == "elsewhere") world.barrier();
  std::vector<float> values(1000);
  world.all_reduce(lockstep::buffer_of(values), lockstep::ReduceOp::sum,
                   {.timeout = std::chrono::seconds(4)});
  return 0;
}

// Rank 1 makes a different call. Each rank then continues in another group. It does so on a thread
// without access to the Error, such as a checkpoint's, or on its main thread. In the latter case it
// also makes calls that the group's thread runs. The main thread then throws the Error, or returns
// 1.
int differ(ProcessGroup& world, const std::string& how) {
  const ProcessGroup other = world.split(0, world.rank());
  std::vector<float> values(1000, 1.0F);
  const auto reduce_in_background = [&](const ProcessGroup& group) {
    const lockstep::Work work = group.all_reduce_async(lockstep::buffer_of(values));
    while (!work.is_completed()) std::this_thread::yield();
    work.wait();
  };
  try {
    if (world.rank() == 1) world.barrier();
    how == "go-on-in-background" ? reduce_in_background(world) : reduce_once(world);
    return 0;
  } catch (const lockstep::Error&) {
    if (how == "go-on")
      other.barrier();
    else if (how == "go-on-in-background")
      reduce_in_background(other);
    else
      std::thread([&] { other.barrier(); }).join();
    if (how == "throw") throw;
    return 1;
  }
}

// Rank 0 sends, destroys its only handle of the group, and continues to run. Rank 1 waits for one
// more message.
int drop_handle(ProcessGroup& world) {
  std::vector<float> word(1, 7.0F);
  {
    const ProcessGroup pair = world.split(0);
    say_ready(world);
    if (world.rank() == 1) {
      pair.recv(lockstep::buffer_of(word), 0);
      pair.recv(lockstep::buffer_of(word), 0);
    } else {
      pair.send(lockstep::buffer_of(word), 1);
      std::this_thread::sleep_for(std::chrono::milliseconds(200));
    }
  }
  std::this_thread::sleep_for(std::chrono::hours(1));
  return 0;
}

// Prints the error of init_process_group() and keeps running, so that its exit reveals nothing.
int fail_to_join() {
  try {
    lockstep::init_process_group();
  } catch (const lockstep::Error& error) {
    std::printf("%s\n", error.what());
    std::fflush(stdout);
    std::this_thread::sleep_for(std::chrono::seconds(3));
    return lockstep::exit_code_of(error.fault());
  }
  return 0;
}

// Throws, as all ranks do, an Error that names rank 1, of a type that only this library would use.
int agree_to_fail(ProcessGroup& world, const std::string& text) {
  class AgreedError : public lockstep::Error {
   public:
    using Error::Error;
  };
  say_ready(world);
  throw AgreedError(lockstep::Fault::misuse, "on rank 1 " + text);
}

int run(const std::string& what, const std::string& argument) {
  if (what == "fail-to-join") return fail_to_join();
  auto world = lockstep::init_process_group();
  if (what == "reduce-for") return reduce_for(world, std::stod(argument));
  if (what == "throw") return throw_in_main(world, argument);
  if (what == "throw-in-thread") return throw_in_thread(world, argument);
  if (what == "abort-then-throw") return abort_then_throw(world, argument);
  if (what == "agree-on") return agree_on(world, argument);
  if (what == "agree-to-fail") return agree_to_fail(world, argument);
  if (what == "stay-away") return stay_away(world, argument);
  if (what == "differ") return differ(world, argument);
  if (what == "drop-handle") return drop_handle(world);
  if (what == "die") {
    say_ready(world);
    if (world.rank() == 1) ::raise(std::stoi(argument));
    for (;;) reduce_once(world);
  }
  throw std::invalid_argument("unknown: " + what);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) return lockstep::exit_usage;
  // Otherwise a survivor that stands still for 0.5 s is ended before it writes anything.
  if (std::getenv("FAULT_RANK_IGNORES_SIGTERM") != nullptr) ::signal(SIGTERM, SIG_IGN);
  if (std::getenv("FAULT_RANK_WITHOUT_RECORD") != nullptr) return run(argv[1], argv[2]);
  return lockstep::record([&] { return run(argv[1], argv[2]); });
}

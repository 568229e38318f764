// SPDX-License-Identifier: Apache-2.0
#include "tests/simulation/simulated_group.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <sstream>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/comm/core/pipe.h"
#include "lockstep/comm/group_state.h"
#include "lockstep/job/store/store.h"

namespace lockstep::simulation {
namespace {

// A group without messages. It has no ranks, because a Mailbox has memory for each.
class NoPipes final : public comm::Pipes {
 public:
  int rank() const override { return 0; }
  int size() const override { return 0; }
  comm::PipeWriter& to(int) override { throw_unsupported(); }
  comm::PipeReader* from(int) override { return nullptr; }
  bool is_opening(int) const override { return false; }
  bool has_left(int) const override { return false; }
  std::optional<Failure> why_left(int) const override { return std::nullopt; }
  void ring(int) override {}
  std::uint32_t bell() const override { return 0; }
  void await(std::uint32_t) override { throw_unsupported(); }
  bool is_aborted() const override { return false; }
  void throw_if_over(const std::string&) const override {}

 private:
  [[noreturn]] static void throw_unsupported() {
    throw Error(Fault::unsupported, "simulated groups carry no messages");
  }
};

class SimulatedBackend final : public comm::Backend {
 public:
  SimulatedBackend(Process& process, std::shared_ptr<SharedGroup> group, int rank)
      : process_(process), group_(std::move(group)), rank_(rank) {}

  std::string_view name() const override { return "simulated"; }
  Place local() const override { return {}; }
  bool native(Operation) const override { return true; }
  void enter(const comm::Collective& collective) override { group_->enter(rank_, collective); }
  const comm::Signature& entered(int rank) const override { return group_->entered(rank_, rank); }
  std::vector<std::string> labels(const comm::Collective&) override {
    return std::vector<std::string>(static_cast<std::size_t>(group_->size()));
  }
  void run(const comm::Collective& collective) override { group_->run(rank_, collective); }
  Allocation allocate(const comm::Collective&) override { throw_unsupported(); }
  RegisteredMemory allocate_local(std::size_t) override { throw_unsupported(); }
  comm::Pipes& pipes() override { return pipes_; }
  std::unique_ptr<comm::Backend> among(const std::vector<int>&, const std::string&,
                                       std::chrono::milliseconds,
                                       const std::function<void()>&) override {
    throw_unsupported();
  }
  void leave() override {
    if (process_.is_alive) group_->leave(rank_);
  }
  void abort(const comm::AbortReason& why) override {
    if (process_.is_alive) group_->abort(rank_, why);
  }

 private:
  [[noreturn]] static void throw_unsupported() {
    throw Error(Fault::unsupported, "a simulated group only reduces");
  }

  Process& process_;
  const std::shared_ptr<SharedGroup> group_;
  const int rank_;
  NoPipes pipes_;
};

class SimulatedContext final : public comm::RankContext {
 public:
  SimulatedContext(std::shared_ptr<SharedGroup> group, int rank)
      : RankContext(std::make_shared<Activity>()), group_(std::move(group)), rank_(rank) {}

  bool has_lost(int rank) const override { return group_->has_lost(rank_, rank); }

 private:
  const std::shared_ptr<SharedGroup> group_;
  const int rank_;
};

std::vector<int> numbers_in(const std::string& text) {
  std::istringstream stream(text);
  std::vector<int> numbers;
  for (int number = 0; stream >> number;) numbers.push_back(number);
  return numbers;
}

}  // namespace

// --- SharedGroup ---------------------------------------------------------------------------------

SharedGroup::SharedGroup(Simulation& simulation, std::string name, std::vector<Process*> members,
                         Mutant mutant)
    : simulation_(simulation),
      name_(std::move(name)),
      members_(std::move(members)),
      mutant_(mutant),
      random_(simulation.seed(), std::hash<std::string>()(name_)),
      state_(members_.size()),
      joined_(members_.size()) {
  for (std::size_t rank = 0; rank < members_.size(); ++rank)
    ranks_.emplace(members_[rank]->id, static_cast<int>(rank));
}

bool SharedGroup::has(const Process& process) const { return ranks_.contains(process.id); }

int SharedGroup::rank_of(const Process& process) const { return ranks_.at(process.id); }

Duration SharedGroup::message_time() {
  return std::chrono::microseconds(random_.one_in(20) ? random_.between(200, 20'000)
                                                      : random_.between(10, 200));
}

void SharedGroup::after(Duration time, std::function<void()> act) {
  simulation_.after(time, [self = shared_from_this(), act = std::move(act)] { act(); });
}

void SharedGroup::wake(int rank) {
  if (Task* const task = state_[static_cast<std::size_t>(rank)].waiting) simulation_.wake(*task);
}

bool SharedGroup::await(int rank, Time deadline) {
  Task*& waiting = state_[static_cast<std::size_t>(rank)].waiting;
  struct Reset {
    Task*& waiting;
    ~Reset() { waiting = nullptr; }
  } const reset{waiting};
  waiting = &simulation_.current();
  return simulation_.await(deadline);
}

bool SharedGroup::has_lost(int rank, int peer) const {
  const auto at = [](int i) { return static_cast<std::size_t>(i); };
  if (members_[at(rank)]->host == members_[at(peer)]->host) return members_[at(peer)]->was_killed;
  return state_[at(rank)].lost.contains(peer);
}

void SharedGroup::throw_if_over(int rank, const std::string& what,
                                const std::vector<bool>& has_come) const {
  const Member& me = state_[static_cast<std::size_t>(rank)];
  if (me.abort) throw comm::GroupAborted(what, *me.abort);
  std::vector<int> gone;
  for (int peer = 0; peer < size(); ++peer) {
    const auto i = static_cast<std::size_t>(peer);
    if (has_lost(rank, peer) || (state_[i].has_left && !has_come[i])) gone.push_back(peer);
  }
  if (gone.empty()) return;
  throw Error(Fault::peer_lost, fmt::format("{}: ranks {} are lost", what, fmt::join(gone, ", ")),
              gone);
}

void SharedGroup::join(int rank, Time deadline, const std::function<void()>& look) {
  joined_[static_cast<std::size_t>(rank)] = true;
  if (++joins_ == size())
    for (int peer = 0; peer < size(); ++peer) after(message_time(), [this, peer] { wake(peer); });
  try {
    while (joins_ < size()) {
      throw_if_over(rank, "connecting to the ranks", joined_);
      if (simulation_.now() >= deadline)
        throw Error(Fault::timeout, "connecting to the ranks: not all have come");
      look();
      await(rank, std::min(deadline, simulation_.now() + wait_slice));
    }
  } catch (const Error& error) {  // Its connections end.
    abort(rank, {.fault = error.fault(), .rank = rank, .reason = "it makes no group"});
    throw;
  }
}

// --- Collectives

void SharedGroup::combine(Round& round, const comm::Collective& collective) {
  if (collective.signature.operation != Operation::all_reduce) return;
  check(collective.signature.dtype == DType::int64, "a simulated group reduces int64 alone");
  const std::size_t count = collective.output.count;
  const auto* const data = static_cast<const std::int64_t*>(collective.output.data);
  if (round.entered == 0) {
    round.sums.assign(data, data + count);
    return;
  }
  for (std::size_t i = 0; i < std::min(count, round.sums.size()); ++i) {
    if (collective.signature.op == ReduceOp::bor)
      round.sums[i] |= data[i];
    else
      round.sums[i] += data[i];
  }
}

void SharedGroup::complete(Round& round) {
  for (int peer = 0; peer < size(); ++peer) {
    const Duration time = message_time();
    round.ends.push_back(simulation_.now() + time);
    after(time, [this, peer] { wake(peer); });
  }
}

void SharedGroup::enter(int rank, const comm::Collective& collective) {
  simulation_.point(collective.label.empty() ? "a collective" : collective.label);
  const auto me = static_cast<std::size_t>(rank);
  const auto n = members_.size();
  const std::string what = "a collective";
  state_[me].sequence = collective.sequence;
  Round& round = rounds_[collective.sequence];
  round.calls.resize(n);
  round.has_entered.resize(n);
  round.calls[me] = collective.signature;
  combine(round, collective);
  round.has_entered[me] = true;
  if (++round.entered == size()) complete(round);
  if (mutant_ == Mutant::rank_does_not_wait && rank == 1) {  // It does not wait for the others.
    round.calls.assign(n, collective.signature);
    ++round.left;
    return;
  }
  const Time deadline = collective.timeout == std::chrono::milliseconds::max()
                            ? no_deadline
                            : simulation_.now() + collective.timeout;
  while (true) {
    const bool is_done = !round.ends.empty() && simulation_.now() >= round.ends[me];
    if (is_done && !state_[me].abort) break;
    if (is_done && random_.one_in(2)) break;
    throw_if_over(rank, what, round.has_entered);
    if (is_done) break;
    if (simulation_.now() >= deadline) {
      std::vector<int> missing;
      for (std::size_t i = 0; i < n; ++i)
        if (!round.has_entered[i]) missing.push_back(static_cast<int>(i));
      throw Error(Fault::timeout, what + ": ranks did not come", missing);
    }
    await(rank, round.ends.empty() ? deadline : std::min(deadline, round.ends[me]));
  }
  ++round.left;
  std::erase_if(rounds_, [&](const auto& old) {
    return old.first < collective.sequence && old.second.left == size();
  });
  simulation_.point("leaves a collective");
}

void SharedGroup::run(int rank, const comm::Collective& collective) {
  const Round& round = rounds_.at(state_[static_cast<std::size_t>(rank)].sequence);
  if (collective.signature.operation == Operation::all_reduce)
    std::memcpy(collective.output.data, round.sums.data(),
                round.sums.size() * sizeof(std::int64_t));
}

const comm::Signature& SharedGroup::entered(int rank, int peer) const {
  return rounds_.at(state_[static_cast<std::size_t>(rank)].sequence)
      .calls[static_cast<std::size_t>(peer)];
}

// --- The state

// As long as the transfer takes, either end may die.
void SharedGroup::send(int rank, int to, std::string state, Time deadline) {
  simulation_.point("sends the state");
  const Time end = simulation_.now() + std::chrono::milliseconds(random_.between(1, 300));
  const std::vector<bool> all(members_.size(), false);
  while (simulation_.now() < end) {
    throw_if_over(rank, "send", all);
    if (simulation_.now() >= deadline) {
      abort(rank, {.fault = Fault::timeout, .rank = rank, .ranks = {to}, .reason = "send"});
      throw Error(Fault::timeout, "send: the other rank did not come", {to});
    }
    await(rank, std::min(end, deadline));
  }
  after(message_time(), [this, to, state = std::move(state)] {
    state_[static_cast<std::size_t>(to)].state = state;
    wake(to);
  });
  simulation_.point("has sent the state");
}

std::string SharedGroup::receive(int rank, int from, Time deadline) {
  simulation_.point("receives the state");
  auto& state = state_[static_cast<std::size_t>(rank)].state;
  const std::vector<bool> all(members_.size(), false);
  while (!state) {
    throw_if_over(rank, "recv", all);
    if (simulation_.now() >= deadline) {
      abort(rank, {.fault = Fault::timeout, .rank = rank, .ranks = {from}, .reason = "recv"});
      throw Error(Fault::timeout, "recv: the other rank did not come", {from});
    }
    await(rank, deadline);
  }
  simulation_.point("has received the state");
  return *state;
}

// --- Ends

void SharedGroup::leave(int rank) {
  state_[static_cast<std::size_t>(rank)].has_left = true;
  for (int peer = 0; peer < size(); ++peer)
    if (peer != rank) after(message_time(), [this, peer] { wake(peer); });
}

void SharedGroup::abort(int rank, const comm::AbortReason& why) {
  for (int peer = 0; peer < size(); ++peer) {
    if (peer == rank) continue;
    after(message_time(), [this, peer, why] {
      auto& reason = state_[static_cast<std::size_t>(peer)].abort;
      if (!reason) reason = why;
      wake(peer);
    });
  }
}

void SharedGroup::note_loss(int rank, int peer) {
  state_[static_cast<std::size_t>(rank)].lost.insert(peer);
  wake(rank);
}

void SharedGroup::note_death(const Process& process) {
  const int dead = rank_of(process);
  // Nothing ends the connections of a host that has lost its power, except a timeout.
  const Duration silence = std::chrono::milliseconds(random_.between(500, 20'000));
  for (int peer = 0; peer < size(); ++peer) {
    if (peer == dead) continue;
    const bool is_here = members_[static_cast<std::size_t>(peer)]->host == process.host;
    Duration time = is_here ? std::chrono::milliseconds(random_.between(0, 20)) : message_time();
    if (!is_here && process.died_with_host) time += silence;
    after(time, [this, peer, dead] { note_loss(peer, dead); });
  }
}

void SharedGroup::lose_connection(const Process& one, const Process& other) {
  const int a = rank_of(one);
  const int b = rank_of(other);
  for (const auto& [from, lost] : {std::pair(a, b), std::pair(b, a)}) {
    for (int peer = 0; peer < size(); ++peer) {
      if (peer == lost || (peer != from && random_.one_in(2))) continue;
      after(message_time(), [this, peer, lost = lost] { note_loss(peer, lost); });
    }
  }
}

// --- SharedGroups --------------------------------------------------------------------------------

std::shared_ptr<SharedGroup> SharedGroups::find(const std::string& name,
                                                const std::string& members) {
  std::weak_ptr<SharedGroup>& known = groups_[name + " " + members];
  if (auto group = known.lock()) return group;
  std::vector<Process*> processes;
  for (const int id : numbers_in(members))
    processes.push_back(simulation_.processes()[static_cast<std::size_t>(id)].get());
  auto group = std::make_shared<SharedGroup>(simulation_, name, processes, mutant_);
  known = group;
  for (const Process* const process : processes)
    if (process->was_killed) group->note_death(*process);
  return group;
}

ProcessGroup SharedGroups::make(Process& process, const InitOptions& options,
                                std::chrono::milliseconds call_timeout) {
  const LaunchEnvironment& who = *options.environment;
  const Time deadline = simulation_.now() + options.timeout;
  const std::string prefix = fmt::format("lockstep/{}/", options.name);
  Store& store = *options.store;
  const auto address = [&](int rank) { return fmt::format("{}address/{}", prefix, rank); };
  store.set(address(who.rank), std::to_string(process.id));
  std::string members = std::to_string(process.id);
  if (who.rank == 0) {
    for (int rank = 1; rank < who.world_size; ++rank)
      members.append(" ").append(store.wait(address(rank), deadline));
    store.set(prefix + "ranks", members);
  } else {
    members = store.wait(prefix + "ranks", deadline);
  }
  const auto ids = numbers_in(members);
  if (static_cast<int>(ids.size()) != who.world_size ||
      ids[static_cast<std::size_t>(who.rank)] != process.id)
    throw Error(Fault::mismatch,
                fmt::format("group {}: rank {} is another process", options.name, who.rank));
  const auto group = find(options.name, members);
  latest_[process.id] = group;
  group->join(who.rank, deadline, [&] { store.find(prefix); });  // As join_hosts().
  ProcessGroup::State::Parts parts;
  parts.identity = {
      .name = options.name, .rank = who.rank, .size = who.world_size, .timeout = call_timeout};
  parts.backend = std::make_shared<SimulatedBackend>(process, group, who.rank);
  parts.rank_context = std::make_shared<SimulatedContext>(group, who.rank);
  return GroupAccess::make(std::move(parts));
}

std::shared_ptr<SharedGroup> SharedGroups::latest(const Process& process) const {
  const auto found = latest_.find(process.id);
  return found == latest_.end() ? nullptr : found->second.lock();
}

void SharedGroups::note_death(const Process& process) {
  for (const auto& [name, weak] : groups_)
    if (const auto group = weak.lock())
      if (group->has(process)) group->note_death(process);
}

void SharedGroups::lose_connection(const Process& one, const Process& other) {
  if (one.host == other.host) return;
  for (const auto& [name, weak] : groups_)
    if (const auto group = weak.lock())
      if (group->has(one) && group->has(other)) group->lose_connection(one, other);
}

}  // namespace lockstep::simulation

// SPDX-License-Identifier: Apache-2.0
#include "lockstep/comm/shm/peer_memory.h"

#include <gtest/gtest.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <ucontext.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <functional>
#include <future>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/comm/process_group.h"
#include "lockstep/comm/reduce/reduce.h"
#include "lockstep/comm/shm/in_place.h"
#include "lockstep/comm/shm/shm_backend.h"
#include "lockstep/comm/shm/staging.h"
#include "lockstep/comm/shm/thread_peers.h"
#include "tests/fault_of.h"
#include "tests/ranks.h"

namespace lockstep::comm::peer_memory_test {
namespace {

using namespace std::chrono_literals;
using test::fault_of;
using test::Rank;
using test::Ranks;
using Bytes = std::vector<std::byte>;

// --- The environment -----------------------------------------------------------------------------

// nullptr unsets it.
class Variable {
 public:
  Variable(const char* name, const char* value) : name_(name) {
    if (const char* const before = std::getenv(name)) before_ = before;
    set(value);
  }
  ~Variable() { set(before_ ? before_->c_str() : nullptr); }
  Variable(const Variable&) = delete;
  Variable& operator=(const Variable&) = delete;

 private:
  void set(const char* value) const {
    if (value == nullptr)
      ::unsetenv(name_);
    else
      ::setenv(name_, value, 1);
  }

  const char* const name_;
  std::optional<std::string> before_;
};

// Ends the calling process: 0 if it could read an integer of this program in process `pid`.
[[noreturn]] void try_to_read(pid_t pid) {
  static const int theirs = 1;
  int mine = 0;
  const iovec here{&mine, sizeof mine};
  const iovec there{const_cast<int*>(&theirs), sizeof theirs};
  const bool done = ::process_vm_readv(pid, &here, 1, &there, 1, 0) == sizeof mine;
  ::_exit(done ? 0 : errno);
}

// Returns the errno with which the kernel refuses that a process reads its sibling's memory, as
// ranks do; 0 if it permits it. Yama, seccomp and other modules may refuse.
int refusal_of_kernel() {
  static const int refusal = [] {
    const pid_t sleeper = ::fork();
    if (sleeper == 0)
      for (;;) ::pause();
    const pid_t reader = ::fork();
    if (reader == 0) try_to_read(sleeper);
    int status = 0;
    ::waitpid(reader, &status, 0);
    ::kill(sleeper, SIGKILL);
    ::waitpid(sleeper, nullptr, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : ENOSYS;
  }();
  return refusal;
}

// Ranks read, regardless of the tests' environment.
class PeerMemoryOfThreads : public testing::Test {
  const Variable default_{PeerMemory::variable, nullptr};
};

// They log whether they read.
class PeerMemoryOfProcesses : public PeerMemoryOfThreads {
  const Variable log_{"LOCKSTEP_LOG", "info"};

 protected:
  void SetUp() override {
    if (const int refusal = refusal_of_kernel())
      GTEST_SKIP() << "the kernel does not let a process read its sibling: "
                   << std::strerror(refusal);
  }
};

bool says(const test::Exit& rank, const std::string& what) {
  return rank.output.find(" " + what + " its peers' memory") != std::string::npos;
}

bool all_have_read(const std::vector<test::Exit>& exits) {
  return std::ranges::all_of(exits, [](const auto& rank) {
    return says(rank, "reads") && !says(rank, "no longer reads");
  });
}

// --- Data ----------------------------------------------------------------------------------------

std::byte value(int from, int to, std::size_t at) {
  return static_cast<std::byte>(at * 7 + at / 251 + static_cast<std::size_t>(from) * 31 +
                                static_cast<std::size_t>(to) * 101);
}

void fill(std::byte* data, int from, int to, std::size_t bytes) {
  for (std::size_t i = 0; i < bytes; ++i) data[i] = value(from, to, i);
}

bool is_filled(const std::byte* data, int from, int to, std::size_t bytes) {
  for (std::size_t i = 0; i < bytes; ++i)
    if (data[i] != value(from, to, i)) return false;
  return true;
}

Buffer elements(std::byte* data, std::size_t count, DType dtype) {
  return {.data = data, .count = count, .dtype = dtype};
}

// --- Every collective, on `count` elements from each rank to each other --------------------------

struct Sizes {
  std::size_t count;
  DType dtype;
  std::size_t offset;  // From an aligned address, for all buffers.

  std::size_t bytes() const { return count * size_of(dtype); }
};

std::string text_of(const char* what, const Sizes& sizes) {
  return std::string(what) + " of " + std::to_string(sizes.count) + " " +
         std::string(name(sizes.dtype)) + " at " + std::to_string(sizes.offset);
}

void all_gather(const ProcessGroup& group, const Sizes& sizes) {
  const auto n = static_cast<std::size_t>(group.size());
  const std::size_t bytes = sizes.bytes();
  Bytes input(bytes + sizes.offset);
  Bytes output(bytes * n + sizes.offset);
  std::byte* const in = input.data() + sizes.offset;
  std::byte* const out = output.data() + sizes.offset;
  std::byte* const own = out + static_cast<std::size_t>(group.rank()) * bytes;
  for (std::byte* const from : {in, own}) {
    fill(from, group.rank(), 0, bytes);
    group.all_gather(elements(from, sizes.count, sizes.dtype),
                     elements(out, sizes.count * n, sizes.dtype));
    for (int peer = 0; peer < group.size(); ++peer)
      ASSERT_TRUE(is_filled(out + static_cast<std::size_t>(peer) * bytes, peer, 0, bytes))
          << text_of("all_gather", sizes) << " from rank " << peer;
    ASSERT_TRUE(is_filled(from, group.rank(), 0, bytes)) << "the input has changed";
    std::fill(output.begin(), output.end(), std::byte{0});
  }
}

void all_to_all(const ProcessGroup& group, const Sizes& sizes) {
  const auto n = static_cast<std::size_t>(group.size());
  const std::size_t bytes = sizes.bytes();
  Bytes input(bytes * n + sizes.offset);
  Bytes output(bytes * n + sizes.offset);
  std::byte* const in = input.data() + sizes.offset;
  std::byte* const out = output.data() + sizes.offset;
  for (int peer = 0; peer < group.size(); ++peer)
    fill(in + static_cast<std::size_t>(peer) * bytes, group.rank(), peer, bytes);
  group.all_to_all(elements(in, sizes.count * n, sizes.dtype),
                   elements(out, sizes.count * n, sizes.dtype));
  for (int peer = 0; peer < group.size(); ++peer)
    ASSERT_TRUE(is_filled(out + static_cast<std::size_t>(peer) * bytes, peer, group.rank(), bytes))
        << text_of("all_to_all", sizes) << " from rank " << peer;
}

void from_and_to_a_root(const ProcessGroup& group, const Sizes& sizes) {
  const int root = group.size() - 1;
  const bool is_root = group.rank() == root;
  const auto n = static_cast<std::size_t>(group.size());
  const std::size_t bytes = sizes.bytes();
  Bytes whole((is_root ? bytes * n : 0) + sizes.offset);
  Bytes part(bytes + sizes.offset);
  std::byte* const all = whole.data() + sizes.offset;
  std::byte* const mine = part.data() + sizes.offset;
  const Buffer part_buffer = elements(mine, sizes.count, sizes.dtype);
  const Buffer whole_buffer =
      is_root ? elements(all, sizes.count * n, sizes.dtype) : Buffer{.dtype = sizes.dtype};

  fill(mine, group.rank(), 1, bytes);
  group.gather(part_buffer, whole_buffer, root);
  for (int peer = 0; is_root && peer < group.size(); ++peer)
    ASSERT_TRUE(is_filled(all + static_cast<std::size_t>(peer) * bytes, peer, 1, bytes))
        << text_of("gather", sizes) << " from rank " << peer;

  for (int peer = 0; is_root && peer < group.size(); ++peer)
    fill(all + static_cast<std::size_t>(peer) * bytes, root, peer, bytes);
  group.scatter(whole_buffer, part_buffer, root);
  ASSERT_TRUE(is_filled(mine, root, group.rank(), bytes)) << text_of("scatter", sizes);

  fill(mine, group.rank(), 2, bytes);
  group.broadcast(part_buffer, root);
  ASSERT_TRUE(is_filled(mine, root, 2, bytes)) << text_of("broadcast", sizes);
}

void all_reduce(const ProcessGroup& group, std::size_t bytes, std::size_t offset) {
  Bytes data(bytes + offset);
  std::byte* const sums = data.data() + offset;
  fill(sums, group.rank(), 3, bytes);
  group.all_reduce(elements(sums, bytes, DType::uint8));
  for (std::size_t i = 0; i < bytes; ++i) {
    std::uint8_t sum = 0;
    for (int peer = 0; peer < group.size(); ++peer)
      sum = static_cast<std::uint8_t>(sum + std::to_integer<int>(value(peer, 3, i)));
    ASSERT_EQ(std::to_integer<int>(sums[i]), sum)
        << "all_reduce of " << bytes << " bytes at " << offset << ": " << i;
  }
}

// Sizes around the limits: least and most data that is read, data that goes past the caches, and
// what one system call reads.
std::vector<Sizes> all_sizes(int ranks) {
  const auto n = static_cast<std::size_t>(ranks);
  constexpr std::size_t kb = 1 << 10;
  std::vector<Sizes> all;
  for (const std::size_t bytes : {64 * kb, 32 * kb * n, 512 * kb, 4096 * kb})
    for (const std::size_t more : {std::size_t{0}, std::size_t{1}, n, 2 * n})
      all.push_back({bytes / n - n + more, DType::uint8, more});
  all.push_back({(8192 * kb) + 1, DType::uint8, 1});
  for (const DType dtype : {DType::float64, DType::bfloat16, DType::boolean})
    all.push_back({9001, dtype, 8});
  all.push_back({0, DType::float32, 0});
  return all;
}

void every_collective(const ProcessGroup& group) {
  for (const Sizes& sizes : all_sizes(group.size())) {
    all_gather(group, sizes);
    all_to_all(group, sizes);
    from_and_to_a_root(group, sizes);
  }
  constexpr std::size_t least = 2 << 20;  // Least bytes for which reads are reduced.
  for (const std::size_t bytes : {least - 1, least, least + 1, 2 * least + 64, 3 * least + 12'345})
    all_reduce(group, bytes, bytes % 16);
}

// --- A kernel that refuses -----------------------------------------------------------------------

// From now on process_vm_readv() of this process gets `action`, unless it reads into three buffers.
void refuse_reads(std::uint32_t action) {
#if defined(__x86_64__)
  constexpr std::uint32_t machine = AUDIT_ARCH_X86_64;
#else
  constexpr std::uint32_t machine = AUDIT_ARCH_AARCH64;
#endif
  std::array<sock_filter, 8> code{{
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, arch)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, machine, 0, 4),
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_process_vm_readv, 0, 2),
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, args[2])),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, 3, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
      BPF_STMT(BPF_RET | BPF_K, action),
  }};
  const sock_fprog program{.len = code.size(), .filter = code.data()};
  ASSERT_EQ(::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
  ASSERT_EQ(::syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC, &program), 0)
      << std::strerror(errno);
}

constexpr std::uint32_t with_eperm = SECCOMP_RET_ERRNO | EPERM;

const Ranks readers("readers", [](const Rank&) {
  ProcessGroup group = init_process_group();
  every_collective(group);
  const ProcessGroup pair = group.split(group.rank() / 2);
  every_collective(pair);
  destroy_process_group(group);
});

TEST_F(PeerMemoryOfProcesses, EveryCollectiveIsRight) {
  for (const int ranks : {2, 3, 4}) {
    const auto exits = readers.run(ranks, 60s);
    EXPECT_TRUE(all_succeeded(exits));
    EXPECT_TRUE(all_have_read(exits));
  }
}

TEST_F(PeerMemoryOfProcesses, LargerGroupsUseStagingBuffers) {
  const auto exits = readers.run(5, 60s);
  EXPECT_TRUE(all_succeeded(exits));
  for (const auto& rank : exits)
    EXPECT_EQ(rank.output.find("group world: rank"), std::string::npos) << rank.output;
}

// All have tried to read before `change` is called.
void do_all_and(const std::function<void()>& change) {
  ProcessGroup group = init_process_group();
  all_gather(group, {100'000, DType::uint8, 0});
  change();
  every_collective(group);
  destroy_process_group(group);
}

// SIGSYS ends it when it reads.
const Ranks readers_that_must_not("readers that must not", [](const Rank& rank) {
  do_all_and([&] {
    if (rank.rank == 1) refuse_reads(SECCOMP_RET_KILL_PROCESS);
  });
});

TEST_F(PeerMemoryOfProcesses, LargeDataIsReadUnlessTheVariableForbidsIt) {
  EXPECT_EQ(readers_that_must_not.run(2, 60s)[1].signal, SIGSYS);
  const Variable forbids(PeerMemory::variable, "0");
  EXPECT_TRUE(all_succeeded(readers_that_must_not.run(2, 60s)));
}

const Ranks must_not_reduce("must not reduce what they read", [](const Rank& rank) {
  ProcessGroup group = init_process_group();
  all_gather(group, {100'000, DType::uint8, 0});
  if (rank.rank == 1) refuse_reads(SECCOMP_RET_KILL_PROCESS);
  all_reduce(group, std::size_t{2} << 20, 0);
  destroy_process_group(group);
});

TEST_F(PeerMemoryOfProcesses, TwoRanksWithACoreEachReduceWhatTheyRead) {
  const bool has_cores = std::thread::hardware_concurrency() > 1;
  EXPECT_EQ(must_not_reduce.run(2, 60s)[1].signal, has_cores ? SIGSYS : 0);
  EXPECT_TRUE(all_succeeded(must_not_reduce.run(3, 60s)));
}

TEST_F(PeerMemoryOfThreads, TheVariableHasTwoValues) {
  const Variable neither(PeerMemory::variable, "no");
  const auto peers = std::make_shared<ThreadPeers>(std::make_shared<ThreadTeam>(1), 0);
  std::string text;
  EXPECT_EQ(fault_of([&] { ShmBackend(peers, "world", 1min); }, &text), Fault::misuse);
  EXPECT_NE(text.find("LOCKSTEP_READ_PEERS='no'"), std::string::npos) << text;
}

const Ranks one_refused("one refused", [](const Rank& rank) {
  if (rank.rank == 1) refuse_reads(with_eperm);
  do_all_and([] {});
});

const Ranks one_declines("one declines", [](const Rank& rank) {
  if (rank.rank == 1) ::setenv(PeerMemory::variable, "0", 1);
  do_all_and([] {});
});

const Ranks refused_later("refused later", [](const Rank& rank) {
  do_all_and([&] {
    if (rank.rank == 1) refuse_reads(with_eperm);
  });
});

TEST_F(PeerMemoryOfProcesses, AllUseStagingBuffersIfTheKernelRefusesOneRank) {
  const auto refused = one_refused.run(3, 60s);
  EXPECT_TRUE(all_succeeded(refused));
  EXPECT_TRUE(says(refused[1], "cannot read"));
  for (const int other : {0, 2}) EXPECT_TRUE(says(refused[other], "no longer reads"));

  EXPECT_TRUE(all_succeeded(one_declines.run(2, 60s)));

  const auto later = refused_later.run(3, 60s);
  EXPECT_TRUE(all_succeeded(later));
  for (const auto& rank : later) EXPECT_TRUE(says(rank, "no longer reads")) << rank.output;
}

// --- The rule ------------------------------------------------------------------------------------

TEST_F(PeerMemoryOfThreads, UnevenPartsAreReadIfTheMeanPartIsLong) {
  const auto reads = [](std::uint64_t elements_of_all, int ranks) {
    const Collective call{.signature = {.count = elements_of_all,
                                        .layout = 2,
                                        .operation = Operation::all_to_all,
                                        .dtype = DType::uint8}};
    return reads_outside(call, ranks, false);
  };
  constexpr std::uint64_t least = 32 << 10;
  EXPECT_TRUE(reads(least * 4, 2));
  EXPECT_FALSE(reads(least * 4 - 1, 2));
  EXPECT_TRUE(reads(least * 16, 4));
  EXPECT_FALSE(reads(least * 16 - 1, 4));
  EXPECT_FALSE(reads(least * 25, 5));
}

TEST_F(PeerMemoryOfThreads, LargeDataOfTwoRanksIsReduced) {
  const auto reads = [](std::uint64_t bytes, int ranks, bool crowded) {
    const Collective call{.signature = {
                              .count = bytes,
                              .operation = Operation::all_reduce,
                              .dtype = DType::uint8,
                          }};
    return reads_outside(call, ranks, crowded);
  };
  constexpr std::uint64_t least = 2 << 20;
  EXPECT_TRUE(reads(least, 2, false));
  EXPECT_FALSE(reads(least - 1, 2, false));
  EXPECT_FALSE(reads(least, 2, true));
  EXPECT_FALSE(reads(least, 3, false));
}

// --- Threads -------------------------------------------------------------------------------------

// Threads that read, in tests whose data outlives all ranks. Read number `fails` fails after half
// of its data. `pause` is called in the middle of each read.
class ReadingPeers final : public ThreadPeers {
 public:
  ReadingPeers(std::shared_ptr<ThreadTeam> team, int rank, int fails, std::function<void()> pause)
      : ThreadPeers(std::move(team), rank), fails_(fails), pause_(std::move(pause)) {}

  int reads() const { return reads_; }

  bool may_read() const override { return true; }

  bool read(int, const Mark&, std::byte* to, std::uint64_t from, std::size_t bytes) override {
    // NOLINTNEXTLINE(performance-no-int-to-ptr)
    const auto* const data = reinterpret_cast<const std::byte*>(from);
    const std::size_t half = bytes / 2;
    if (bytes == 1) return std::copy_n(data, 1, to) != nullptr;  // Tries it.
    const bool fails = ++reads_ == fails_;
    std::copy_n(data, half, to);
    pause_();
    if (!fails) std::copy_n(data + half, bytes - half, to + half);
    return !fails;
  }

  // Waits throw when `loss` does.
  void throw_if_lost(std::string_view context) override {
    if (loss) loss();
    ThreadPeers::throw_if_lost(context);
  }

  std::function<void()> loss;

 private:
  const int fails_;
  const std::function<void()> pause_;
  int reads_ = 0;
};

// One rank of a group of threads, in which rank 1 has the other arguments.
struct Reader {
  Reader(
      const std::shared_ptr<ThreadTeam>& team, int number, int fails = 0,
      std::function<void()> pause = [] {})
      : rank(number),
        ranks(team->size()),
        peers(std::make_shared<ReadingPeers>(
            team, rank, rank == 1 ? fails : 0, rank == 1 ? std::move(pause) : [] {})),
        backend(peers, "world", 1min) {}

  void call(const Collective& collective) {
    backend.enter(collective);
    backend.run(collective);
  }

  const int rank;
  const int ranks;
  const std::shared_ptr<ReadingPeers> peers;
  ShmBackend backend;
};

void run_readers(int ranks,
                 const std::function<void(const std::shared_ptr<ThreadTeam>&, int)>& body) {
  const auto team = std::make_shared<ThreadTeam>(ranks);
  std::vector<std::jthread> threads;
  for (int rank = 0; rank < ranks; ++rank) threads.emplace_back([&, rank] { body(team, rank); });
}

constexpr std::size_t part = 150'001;

Collective collective_of(Operation operation, Buffer input, Buffer output,
                         std::size_t count = part) {
  return {.signature = {.count = count, .operation = operation, .dtype = DType::uint8},
          .input = input,
          .output = output};
}

Buffer bytes_of(std::byte* data, std::size_t count) { return elements(data, count, DType::uint8); }

void gather_all(Reader& reader) {  // Its input is inside its output.
  Bytes output(part * static_cast<std::size_t>(reader.ranks));
  std::byte* const own = output.data() + static_cast<std::size_t>(reader.rank) * part;
  fill(own, reader.rank, 0, part);
  reader.call(collective_of(Operation::all_gather, bytes_of(own, part),
                            bytes_of(output.data(), output.size())));
  for (int peer = 0; peer < reader.ranks; ++peer)
    EXPECT_TRUE(is_filled(output.data() + static_cast<std::size_t>(peer) * part, peer, 0, part))
        << "rank " << reader.rank << " from rank " << peer;
}

void exchange_all(Reader& reader) {
  const auto n = static_cast<std::size_t>(reader.ranks);
  Bytes input(part * n);
  Bytes output(part * n);
  for (std::size_t peer = 0; peer < n; ++peer)
    fill(input.data() + peer * part, reader.rank, static_cast<int>(peer), part);
  reader.call(collective_of(Operation::all_to_all, bytes_of(input.data(), input.size()),
                            bytes_of(output.data(), output.size())));
  for (int peer = 0; peer < reader.ranks; ++peer)
    EXPECT_TRUE(
        is_filled(output.data() + static_cast<std::size_t>(peer) * part, peer, reader.rank, part));
}

void gather_to_rank_1(Reader& reader) {
  Bytes output(reader.rank == 1 ? part * static_cast<std::size_t>(reader.ranks) : 0);
  Bytes input(part);
  std::byte* const own = reader.rank == 1 ? output.data() + part : input.data();
  fill(own, reader.rank, 0, part);
  Collective call =
      collective_of(Operation::gather, bytes_of(own, part), bytes_of(output.data(), output.size()));
  call.signature.root = 1;
  reader.call(call);
  for (int peer = 0; reader.rank == 1 && peer < reader.ranks; ++peer)
    EXPECT_TRUE(is_filled(output.data() + static_cast<std::size_t>(peer) * part, peer, 0, part));
}

void scatter_from_rank_0(Reader& reader) {
  Bytes input(reader.rank == 0 ? part * static_cast<std::size_t>(reader.ranks) : 0);
  Bytes output(part);
  for (int peer = 0; reader.rank == 0 && peer < reader.ranks; ++peer)
    fill(input.data() + static_cast<std::size_t>(peer) * part, 0, peer, part);
  std::byte* const own = reader.rank == 0 ? input.data() : output.data();
  reader.call(
      collective_of(Operation::scatter, bytes_of(input.data(), input.size()), bytes_of(own, part)));
  EXPECT_TRUE(is_filled(own, 0, reader.rank, part));
}

void broadcast_from_rank_0(Reader& reader) {
  Bytes data(part);
  fill(data.data(), reader.rank, 5, part);
  reader.call(collective_of(Operation::broadcast, {}, bytes_of(data.data(), part)));
  EXPECT_TRUE(is_filled(data.data(), 0, 5, part));
}

void expect_to_begin_anew(int ranks, void (*call)(Reader&), int fails = 1) {
  run_readers(ranks, [=](const auto& team, int rank) {
    Reader reader(team, rank, fails);
    for (int i = 0; i < 3; ++i) call(reader);
    EXPECT_TRUE(rank != 1 || reader.peers->reads() == fails) << reader.peers->reads();
  });
}

// A rank's slice has six chunks. Then it reads the other slice.
void sum_of_all(Reader& reader) {
  constexpr std::size_t count = std::size_t{3} << 20;
  Bytes data(count);
  fill(data.data(), reader.rank, 6, count);
  reader.call(collective_of(Operation::all_reduce, {}, bytes_of(data.data(), count), count));
  std::size_t wrong = 0;
  for (std::size_t i = 0; i < count; ++i) {
    const int sum = std::to_integer<int>(value(0, 6, i)) + std::to_integer<int>(value(1, 6, i));
    wrong += data[i] == static_cast<std::byte>(sum) ? 0 : 1;
  }
  EXPECT_EQ(wrong, 0U) << "on rank " << reader.rank;
}

TEST_F(PeerMemoryOfThreads, ARankThatCouldNotReadASliceMakesAllFinishWithStagingBuffers) {
  if (std::thread::hardware_concurrency() < 2) GTEST_SKIP() << "it is read where ranks have cores";
  for (const int fails : {1, 2, 4, 6, 7}) expect_to_begin_anew(2, sum_of_all, fails);
  expect_to_begin_anew(2, sum_of_all, /*fails=*/2 * 7 + 3);
}

TEST_F(PeerMemoryOfThreads, ARankThatCannotReadAllDataMakesAllRanksRestart) {
  for (const auto call : {gather_all, exchange_all, gather_to_rank_1, scatter_from_rank_0})
    expect_to_begin_anew(3, call);
  // It is read where each rank has a core.
  if (std::thread::hardware_concurrency() > 1) expect_to_begin_anew(2, broadcast_from_rank_0);
}

TEST_F(PeerMemoryOfThreads, NoRankReadsAnyMoreAfterOneCouldNot) {
  for (const int fails : {2, 3})
    run_readers(3, [=](const auto& team, int rank) {
      Reader reader(team, rank, fails);
      for (int call = 0; call < 4; ++call) gather_all(reader);
      EXPECT_EQ(reader.peers->reads(), rank == 1 ? fails : fails == 2 ? 2 : 4);
    });
}

TEST_F(PeerMemoryOfThreads, AnEmptyPartIsNotRead) {
  run_readers(3, [](const auto& team, int rank) {
    Reader reader(team, rank);
    const std::vector<std::size_t> counts{0, part, 0};
    Bytes input(counts[static_cast<std::size_t>(rank)]);
    Bytes output(part);
    fill(input.data(), rank, 0, input.size());
    Collective call = collective_of(Operation::all_gather, bytes_of(input.data(), input.size()),
                                    bytes_of(output.data(), part));
    call.signature.layout = 2;
    call.counts = counts;
    reader.call(call);
    EXPECT_TRUE(is_filled(output.data(), 1, 0, part));
    EXPECT_EQ(reader.peers->reads(), rank == 1 ? 0 : 1);
  });
}

TEST_F(PeerMemoryOfThreads, NoRankReturnsWhileAnotherOneReadsItsInput) {
  run_readers(2, [](const auto& team, int rank) {
    Reader reader(team, rank, 0, [] { std::this_thread::sleep_for(5ms); });
    Bytes input(part);
    Bytes output(2 * part);
    for (int call = 0; call < 5; ++call) {
      fill(input.data(), rank, call, part);
      reader.call(collective_of(Operation::all_gather, bytes_of(input.data(), part),
                                bytes_of(output.data(), 2 * part)));
      std::ranges::fill(input, std::byte{0xEE});
      EXPECT_TRUE(is_filled(output.data() + part * static_cast<std::size_t>(1 - rank), 1 - rank,
                            call, part));
    }
  });
}

// Rank 0's call fails while rank 1 reads its input. Rank 0's caller overwrites the input before
// rank 1 continues. Rank 1 must wait for rank 0 instead of returning the data that it read.
TEST_F(PeerMemoryOfThreads, ARankThatReadsFreedMemoryDoesNotReturn) {
  std::array<Bytes, 2> inputs{Bytes(part), Bytes(part)};
  std::promise<void> reads;
  std::promise<void> freed;
  const std::shared_future<void> is_read = reads.get_future().share();
  const std::shared_future<void> is_freed = freed.get_future().share();
  const auto pause = [&] {
    reads.set_value();
    EXPECT_EQ(is_freed.wait_for(30s), std::future_status::ready);
  };
  run_readers(2, [&](const auto& team, int rank) {
    Reader reader(team, rank, 0, pause);
    Bytes& input = inputs[static_cast<std::size_t>(rank)];
    Bytes output(2 * part);
    Collective call = collective_of(Operation::all_gather, bytes_of(input.data(), part),
                                    bytes_of(output.data(), 2 * part));
    call.timeout = rank == 1 ? 1s : 20s;
    if (rank == 1) {
      EXPECT_EQ(fault_of([&] { reader.call(call); }), Fault::timeout);
      return;
    }
    // Once rank 0 has read, it waits for rank 1 to have read.
    reader.peers->loss = [&] {
      if (reader.peers->reads() == 0 || is_read.wait_for(30s) != std::future_status::ready) return;
      throw Error(Fault::peer_lost, "the test");
    };
    EXPECT_EQ(fault_of([&] { reader.call(call); }), Fault::peer_lost);
    std::ranges::fill(input, std::byte{0xEE});
    freed.set_value();
  });
}

TEST_F(PeerMemoryOfThreads, ARankLooksWhetherTheGroupIsOverAsItReads) {
  constexpr std::size_t large = std::size_t{20} << 20;
  std::vector<Bytes> inputs(2, Bytes(large));  // A rank that has aborted may still be read.
  run_readers(2, [&](const auto& team, int rank) {
    ShmBackend* mine = nullptr;
    Reader reader(team, rank, 0,
                  [&] { mine->abort({.fault = Fault::aborted, .rank = 1, .reason = "the test"}); });
    mine = &reader.backend;
    Bytes& input = inputs[static_cast<std::size_t>(rank)];
    Bytes output(2 * large);
    const Collective call = collective_of(Operation::all_gather, bytes_of(input.data(), large),
                                          bytes_of(output.data(), 2 * large), large);
    EXPECT_EQ(fault_of([&] { reader.call(call); }), Fault::aborted);
    EXPECT_TRUE(rank == 0 || reader.peers->reads() == 1) << reader.peers->reads();
  });
}

// --- The bits of a reduction ---------------------------------------------------------------------

// One rank of a group of threads, which reduces in both ways, for any size.
class Reducer {
 public:
  Reducer(const std::shared_ptr<ThreadTeam>& team, int rank)
      : peers_(std::make_shared<ReadingPeers>(team, rank, 0, [] {})),
        size_(team->size()),
        segment_(memory_of(*peers_), size_),
        memory_(peers_, segment_, "world"),
        barrier_(peers_, segment_, "world", 1min, [] {}),
        regions_(peers_, 1min, [](int) {}),
        reduction_(size_),
        staging_(segment_, barrier_, reduction_, rank, size_),
        in_place_(segment_, barrier_, regions_, memory_, reduction_, rank, size_) {}

  int reads() const { return peers_->reads(); }

  void read(const Collective& call) {
    enter(call, Regions::outside(call.output));
    EXPECT_TRUE(in_place_.run(call));
    barrier_.step(call);
  }

  void stage(const Collective& call) {
    staging_.begin(call);
    staging_.put_first(call);
    enter(call, 0);
    staging_.run(call);
  }

 private:
  static SharedMemory memory_of(Peers& peers) {
    const std::size_t bytes = GroupSegment::bytes_for(peers.size());
    const std::size_t head = GroupSegment::head_bytes(peers.size());
    if (peers.rank() == 0) return peers.offer("segment", bytes, head);
    return peers.fetch(0, "segment", bytes, in(1min), [] {});
  }

  void enter(const Collective& call, std::uint64_t output) {
    RankBlock::Entry& mine = barrier_.next_entry();
    mine.signature = call.signature;
    mine.input = 0;
    mine.output = output;
    barrier_.enter(call);
  }

  const std::shared_ptr<ReadingPeers> peers_;
  const int size_;
  const GroupSegment segment_;
  PeerMemory memory_;
  Barrier barrier_;
  Regions regions_;
  Reduction reduction_;
  Staging staging_;
  InPlace in_place_;
};

constexpr int op_count = 8;

void expect_equal_bits(Reducer& reducer, int rank, DType dtype, ReduceOp op, std::size_t bytes) {
  Bytes read(bytes);
  std::mt19937_64 random(static_cast<std::uint64_t>(rank));
  for (std::byte& byte : read) byte = static_cast<std::byte>(random() >> 13);
  Bytes staged = read;
  Collective call = collective_of(Operation::all_reduce, {},
                                  elements(read.data(), bytes / size_of(dtype), dtype));
  call.signature.count = call.output.count;
  call.signature.dtype = dtype;
  call.signature.op = op;
  reducer.read(call);
  call.output.data = staged.data();
  reducer.stage(call);
  EXPECT_TRUE(read == staged) << bytes << " bytes of " << name(dtype) << ", operation "
                              << static_cast<int>(op) << ", rank " << rank;
}

// Random bits are also NaNs, infinities and subnormal numbers.
TEST_F(PeerMemoryOfThreads, ReductionsOfWhatIsReadHaveTheBitsOfStagedOnes) {
  constexpr std::size_t chunk = std::size_t{256} << 10;
  for (const int ranks : {2, 3, 4})
    run_readers(ranks, [=](const auto& team, int rank) {
      Reducer reducer(team, rank);
      const auto n = static_cast<std::size_t>(ranks);
      const std::size_t two_chunks = n * (chunk + 8 * 1001);
      for (int dtype = 0; dtype < dtype_count; ++dtype)
        for (int op = 0; op < op_count; ++op) {
          const auto type = static_cast<DType>(dtype);
          const auto operation = static_cast<ReduceOp>(op);
          if (reduce_function(type, operation) == nullptr) continue;
          for (const std::size_t bytes : {std::size_t{8}, std::size_t{8 * 1237}})
            expect_equal_bits(reducer, rank, type, operation, bytes);
          if (operation == ReduceOp::sum || type == DType::float32)
            expect_equal_bits(reducer, rank, type, operation, two_chunks);
        }
      EXPECT_GT(reducer.reads(), 0);
    });
}

// A rank that has left or failed frees its memory, which the others would still have to read.
TEST_F(PeerMemoryOfThreads, RanksThatAreThreadsDoNotReadEachOther) {
  class Watched final : public ThreadPeers {
   public:
    using ThreadPeers::ThreadPeers;
    bool read(int, const Mark&, std::byte*, std::uint64_t, std::size_t) override {
      ADD_FAILURE();
      return false;
    }
  };
  run_readers(2, [](const auto& team, int rank) {
    ShmBackend backend(std::make_shared<Watched>(team, rank), "world", 1min);
    Bytes input(part);
    Bytes output(2 * part);
    fill(input.data(), rank, 0, part);
    const Collective call = collective_of(Operation::all_gather, bytes_of(input.data(), part),
                                          bytes_of(output.data(), 2 * part));
    backend.enter(call);
    backend.run(call);
    for (const int peer : {0, 1})
      EXPECT_TRUE(is_filled(output.data() + static_cast<std::size_t>(peer) * part, peer, 0, part));
  });
}

// --- Peers that die or stop ----------------------------------------------------------------------

// Exchanges 2 MB between each two ranks, with other bytes each time.
class Exchange {
 public:
  explicit Exchange(const ProcessGroup& group)
      : group_(group),
        input_(bytes * static_cast<std::size_t>(group.size())),
        output_(input_.size()) {}

  void once() {
    ++calls_;
    std::ranges::fill(input_, byte_of(group_.rank()));
    group_.all_to_all(elements(input_.data(), input_.size(), DType::uint8),
                      elements(output_.data(), output_.size(), DType::uint8));
    for (int peer = 0; peer < group_.size(); ++peer) {
      const std::byte* const theirs = output_.data() + static_cast<std::size_t>(peer) * bytes;
      ASSERT_TRUE(std::all_of(theirs, theirs + bytes,
                              [expected = byte_of(peer)](std::byte is) { return is == expected; }))
          << "call " << calls_ << " from rank " << peer;
    }
  }

 private:
  static constexpr std::size_t bytes = std::size_t{2} << 20;

  std::byte byte_of(int rank) const { return static_cast<std::byte>(calls_ * 8 + rank); }

  const ProcessGroup& group_;
  Bytes input_;
  Bytes output_;
  int calls_ = 0;
};

// Sums 4 MB, with other bytes each time.
class Sum {
 public:
  explicit Sum(const ProcessGroup& group) : group_(group), data_(std::size_t{4} << 20) {}

  void once() {
    ++calls_;
    std::ranges::fill(data_, static_cast<std::byte>(calls_ + group_.rank()));
    group_.all_reduce(elements(data_.data(), data_.size(), DType::uint8));
    const int n = group_.size();
    const auto sum = static_cast<std::byte>(n * calls_ + n * (n - 1) / 2);
    ASSERT_TRUE(std::ranges::all_of(data_, [=](std::byte is) { return is == sum; }))
        << "call " << calls_;
  }

 private:
  const ProcessGroup& group_;
  Bytes data_;
  int calls_ = 0;
};

// Before a rank has died, or a test fails.
constexpr int most_calls = 1'000'000;

template <class Call>
void let_one_die(const Rank& rank) {
  ProcessGroup group = init_process_group();
  Call call(group);
  call.once();
  std::jthread killer;
  if (rank.rank == 1)
    killer = std::jthread([] {
      std::this_thread::sleep_for(20ms);
      ::raise(SIGKILL);
    });
  try {
    for (int i = 0; i < most_calls && !testing::Test::HasFailure(); ++i) call.once();
    FAIL() << "rank 1 has not died";
  } catch (const Error& error) {
    ASSERT_EQ(error.fault(), Fault::peer_lost) << error.what();
    ASSERT_TRUE(error.failure()) << error.what();
    EXPECT_EQ(error.failure()->rank, 1);
    EXPECT_EQ(error.failure()->signal, SIGKILL);
  }
}

const Ranks one_dies("one dies", let_one_die<Exchange>);
const Ranks one_of_two_dies("one of two dies", let_one_die<Sum>);

TEST_F(PeerMemoryOfProcesses, ARankThatDiesIsNamedAndNothingIsReadHalf) {
  for (int i = 0; i < 5; ++i) {
    const auto exits = one_dies.run(3, 20s);
    EXPECT_EQ(exits[1].signal, SIGKILL);
    for (const int survivor : {0, 2}) EXPECT_EQ(exits[survivor].code, 0) << exits[survivor].output;

    const auto two = one_of_two_dies.run(2, 20s);
    EXPECT_EQ(two[1].signal, SIGKILL);
    EXPECT_EQ(two[0].code, 0) << two[0].output;
  }
}

#if defined(__x86_64__)
// From now on, calls `before` with the number of each read of this process, before the read.
std::function<void(int)> before_read;

void read_after_a_signal(int, siginfo_t*, void* context) {
  auto& registers = static_cast<ucontext_t*>(context)->uc_mcontext.gregs;
  static int reads = 0;
  before_read(++reads);
  // The filter permits reads into three buffers.
  std::array<iovec, 3> here{};
  // NOLINTNEXTLINE(performance-no-int-to-ptr)
  std::copy_n(reinterpret_cast<const iovec*>(registers[REG_RSI]), 2, here.begin());
  const long done = ::syscall(SYS_process_vm_readv, registers[REG_RDI], here.data(), here.size(),
                              registers[REG_R10], registers[REG_R8], 0);
  registers[REG_RAX] = done < 0 ? -errno : done;
}

void call_before_reads(std::function<void(int)> before) {
  before_read = std::move(before);
  struct sigaction action {};
  action.sa_sigaction = read_after_a_signal;
  action.sa_flags = SA_SIGINFO | SA_NODEFER;
  ASSERT_EQ(::sigaction(SIGSYS, &action, nullptr), 0);
  refuse_reads(SECCOMP_RET_TRAP);
}

void wait_for_end(pid_t pid) {
  for (char state = ' '; state != 'Z';) {
    std::ifstream file("/proc/" + std::to_string(pid) + "/stat");
    std::string number;
    std::string name;
    if (!(file >> number >> name >> state)) return;
    std::this_thread::sleep_for(1ms);
  }
}

// Rank 1 dies before one of the given number of reads of a call. All others have entered that call,
// and may wait for its death before they read.
template <class Call>
void die_in_a_read(int reads, int dying_read, bool others_read_after) {
  ProcessGroup group = init_process_group();
  std::vector<std::int64_t> pids(static_cast<std::size_t>(group.size()));
  const std::int64_t pid = ::getpid();
  group.all_gather({.data = const_cast<std::int64_t*>(&pid), .count = 1, .dtype = DType::int64},
                   {.data = pids.data(), .count = pids.size(), .dtype = DType::int64});
  Call call(group);
  call.once();  // All have tried to read.
  if (group.rank() == 1)
    call_before_reads([=](int read) {
      if (read == dying_read) ::raise(SIGKILL);
    });
  else if (others_read_after)
    call_before_reads([&](int read) {
      if (read > (dying_read - 1) / reads * reads) wait_for_end(static_cast<pid_t>(pids[1]));
    });
  try {
    for (int i = 0; i < most_calls && !testing::Test::HasFailure(); ++i) call.once();
    FAIL() << "rank 1 has not died";
  } catch (const Error& error) {
    ASSERT_EQ(error.fault(), Fault::peer_lost) << error.what();
    ASSERT_TRUE(error.failure()) << error.what();
    EXPECT_EQ(error.failure()->rank, 1);
    EXPECT_EQ(error.failure()->signal, SIGKILL);
  }
}

const Ranks dies_first("dies in its first read",
                       [](const Rank&) { die_in_a_read<Exchange>(2, 1, false); });
const Ranks dies_second("dies in its second read",
                        [](const Rank&) { die_in_a_read<Exchange>(2, 2, false); });
const Ranks dies_before("dies before others read",
                        [](const Rank&) { die_in_a_read<Exchange>(2, 1, true); });
const Ranks dies_in_third_call("dies in its third call",
                               [](const Rank&) { die_in_a_read<Exchange>(2, 6, true); });

// A slice has eight chunks. Then ranks read the other slice.
const Ranks dies_at_a_chunk("dies at a chunk",
                            [](const Rank&) { die_in_a_read<Sum>(9, 5, false); });
const Ranks dies_before_a_slice("dies before others read a slice",
                                [](const Rank&) { die_in_a_read<Sum>(9, 1, true); });
const Ranks dies_at_a_slice("dies at a slice",
                            [](const Rank&) { die_in_a_read<Sum>(9, 2 * 9, false); });

void expect_rank_1_to_die(const Ranks& ranks, int count) {
  for (int i = 0; i < 3; ++i) {
    const auto begin = std::chrono::steady_clock::now();
    const auto exits = ranks.run(count, 30s);
    EXPECT_LT(std::chrono::steady_clock::now() - begin, 15s);
    EXPECT_EQ(exits[1].signal, SIGKILL);
    for (int survivor = 0; survivor < count; survivor += 2)
      EXPECT_EQ(exits[survivor].code, 0) << exits[survivor].output;
  }
}

TEST_F(PeerMemoryOfProcesses, ARankThatDiesInAReadIsNamed) {
  for (const Ranks* ranks : {&dies_first, &dies_second, &dies_before, &dies_in_third_call})
    expect_rank_1_to_die(*ranks, 3);
  if (std::thread::hardware_concurrency() < 2) return;  // They do not read the data to reduce.
  for (const Ranks* ranks : {&dies_at_a_chunk, &dies_before_a_slice, &dies_at_a_slice})
    expect_rank_1_to_die(*ranks, 2);
}
#endif

template <class Call>
void stop_one(const Rank& rank) {
  ProcessGroup group = init_process_group();
  std::int64_t pid = rank.rank == 1 ? ::getpid() : 0;
  group.broadcast({.data = &pid, .count = 1, .dtype = DType::int64}, 1);
  std::jthread stopper;
  if (rank.rank == 0)
    stopper = std::jthread([&] {
      for (int i = 0; i < 3; ++i) {
        ::kill(static_cast<pid_t>(pid), SIGSTOP);
        std::this_thread::sleep_for(100ms);
        ::kill(static_cast<pid_t>(pid), SIGCONT);
        std::this_thread::sleep_for(5ms);
      }
    });
  Call call(group);
  for (int i = 0; i < 60; ++i) call.once();
  group.barrier();
  destroy_process_group(group);
}

const Ranks one_stops("one stops", stop_one<Exchange>);
const Ranks one_of_two_stops("one of two stops", stop_one<Sum>);

TEST_F(PeerMemoryOfProcesses, ARankMayStopAndGoOn) {
  EXPECT_TRUE(all_succeeded(one_stops.run(3, 60s)));
  EXPECT_TRUE(all_succeeded(one_of_two_stops.run(2, 60s)));
}

}  // namespace
}  // namespace lockstep::comm::peer_memory_test

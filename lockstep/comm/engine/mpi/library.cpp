// SPDX-License-Identifier: Apache-2.0
#include "lockstep/comm/engine/mpi/library.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdlib>
#include <memory>
#include <optional>
#include <string_view>

#include "lockstep/comm/engine/plugin.h"

namespace lockstep::comm::mpi {
namespace {

using plugin::Failed;

#ifdef OPEN_MPI
constexpr bool is_for_open_mpi = true;
#else
constexpr bool is_for_open_mpi = false;
#endif

std::atomic<int> unfinished = 0;

bool is_initialized() {
  int flag = 0;
  check(MPI_Initialized(&flag), "MPI_Initialized");
  return flag != 0;
}

bool is_finalized() {
  int flag = 0;
  check(MPI_Finalized(&flag), "MPI_Finalized");
  return flag != 0;
}

// Without a launcher, MPI would start a one-rank job.
void require_launcher() {
  for (const char* variable : {"OMPI_COMM_WORLD_SIZE", "MV2_COMM_WORLD_SIZE", "PMIX_RANK",
                               "PMI_RANK", "PMI_SIZE", "PMI_FD"})
    if (std::getenv(variable) != nullptr) return;
  throw Failed{Fault::unsupported,
               "no launcher of MPI has started this process: none of OMPI_COMM_WORLD_SIZE, "
               "MV2_COMM_WORLD_SIZE, PMIX_RANK, PMI_RANK, PMI_SIZE and PMI_FD is set. Start the "
               "ranks with mpirun or "
               "with srun --mpi=pmix or pmi2, or choose another engine"};
}

struct Launched {
  const char* variable;
  int ranks;
};

// If the launcher gives it. Open MPI's ranks also have Slurm's variable, for the step that started
// its daemons, so the order matters.
std::optional<Launched> launched() {
  for (const char* variable :
       {"OMPI_COMM_WORLD_SIZE", "MV2_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS"})
    if (const char* value = std::getenv(variable)) return Launched{variable, std::atoi(value)};
  return std::nullopt;
}

// Without this, Open MPI requests a long message's parts over TCP. Requests wait behind the
// receiver's own data, so two ranks that send to each other would alternate.
void choose_settings() { plugin::set_by_default("OMPI_MCA_btl_tcp_flags", "send,inplace"); }

void require_all_ranks() {
  int size = 0;
  check(MPI_Comm_size(MPI_COMM_WORLD, &size), "MPI_Comm_size");
  const auto told = launched();
  if (!told || told->ranks == size) return;
  throw Failed{Fault::unsupported,
               "the launcher has started " + std::to_string(told->ranks) + " ranks (" +
                   told->variable + ") and MPI_COMM_WORLD has " + std::to_string(size) +
                   ": mpirun and the MPI library (" + version() +
                   ") belong to different installations and cannot communicate"};
}

std::string_view name_of_level(int level) {
  switch (level) {
    case MPI_THREAD_SINGLE:
      return "MPI_THREAD_SINGLE";
    case MPI_THREAD_FUNNELED:
      return "MPI_THREAD_FUNNELED";
    case MPI_THREAD_SERIALIZED:
      return "MPI_THREAD_SERIALIZED";
    default:
      return "an unknown thread level";
  }
}

void require_threads(bool by_program) {
  int level = MPI_THREAD_SINGLE;
  check(MPI_Query_thread(&level), "MPI_Query_thread");
  if (level == MPI_THREAD_MULTIPLE) return;
  std::string text = "MPI runs with " + std::string(name_of_level(level)) +
                     ", and Lockstep calls it from threads of its own, which needs "
                     "MPI_THREAD_MULTIPLE. ";
  text += by_program ? "Start it with MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, "
                       "&provided) instead of MPI_Init(), or let Lockstep start it"
                     : "This MPI library cannot give it: use a build of it that can";
  throw Failed{Fault::unsupported, text};
}

// MPI_Finalize() waits for all ranks.
void end_at_exit(int code, void*) {
  int finalized = 0;
  if (code != 0 || unfinished != 0) return;
  if (MPI_Finalized(&finalized) == MPI_SUCCESS && finalized == 0) MPI_Finalize();
}

MPI_Comm handed_over(const void* original) {
  return original == nullptr ? MPI_COMM_WORLD : *static_cast<const MPI_Comm*>(original);
}

// An attribute of the original, because MPI reuses the handle of a freed communicator.
int key_of_duplicate() {
  static const int key = [] {
    int made = MPI_KEYVAL_INVALID;
    check(MPI_Comm_create_keyval(MPI_COMM_NULL_COPY_FN, MPI_COMM_NULL_DELETE_FN, &made, nullptr),
          "MPI_Comm_create_keyval");
    return made;
  }();
  return key;
}

const MPI_Comm* find_duplicate(MPI_Comm original) {
  void* value = nullptr;
  int found = 0;
  check(MPI_Comm_get_attr(original, key_of_duplicate(), &value, &found), "MPI_Comm_get_attr");
  return found != 0 ? static_cast<const MPI_Comm*>(value) : nullptr;
}

}  // namespace

void check(int result, const char* function) {
  if (result == MPI_SUCCESS) return;
  std::array<char, MPI_MAX_ERROR_STRING> words{};
  int length = 0;
  int kind = MPI_ERR_UNKNOWN;
  MPI_Error_string(result, words.data(), &length);
  MPI_Error_class(result, &kind);
  throw Failed{kind == MPI_ERR_TRUNCATE ? Fault::mismatch : Fault::system,
               std::string(function) + "() failed: " + words.data()};
}

std::string version() {
  // Another implementation's text may be longer than this mpi.h allows.
  std::array<char, std::max(16384, MPI_MAX_LIBRARY_VERSION_STRING)> words{};
  int length = 0;
  check(MPI_Get_library_version(words.data(), &length), "MPI_Get_library_version");
  const std::string_view all(words.data());
  std::string line(all.substr(0, all.find('\n')));
  std::replace(line.begin(), line.end(), '\t', ' ');
  const auto both_blank = [](char a, char b) { return a == ' ' && b == ' '; };
  line.erase(std::unique(line.begin(), line.end(), both_blank), line.end());
  if (line.starts_with("Open MPI") != is_for_open_mpi)
    throw Failed{Fault::unsupported,
                 std::string("this plugin was compiled for ") +
                     (is_for_open_mpi ? "Open MPI" : "MPICH and its kin") +
                     ", and the MPI library in this process is: " + line +
                     ". Name the folder of a plugin for that one in LOCKSTEP_ENGINE_PATH"};
  return line;
}

void start() {
  if (is_finalized())
    throw Failed{Fault::misuse, "MPI_Finalize() was called: MPI cannot be started again"};
  const bool by_program = is_initialized();
  if (!by_program) {
    require_launcher();
    choose_settings();
    int level = 0;
    check(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &level), "MPI_Init_thread");
    if (on_exit(end_at_exit, nullptr) != 0)
      throw Failed{Fault::system, "no memory for an exit handler"};
  }
  require_all_ranks();
  require_threads(by_program);
}

Unfinished::Unfinished() { ++unfinished; }

void Unfinished::finish() { --unfinished; }

const MPI_Comm* duplicate_world(const void* original_world) {
  const MPI_Comm original = handed_over(original_world);
  if (original == MPI_COMM_NULL)
    throw plugin::Failed{Fault::misuse, "the given communicator is MPI_COMM_NULL"};
  if (const MPI_Comm* duplicate = find_duplicate(original)) return duplicate;
  auto made = std::make_unique<MPI_Comm>(MPI_COMM_NULL);
  check(MPI_Comm_dup(original, made.get()), "MPI_Comm_dup");
  check(MPI_Comm_set_errhandler(*made, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
  check(MPI_Comm_set_attr(original, key_of_duplicate(), made.get()), "MPI_Comm_set_attr");
  return made.release();  // The attribute owns it.
}

MPI_Comm duplicated_world(const void* world) {
  if (world != nullptr) return *static_cast<const MPI_Comm*>(world);
  throw plugin::Failed{Fault::bug, "create() or tell_all() before identify()"};
}

int rank_in(MPI_Comm communicator) {
  int rank = 0;
  check(MPI_Comm_rank(communicator, &rank), "MPI_Comm_rank");
  return rank;
}

int size_of(MPI_Comm communicator) {
  int size = 0;
  check(MPI_Comm_size(communicator, &size), "MPI_Comm_size");
  return size;
}

}  // namespace lockstep::comm::mpi

// SPDX-License-Identifier: Apache-2.0
#include "tools/doctor/diagnosis.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>

#include "tools/libtorch_remedy.h"

namespace lockstep::doctor {
namespace {

constexpr std::uint64_t mebi = 1 << 20;

// Descriptors for the program itself.
constexpr std::uint64_t own_files = 64;

// Measured: 11, and 4 for each rank.
std::uint64_t files_of_launcher(const Job& job) {
  return own_files + 4 * static_cast<std::uint64_t>(job.ranks);
}

// For each rank of another host: a connection of ours and one of the engine's, and on rank 0 one of
// the store's. Without `lockstep run`, also one for each local rank.
std::uint64_t files_of_rank(const Job& job) {
  const auto ranks = static_cast<std::uint64_t>(job.ranks);
  return own_files + ranks + 3 * ranks * static_cast<std::uint64_t>(job.hosts - 1);
}

bool is_below(const std::optional<std::uint64_t>& limit, std::uint64_t needed) {
  return limit && *limit < needed;
}

void judge_files(const Host& host, const Job& job, Diagnosis& diagnosis) {
  const std::uint64_t needed = std::max(files_of_launcher(job), files_of_rank(job));
  if (is_below(host.open_files.hard, files_of_launcher(job)) ||
      is_below(host.open_files.soft, files_of_rank(job)))
    diagnosis.problems.push_back(
        {fmt::format("too few open files for {} ranks on each of {} hosts: a process may have {}, "
                     "and needs up to {}",
                     job.ranks, job.hosts, *host.open_files.soft, needed),
         fmt::format("ulimit -n {}; beyond the hard limit LimitNOFILE= of the service, or "
                     "/etc/security/limits.conf",
                     needed)});
}

void judge_processors(const Host& host, const Job& job, Diagnosis& diagnosis) {
  const int cores = host.processors.usable_cores;
  if (job.ranks > cores)
    diagnosis.notes.push_back(
        {fmt::format("{} ranks share {} {}", job.ranks, cores, cores == 1 ? "core" : "cores"),
         "start fewer (-n), or allow more by affinity and CPU quota"});
}

// With LibTorch, before the first tensor; measured: 111 MiB on x86-64.
constexpr std::uint64_t least_memory = 128 * mebi;

void judge_memory(const Host& host, const Job& job, Diagnosis& diagnosis) {
  if (!host.shared_memory.error.empty())
    diagnosis.problems.push_back(
        {"ranks cannot share memory: " + host.shared_memory.error,
         "allow memfd_create(2), which Linux has since 3.17, in the container's seccomp profile, "
         "and leave the cgroup some memory"});
  if (host.memory.available < least_memory * static_cast<std::uint64_t>(job.ranks))
    diagnosis.notes.push_back(
        {fmt::format("{} MiB are available, and {} ranks with LibTorch take some {} MiB before "
                     "their first tensor",
                     host.memory.available / mebi, job.ranks,
                     least_memory / mebi * static_cast<std::uint64_t>(job.ranks)),
         "start fewer (-n), or raise the limit of the cgroup"});
  const auto& dev_shm = host.shared_memory.dev_shm_bytes;
  if (job.hosts > 1 && job.ranks > 1 && (!dev_shm || host.shared_memory.dev_shm_free < 64 * mebi))
    diagnosis.notes.push_back(
        {dev_shm ? fmt::format("/dev/shm has {} MiB free; MPI, oneCCL and NCCL keep buffers there",
                               host.shared_memory.dev_shm_free / mebi)
                 : "there is no /dev/shm, where MPI, oneCCL and NCCL keep buffers",
         "docker run --shm-size=1g, or an emptyDir of medium Memory at /dev/shm. Lockstep's own "
         "shared memory does not need it"});
}

void judge_torch(const LibTorch& torch, Diagnosis& diagnosis) {
  if (torch.built_for.empty()) return;
  if (!torch.error.empty())
    diagnosis.problems.push_back({"liblockstep.so cannot be loaded: " + torch.error,
                                  tools::libtorch_remedy(torch.built_for, torch.place)});
  else if (!torch.version.empty() && torch.version != torch.built_for &&
           !torch.version.starts_with(torch.built_for + "."))
    diagnosis.problems.push_back(
        {fmt::format("LibTorch {} would be loaded, and this Lockstep was built for {}",
                     torch.version, torch.built_for),
         fmt::format("take {} out of LD_LIBRARY_PATH, or {}", torch.path,
                     tools::libtorch_remedy(torch.built_for, torch.place))});
}

void judge_hosts(const Host& host, const Job& job, Diagnosis& diagnosis) {
  if (!host.token.error.empty())
    diagnosis.problems.push_back({"the job's token cannot be used: " + host.token.error,
                                  "openssl rand -base64 32 > FILE; chmod 600 FILE; "
                                  "LOCKSTEP_JOB_TOKEN_FILE=FILE on every host"});
  if (job.hosts == 1) return;
  const auto works = [](const EngineState& engine) {
    return engine.why_not.empty() && engine.name != "nccl";
  };
  if (std::none_of(host.engines.begin(), host.engines.end(), works))
    diagnosis.problems.push_back(
        {"there is no engine that takes CPU tensors to other hosts",
         "install libgloo-dev or libopenmpi-dev, build Lockstep again, and see the engines above; "
         "LOCKSTEP_ENGINE_PATH names folders of plugins"});
  if (!host.network.error.empty())
    diagnosis.problems.push_back({"no network interface can be chosen: " + host.network.error,
                                  "LOCKSTEP_INTERFACE names one, or its address or network"});
  else if (host.network.chosen && host.network.chosen->is_loopback)
    diagnosis.problems.push_back(
        {"other hosts cannot reach this one: the interface is " + host.network.chosen->name,
         "LOCKSTEP_INTERFACE names another one, or its address or network"});
  if (host.token.source.empty() && host.token.error.empty() && !host.token.network_is_trusted)
    diagnosis.problems.push_back(
        {"there is no token by which ranks of other hosts prove that they are of the job",
         "openssl rand -base64 32 > FILE; chmod 600 FILE; LOCKSTEP_JOB_TOKEN_FILE=FILE on every "
         "host"});
  if (!host.network.rdma_devices.empty() && host.locked_memory.soft)
    diagnosis.notes.push_back(
        {fmt::format("{} is there, and memory may be locked up to {} KiB only: engines then use "
                     "TCP, or fail",
                     host.network.rdma_devices.front(), *host.locked_memory.soft >> 10),
         "ulimit -l unlimited; docker run --ulimit memlock=-1"});
}

}  // namespace

Diagnosis diagnose(const Host& host, const Job& job) {
  Diagnosis diagnosis;
  if (!host.launcher.error.empty())
    diagnosis.problems.push_back(
        {"the launcher's variables contradict each other: " + host.launcher.error,
         "unset those of an outer job, or start by one launcher"});
  judge_processors(host, job, diagnosis);
  judge_memory(host, job, diagnosis);
  judge_torch(host.torch, diagnosis);
  judge_files(host, job, diagnosis);
  judge_hosts(host, job, diagnosis);
  return diagnosis;
}

}  // namespace lockstep::doctor

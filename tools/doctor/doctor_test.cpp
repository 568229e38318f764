// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/ranks.h"
#include "tools/doctor/diagnosis.h"
#include "tools/doctor/software.h"

namespace lockstep::doctor::doctor_test {
namespace {

bool has(const std::string& text, const std::string& part) { return text.find(part) != text.npos; }

Host good_host() {
  Host host{.name = "node3", .kernel = "Linux 6.1.0 x86_64", .lockstep = "0.1.0"};
  host.processors.topology.nodes = 2;
  for (int core = 0; core < 8; ++core)
    host.processors.topology.cores.push_back(
        {.node = core / 4, .l3 = core / 4, .l3_bytes = 32u << 20, .cpus = {core}});
  host.processors.cpus = "0-7";
  host.processors.usable_cores = 8;
  host.processors.formats = number_formats_in("flags : avx512_bf16 amx_bf16\n");
  host.memory = {.total = 64ull << 30, .available = 50ull << 30};
  host.shared_memory.dev_shm_bytes = 32ull << 30;
  host.shared_memory.dev_shm_free = 32ull << 30;
  host.torch = {
      .built_for = "2.13", .path = "/opt/torch/lib/libtorch_cpu.so", .version = "2.13.0+cpu"};
  host.engines = {{.name = "mpi",
                   .why_not = "there is no plugin. Looked in\n  /a\n  /b [lockstep/comm/x.cpp:1]"},
                  {.name = "gloo", .path = "/lib/gloo.so", .version = "Gloo 2022"}};
  host.open_files = {.soft = 1024, .hard = 4096};
  host.locked_memory = {.soft = 8u << 20, .hard = 8u << 20};
  const NetworkInterface eth0{.name = "eth0", .address = "10.0.0.3", .is_up = true};
  const NetworkInterface lo{
      .name = "lo", .address = "127.0.0.1", .is_up = true, .is_loopback = true};
  host.network = {.interfaces = {lo, eth0}, .chosen = eth0};
  host.token.source = "LOCKSTEP_JOB_TOKEN_FILE";
  return host;
}

constexpr int many = 4;
const Job alone{.ranks = 8};
const Job together{.ranks = 8, .hosts = many};

// Fails the test unless there is one problem.
Finding problem_of(const Host& host, const Job& job) {
  const Diagnosis diagnosis = diagnose(host, job);
  EXPECT_EQ(diagnosis.problems.size(), 1u) << to_text(host, job, diagnosis);
  return diagnosis.problems.empty() ? Finding{} : diagnosis.problems.front();
}

Finding note_of(const Host& host, const Job& job) {
  const Diagnosis diagnosis = diagnose(host, job);
  EXPECT_EQ(diagnosis.problems.size(), 0u);
  EXPECT_EQ(diagnosis.notes.size(), 1u) << to_text(host, job, diagnosis);
  return diagnosis.notes.empty() ? Finding{} : diagnosis.notes.front();
}

TEST(Diagnosis, FindsNothingWhereEverythingIsRight) {
  for (const Job& job : {alone, together}) {
    const Diagnosis diagnosis = diagnose(good_host(), job);
    EXPECT_TRUE(diagnosis.problems.empty() && diagnosis.notes.empty())
        << to_text(good_host(), job, diagnosis);
  }
}

TEST(Diagnosis, CountsFilesForTheLauncherAndForRanksOfOtherHosts) {
  Host host = good_host();
  EXPECT_TRUE(diagnose(host, {.ranks = 8}).problems.empty());
  host.open_files = {.soft = 256, .hard = 256};
  const Finding launcher = problem_of(host, {.ranks = 128});
  EXPECT_TRUE(has(launcher.what, "too few open files for 128 ranks")) << launcher.what;
  EXPECT_TRUE(has(launcher.cure, "ulimit -n 576")) << launcher.cure;
  EXPECT_TRUE(has(problem_of(host, {.ranks = 8, .hosts = 64}).what, "64 hosts"));
  host.open_files = {};
  EXPECT_TRUE(diagnose(host, {.ranks = 8, .hosts = 1000}).problems.empty()) << "without a limit";
}

TEST(Diagnosis, NamesMemoryThatCannotBeShared) {
  Host host = good_host();
  host.shared_memory.error = "memfd_create: Operation not permitted";
  EXPECT_TRUE(has(problem_of(host, alone).what, "Operation not permitted"));
}

TEST(Diagnosis, WantsTheLibTorchThatItWasBuiltFor) {
  Host host = good_host();
  host.torch.version = "2.1.0";
  EXPECT_TRUE(has(problem_of(host, alone).what, "2.1.0 would be loaded"));
  host.torch.version = "";
  EXPECT_TRUE(diagnose(host, alone).problems.empty()) << "an unknown version is not wrong";
  host.torch.error = "there is no libtorch_cpu.so";
  EXPECT_TRUE(has(problem_of(host, alone).cure, "-DTorch_DIR=DIR"));
  host.torch = {};
  EXPECT_TRUE(diagnose(host, alone).problems.empty()) << "built without";
}

TEST(Diagnosis, ShowsAPackageUserWhereItSearchesForLibTorch) {
  Host host = good_host();
  host.torch.place = "/opt/libtorch";
  for (const char* error : {"", "there is no libtorch_cpu.so"}) {
    host.torch.version = "2.1.0";
    host.torch.error = error;
    const std::string cure = problem_of(host, alone).cure;
    EXPECT_TRUE(has(cure, "unpack LibTorch 2.13 to /opt/libtorch or link it there")) << cure;
    EXPECT_TRUE(has(cure, "LD_LIBRARY_PATH")) << cure;
    EXPECT_FALSE(has(cure, "build")) << cure;
  }
}

TEST(Diagnosis, WantsAnEngineAnInterfaceAndATokenForSeveralHostsOnly) {
  Host host = good_host();
  host.engines[1].why_not = "no";
  host.network.chosen = host.network.interfaces[0];
  host.token.source = "";
  EXPECT_TRUE(diagnose(host, alone).problems.empty());
  const Diagnosis diagnosis = diagnose(host, together);
  ASSERT_EQ(diagnosis.problems.size(), 3u);
  EXPECT_TRUE(has(diagnosis.problems[0].cure, "libgloo-dev"));
  EXPECT_TRUE(has(diagnosis.problems[1].what, "the interface is lo"));
  EXPECT_TRUE(has(diagnosis.problems[2].cure, "LOCKSTEP_JOB_TOKEN_FILE"));
}

TEST(Diagnosis, TakesTheUsersWordForTheNetwork) {
  Host host = good_host();
  host.token = {.network_is_trusted = true};
  EXPECT_TRUE(diagnose(host, together).problems.empty());
}

TEST(Diagnosis, DoesNotTakeNcclForCpuTensors) {
  Host host = good_host();
  host.engines = {{.name = "nccl", .path = "/lib/nccl.so", .version = "2.32"}};
  EXPECT_TRUE(has(problem_of(host, together).what, "CPU tensors"));
}

TEST(Diagnosis, NamesATokenThatCannotBeUsedOnOneHostToo) {
  Host host = good_host();
  host.token = {.error = "others may read or write it"};
  EXPECT_TRUE(has(problem_of(host, alone).what, "others may read"));
  EXPECT_TRUE(has(problem_of(host, together).what, "others may read"));
}

TEST(Diagnosis, NotesWhatIsOnlySlowOrSurprising) {
  EXPECT_TRUE(has(note_of(good_host(), {.ranks = 9}).what, "9 ranks share 8 cores"));
  Host host = good_host();
  host.memory.available = 512u << 20;
  EXPECT_TRUE(has(note_of(host, alone).what, "512 MiB are available"));
  host = good_host();
  host.shared_memory.dev_shm_free = 1u << 20;
  EXPECT_TRUE(has(note_of(host, together).cure, "--shm-size"));
  host = good_host();
  host.network.rdma_devices = {"mlx5_0"};
  EXPECT_TRUE(has(note_of(host, together).what, "mlx5_0"));
}

TEST(DoctorText, ShowsWhatTheHostHasAndTheVerdict) {
  const std::string text = to_text(good_host(), together, diagnose(good_host(), together));
  for (const char* part :
       {"host      node3, Linux 6.1.0 x86_64, Lockstep 0.1.0\n",
        "cores     8 usable: CPUs 0-7, no quota, 2 NUMA nodes, 2 L3 of 32 MiB\n",
        "numbers   bfloat16 native (avx512_bf16, amx_bf16), "
        "float16 emulated (no avx512_fp16, no amx_fp16)\n",
        "memory    64 GiB, 50 GiB available, no cgroup limit\n",
        "sharing   works; /dev/shm 32 GiB, 32 GiB free\n",
        "LibTorch  2.13.0+cpu (built for 2.13): /opt/torch/lib/libtorch_cpu.so\n",
        "engines   mpi     not here: there is no plugin. Looked in /a, /b\n",
        "          gloo    Gloo 2022: /lib/gloo.so\n",
        "limits    1024 open files, up to 4096; 8 MiB of locked memory\n",
        "network   lo      127.0.0.1, loopback\n", "          eth0    10.0.0.3, chosen\n",
        "launcher  none\n", "token     from LOCKSTEP_JOB_TOKEN_FILE\n",
        "\n8 ranks can run on each of 4 hosts\n"})
    EXPECT_TRUE(has(text, part)) << part << "is not in\n" << text;
  EXPECT_TRUE(has(to_text(good_host(), alone, {}, true), "  /a\n"));
}

TEST(DoctorText, GivesTheRemedyOfABrokenEngine) {
  Host host = good_host();
  host.engines[0].why_not = "it cannot run here: no driver\nIt needs another package";
  EXPECT_TRUE(has(to_text(host, alone, {}),
                  "mpi     not here: it cannot run here: no driver. It needs another package\n"));
}

TEST(DoctorText, GivesTheCureBelowEachProblem) {
  Host host = good_host();
  host.token = {};
  const std::string text = to_text(host, together, diagnose(host, together));
  EXPECT_TRUE(has(text, "\nproblem: there is no token")) << text;
  EXPECT_TRUE(has(text, "\n  openssl rand -base64 32")) << text;
  EXPECT_TRUE(has(text, "8 ranks cannot run on each of 4 hosts: 1 problem\n")) << text;
}

TEST(DoctorText, LetsNobodyWriteCommandsToTheTerminal) {
  Host host = good_host();
  host.launcher.error = "RANK=\033[2J";
  const std::string text = to_text(host, alone, diagnose(host, alone));
  EXPECT_FALSE(has(text, "\033")) << text;
}

TEST(DoctorJson, HasTheSameContent) {
  Host host = good_host();
  host.engines[1].why_not = "no";
  const auto json = nlohmann::json::parse(to_json(host, together, diagnose(host, together)));
  EXPECT_EQ(json["version"], 1);
  EXPECT_EQ(json["host"], "node3");
  EXPECT_EQ(json["job"]["hosts"], many);
  EXPECT_EQ(json["can_run"], false);
  EXPECT_EQ(json["problems"].size(), 1u);
  EXPECT_TRUE(has(json["problems"][0]["cure"], "libgloo-dev"));
  EXPECT_EQ(json["processors"]["cores"].size(), 8u);
  EXPECT_TRUE(json["processors"]["quota"].is_null());
  EXPECT_EQ(json["processors"]["bf16"], (std::vector<std::string>{"avx512_bf16", "amx_bf16"}));
  EXPECT_TRUE(json["processors"]["fp16"].empty());
  EXPECT_EQ(json["memory"]["total"], 64ull << 30);
  EXPECT_EQ(json["libtorch"]["version"], "2.13.0+cpu");
  EXPECT_EQ(json["engines"][0]["name"], "mpi");
  EXPECT_TRUE(json["engines"][0]["version"].is_null());
  EXPECT_EQ(json["open_files"]["soft"], 1024);
  EXPECT_EQ(json["network"]["chosen"]["name"], "eth0");
  EXPECT_TRUE(json["launcher"].is_null());
  EXPECT_EQ(json["token"]["source"], "LOCKSTEP_JOB_TOKEN_FILE");
}

TEST(DoctorLibTorch, MatchesTheLoadersOutput) {
  const LibTorch found = libtorch_in(
      "\tlinux-vdso.so.1 (0x00007ffd)\n\tlibtorch_cpu.so => /opt/a b/libtorch_cpu.so (0x7f00)\n"
      "\t/lib64/ld-linux-x86-64.so.2 (0x7f01)\n",
      "2.13");
  EXPECT_EQ(found.path, "/opt/a b/libtorch_cpu.so");
  EXPECT_EQ(found.error, "");
  const LibTorch lacking =
      libtorch_in("\tlibtorch_cpu.so => not found\n\tlibc10.so => not found\n", "2.13");
  EXPECT_EQ(lacking.path, "");
  EXPECT_EQ(lacking.error, "there is no libtorch_cpu.so, libc10.so");
}

TEST(DoctorLibTorch, ReportsWhetherACudaBuildHasADriver) {
  Host host = good_host();
  host.torch.is_for_cuda = true;
  const auto text = [&] { return to_text(host, together, diagnose(host, together)); };
  EXPECT_TRUE(has(text(), "(built for 2.13), a CUDA build; without NVIDIA's driver, on CPUs only:"))
      << text();
  host.torch.has_driver = true;
  EXPECT_TRUE(has(text(), "(built for 2.13), a CUDA build: /opt")) << text();
}

TEST(DoctorLibTorch, ThatIsNotThereIsNamed) {
  const Answer answer = list_needed(LOCKSTEP_NEEDS_ABSENT_LIBRARY);
  EXPECT_EQ(answer.end, "");
  const LibTorch torch = libtorch_in(answer.out, "2.13");
  EXPECT_EQ(torch.error, "there is no libtorch_absent.so");
  EXPECT_EQ(torch.path, "");
}

TEST(DoctorLibTorch, IsNotNeededWhereNoLibraryLinksIt) {
  const test::ScratchDirectory folder;
  for (const auto& library : {folder.path(), folder.path() / "liblockstep.so"})
    EXPECT_EQ(examine_libtorch("2.13", library.string()).built_for, "") << library;
}

TEST(DoctorLibTorch, HasItsVersionInTheFileOfItsArchiveOrItsWheel) {
  const test::ScratchDirectory scratch;
  const auto library = scratch.path() / "lib" / "libtorch_cpu.so";
  EXPECT_EQ(version_of_libtorch(library), "");
  std::ofstream(scratch.path() / "version.py") << "debug = False\n__version__ = '2.13.0+cpu'\n";
  EXPECT_EQ(version_of_libtorch(library), "2.13.0+cpu");
  std::ofstream(scratch.path() / "build-version") << "2.13.1\n";
  EXPECT_EQ(version_of_libtorch(library), "2.13.1");
}

TEST(DoctorChild, ReportsHowAProgramEnded) {
  const auto shell = [](const char* script) {
    return ask({"/bin/sh", "-c", script}, std::chrono::seconds(30));
  };
  EXPECT_EQ(shell("echo hello; echo noise >&2").out, "hello\n");
  EXPECT_EQ(shell("exit 0").end, "");
  EXPECT_EQ(shell("exit 3").end, "ended with exit code 3");
  EXPECT_TRUE(has(shell("kill -SEGV $$").end, "was ended by signal 11"));
  EXPECT_EQ(ask({"/bin/sh", "-c", "exec sleep 60"}, std::chrono::seconds(1)).end,
            "did not end within 1 s");
}

TEST(DoctorEngine, ThatCrashesIsALineInTheReport) {
  const EngineState crashed = engine_in("mpi", "", "was ended by signal 11 (Segmentation fault)");
  EXPECT_TRUE(has(crashed.why_not, "was ended by signal 11")) << crashed.why_not;
  const EngineState works =
      engine_in("mpi", R"({"path": "/p.so", "version": "4.1", "why_not": ""})", "");
  EXPECT_EQ(works.path, "/p.so");
  EXPECT_EQ(works.version, "4.1");
  EXPECT_EQ(works.why_not, "");
  EXPECT_FALSE(engine_in("mpi", "[1]", "").why_not.empty());
}

}  // namespace
}  // namespace lockstep::doctor::doctor_test

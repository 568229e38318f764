// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>
#include <sched.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <numeric>
#include <string>

#include "lockstep/base/error.h"
#include "lockstep/launch/binding.h"
#include "tests/ranks.h"

namespace lockstep::launch::topology_test {
namespace {

std::vector<int> first_cpus(int count) {
  std::vector<int> cpus(static_cast<std::size_t>(count));
  std::iota(cpus.begin(), cpus.end(), 0);
  return cpus;
}

TEST(Topology, AffinityMaskMatchesTheKernels) {
  cpu_set_t mask;
  ASSERT_EQ(::sched_getaffinity(0, sizeof mask, &mask), 0);
  const auto cpus = affinity_mask();
  EXPECT_EQ(static_cast<int>(cpus.size()), CPU_COUNT(&mask));
  for (const int cpu : cpus) EXPECT_TRUE(CPU_ISSET(cpu, &mask));
}

TEST(Topology, AssignsEachUsableCpuToOneCore) {
  std::vector<int> found;
  for (const Core& core : read_topology(affinity_mask()).cores)
    found.insert(found.end(), core.cpus.begin(), core.cpus.end());
  std::sort(found.begin(), found.end());
  EXPECT_EQ(found, affinity_mask());
}

TEST(Topology, ReadingItLeavesTheEnvironmentAndTheMaskAsTheyWere) {
  const auto mask = affinity_mask();
  read_topology(mask);
  EXPECT_EQ(affinity_mask(), mask);
  EXPECT_EQ(std::getenv("HWLOC_PLUGINS_PATH"), nullptr);
}

TEST(Topology, HyperthreadsAreOneCore) {
  const Topology machine = synthetic_topology("pack:1 core:2 pu:2", first_cpus(4));
  ASSERT_EQ(machine.cores.size(), 2U);
  EXPECT_EQ(machine.cores[0].cpus, (std::vector<int>{0, 1}));
  EXPECT_EQ(machine.cores[1].cpus, (std::vector<int>{2, 3}));
}

TEST(Topology, CoresKnowWhatTheyShare) {
  const Topology machine = synthetic_topology("pack:2 numa:2 l3:2 core:2 pu:1", first_cpus(16));
  ASSERT_EQ(machine.cores.size(), 16U);
  EXPECT_EQ(machine.nodes, 4);
  for (int i = 0; i < 16; ++i) {
    const Core& core = machine.cores[static_cast<std::size_t>(i)];
    EXPECT_EQ(core.package, i / 8);
    EXPECT_EQ(core.node, i / 4);
    EXPECT_EQ(core.l3, i / 2);
  }
}

TEST(Topology, OmitsCpusOutsideTheMask) {
  const Topology machine = synthetic_topology("pack:1 core:4 pu:2", {1, 4, 5});
  ASSERT_EQ(machine.cores.size(), 2U);
  EXPECT_EQ(machine.cores[0].cpus, std::vector<int>{1});
  EXPECT_EQ(machine.cores[1].cpus, (std::vector<int>{4, 5}));
}

TEST(Topology, AMaskOfUnknownCpusIsAnError) {
  EXPECT_THROW(synthetic_topology("pack:1 core:2 pu:1", {7}), Error);
}

TEST(Topology, WithoutAnL3ThereIsNone) {
  EXPECT_EQ(synthetic_topology("pack:1 core:2 pu:1", {0, 1}).cores[0].l3, -1);
}

class FakeRoot {
 public:
  void write(const std::string& path, const std::string& text) const {
    const std::filesystem::path file = scratch_.path() / path;
    std::filesystem::create_directories(file.parent_path());
    std::ofstream(file) << text << '\n';
  }

  void second_version(const std::string& group, const std::string& mounted = "/") const {
    write("proc/self/cgroup", "0::" + group);
    write("proc/self/mountinfo",
          "24 1 0:22 / /proc rw - proc proc rw\n"
          "29 23 0:26 " +
              mounted + " /sys/fs/cgroup rw,nosuid shared:4 master:2 - cgroup2 cgroup2 rw");
  }

  void first_version(const std::string& group, const std::string& mounted = "/") const {
    write("proc/self/cgroup", "9:name=systemd:/other\n4:cpu,cpuacct:" + group + "\n1:cpuset:/x");
    write("proc/self/mountinfo",
          "30 25 0:27 /other /sys/fs/cgroup/systemd rw - cgroup cgroup rw,name=systemd\n"
          "31 25 0:28 / /sys/fs/cgroup/cpuset rw - cgroup cgroup rw,cpuset\n"
          "33 25 0:30 " +
              mounted + " /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct");
  }

  std::optional<double> quota() const { return cpu_quota(scratch_.path()); }

 private:
  test::ScratchDirectory scratch_;
};

TEST(CpuQuota, IsNoneWhereNothingIsKnown) { EXPECT_EQ(FakeRoot().quota(), std::nullopt); }

TEST(CpuQuota, IsTheMinimumUpTheTreeInVersion2) {
  const FakeRoot root;
  root.second_version("/slice/job/step");
  EXPECT_EQ(root.quota(), std::nullopt);
  root.write("sys/fs/cgroup/slice/job/step/cpu.max", "max 100000");
  EXPECT_EQ(root.quota(), std::nullopt);
  root.write("sys/fs/cgroup/slice/cpu.max", "250000 100000");
  EXPECT_EQ(root.quota(), 2.5);
  root.write("sys/fs/cgroup/slice/job/step/cpu.max", "400000 100000");
  EXPECT_EQ(root.quota(), 2.5);
  root.write("sys/fs/cgroup/slice/job/cpu.max", "50000 100000");
  EXPECT_EQ(root.quota(), 0.5);
  root.write("sys/fs/cgroup/elsewhere/cpu.max", "10000 100000");
  EXPECT_EQ(root.quota(), 0.5);
}

TEST(CpuQuota, IsTheMinimumUpTheTreeInVersion1) {
  const FakeRoot root;
  root.first_version("/docker/abc");
  const std::string folder = "sys/fs/cgroup/cpu,cpuacct/";
  root.write(folder + "cpu.cfs_quota_us", "-1");
  root.write(folder + "cpu.cfs_period_us", "100000");
  EXPECT_EQ(root.quota(), std::nullopt);
  root.write(folder + "docker/abc/cpu.cfs_quota_us", "300000");
  EXPECT_EQ(root.quota(), std::nullopt) << "of no period";
  root.write(folder + "docker/abc/cpu.cfs_period_us", "100000");
  EXPECT_EQ(root.quota(), 3);
  root.write(folder + "docker/cpu.cfs_quota_us", "100000");
  root.write(folder + "docker/cpu.cfs_period_us", "50000");
  EXPECT_EQ(root.quota(), 2);
}

TEST(CpuQuota, IsReadInAContainerWhoseGroupIsTheRoot) {
  FakeRoot same_path;  // The path is the host's, as is the mounted group.
  same_path.first_version("/docker/abc", "/docker/abc");
  same_path.write("sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us", "150000");
  same_path.write("sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us", "100000");
  EXPECT_EQ(same_path.quota(), 1.5);

  const FakeRoot namespaced;  // The path begins outside the visible hierarchy.
  namespaced.second_version("/../../other", "/");
  namespaced.write("sys/fs/cgroup/cpu.max", "150000 100000");
  EXPECT_EQ(namespaced.quota(), 1.5);
}

TEST(CpuQuota, NonsenseIsNoQuota) {
  const FakeRoot root;
  root.second_version("/job");
  for (const char* text : {"", "0 100000", "-5 100000", "1 0", "x y", "100000"}) {
    root.write("sys/fs/cgroup/job/cpu.max", text);
    EXPECT_EQ(root.quota(), std::nullopt) << text;
  }
}

}  // namespace
}  // namespace lockstep::launch::topology_test

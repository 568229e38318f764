// SPDX-License-Identifier: Apache-2.0
#include "lockstep/launch/cpu_quota.h"

#include <gtest/gtest.h>

#include <fstream>
#include <string>

#include "tests/ranks.h"

namespace lockstep::cpu_quota_test {
namespace {

// A root folder with files that a test writes.
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

TEST(CpuQuota, OfVersion2IsTheLeastUpTheTree) {
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

TEST(CpuQuota, OfVersion1IsTheLeastUpTheTree) {
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

TEST(CpuQuota, OfAContainerThatSeesItsOwnGroupAsTheRoot) {
  FakeRoot same_path;  // The path is the host's, and so is the mounted group.
  same_path.first_version("/docker/abc", "/docker/abc");
  same_path.write("sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us", "150000");
  same_path.write("sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us", "100000");
  EXPECT_EQ(same_path.quota(), 1.5);

  const FakeRoot namespaced;  // The path begins outside of the visible hierarchy.
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
}  // namespace lockstep::cpu_quota_test

// Prints coordinates and groups of meshes. Each line of standard input has a number of ranks and
// the sizes of axes a, b, c and so on. The answer has a line for each rank: its coordinates, then
// the ranks of its group for each set of axes, separated by '|'.

// SPDX-License-Identifier: Apache-2.0
#include <iostream>
#include <sstream>
#include <string>
#include <vector>

#include "lockstep/comm/device_mesh.h"
#include "lockstep/comm/in_process.h"
#include "lockstep/comm/values.h"

namespace {

std::string answer(const lockstep::ProcessGroup& world,
                   const std::vector<lockstep::MeshAxis>& axes) {
  const lockstep::DeviceMesh mesh(world, axes);
  std::ostringstream out;
  for (const std::string& name : mesh.names()) out << mesh.rank(name) << ' ';
  for (unsigned set = 1; set < 1U << axes.size(); ++set) {
    std::vector<std::string> names;
    for (std::size_t axis = 0; axis < axes.size(); ++axis)
      if (set >> axis & 1U) names.push_back(axes[axis].name);
    out << '|';
    for (const int rank : lockstep::all_gather_value(world.rank(), mesh[names])) out << rank << ' ';
  }
  return out.str();
}

}  // namespace

int main() {
  for (std::string line; std::getline(std::cin, line);) {
    std::istringstream in(line);
    int ranks = 0;
    in >> ranks;
    std::vector<lockstep::MeshAxis> axes;
    for (int size = 0; in >> size;)
      axes.push_back({std::string(1, static_cast<char>('a' + axes.size())), size});
    std::vector<std::string> answers(static_cast<std::size_t>(ranks));
    lockstep::run_in_process(ranks, [&](lockstep::ProcessGroup& world) {
      answers[static_cast<std::size_t>(world.rank())] = answer(world, axes);
    });
    for (const std::string& text : answers) std::cout << text << '\n';
  }
}

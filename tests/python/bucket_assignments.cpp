// Lockstep's side of buckets_test.py. Reads lines from standard input, such as
// 400 800 | 2 0 1 | float32 3 4 | float64 | float32 7
// with the limits, the indices (or none), and the type and shape of each tensor. Prints a line of
// buckets for each, such as "2 0, 1".

// SPDX-License-Identifier: Apache-2.0
#include <ATen/ops/empty.h>
#include <lockstep/parallel/gradients/bucket_plan.h>

#include <iostream>
#include <map>
#include <sstream>
#include <string>

namespace {

template <class T>
std::vector<T> numbers_in(std::istream& text) {
  std::vector<T> numbers;
  for (T number; text >> number;) numbers.push_back(number);
  return numbers;
}

template <class T>
std::vector<T> next_numbers(std::istream& line) {
  std::string part;
  std::getline(line, part, '|');
  std::istringstream text(part);
  return numbers_in<T>(text);
}

at::Tensor tensor_of(const std::string& description) {
  static const std::map<std::string, at::ScalarType> types{{"float32", at::kFloat},
                                                           {"float64", at::kDouble},
                                                           {"float16", at::kHalf},
                                                           {"bfloat16", at::kBFloat16}};
  std::istringstream text(description);
  std::string type;
  text >> type;
  return at::empty(numbers_in<std::int64_t>(text), types.at(type));
}

lockstep::BucketAssignment assignment_of(const std::string& text) {
  std::istringstream line(text);
  const auto limits = next_numbers<std::size_t>(line);
  const auto indices = next_numbers<std::size_t>(line);
  std::vector<at::Tensor> tensors;
  for (std::string part; std::getline(line, part, '|');) tensors.push_back(tensor_of(part));
  return lockstep::parallel::compute_bucket_assignment_by_size(tensors, limits, indices);
}

void print(const lockstep::BucketAssignment& assignment) {
  for (std::size_t b = 0; b < assignment.size(); ++b) {
    if (b > 0) std::cout << ", ";
    for (std::size_t i = 0; i < assignment[b].size(); ++i)
      std::cout << (i > 0 ? " " : "") << assignment[b][i];
  }
  std::cout << '\n';
}

}  // namespace

int main() {
  try {
    for (std::string line; std::getline(std::cin, line);) print(assignment_of(line));
    return 0;
  } catch (const std::exception& error) {
    std::cerr << error.what() << std::endl;
    return 1;
  }
}

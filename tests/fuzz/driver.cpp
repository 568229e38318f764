// Runs a fuzz target without libFuzzer, with any compiler and the same inputs each time.
//
//   fuzz_x            100 000 mutations of the target's seeds
//   fuzz_x -runs=N    N mutations
//   fuzz_x FILE...    these inputs, to examine findings of a fuzzer

// SPDX-License-Identifier: Apache-2.0
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <string>
#include <string_view>
#include <vector>

#include "tests/fuzz/target.h"

namespace {

constexpr std::size_t longest = 1 << 16;

class XorShift {
 public:
  std::size_t below(std::size_t limit) {
    state_ ^= state_ << 13;
    state_ ^= state_ >> 7;
    state_ ^= state_ << 17;
    return static_cast<std::size_t>(state_ % limit);
  }

 private:
  std::uint64_t state_ = 0x9e3779b97f4a7c15;
};

// Applies one of the changes that break parsers: bits, bytes, lengths, cuts, repeats, or two joined
// inputs.
void mutate(std::string& input, const std::vector<std::string>& corpus, XorShift& random) {
  static constexpr std::uint32_t interesting[] = {0,       1,          127,          128, 255,
                                                  1 << 15, 0x7fffffff, 0x80000000,   ~0u, 4097,
                                                  1 << 16, 1 << 24,    (1 << 24) + 1};
  const std::size_t at = input.empty() ? 0 : random.below(input.size());
  switch (random.below(7)) {
    case 0:
      if (!input.empty()) input[at] ^= static_cast<char>(1 << random.below(8));
      break;
    case 1:
      if (!input.empty()) input[at] = static_cast<char>(random.below(256));
      break;
    case 2: {
      const std::uint32_t value = interesting[random.below(std::size(interesting))];
      for (std::size_t i = 0; i < 4 && at + i < input.size(); ++i)
        input[at + i] = static_cast<char>(value >> (8 * i));
      break;
    }
    case 3:
      input.resize(at);
      break;
    case 4:
      input.insert(at, 1 + random.below(8), static_cast<char>(random.below(256)));
      break;
    case 5:
      input.insert(at, input.substr(at, 1 + random.below(64)));
      break;
    case 6: {
      const std::string& other = corpus[random.below(corpus.size())];
      input = input.substr(0, at) + other.substr(other.empty() ? 0 : random.below(other.size()));
      break;
    }
  }
  if (input.size() > longest) input.resize(longest);
}

void run(const std::string& input) {
  LLVMFuzzerTestOneInput(reinterpret_cast<const std::uint8_t*>(input.data()), input.size());
}

}  // namespace

int main(int argc, char** argv) {
  std::size_t runs = 100'000;
  bool replayed = false;
  for (int i = 1; i < argc; ++i) {
    const std::string_view argument = argv[i];
    if (argument.starts_with("-runs=")) {
      runs = std::strtoul(argv[i] + 6, nullptr, 10);
      continue;
    }
    std::ifstream file(argv[i], std::ios::binary);
    if (!file) {
      std::fprintf(stderr, "cannot read %s\n", argv[i]);
      return 1;
    }
    run({std::istreambuf_iterator<char>(file), {}});
    replayed = true;
  }
  if (replayed) return 0;

  const std::vector<std::string> corpus = lockstep::fuzz::seeds();
  for (const std::string& seed : corpus) run(seed);
  XorShift random;
  for (std::size_t i = 0; i < runs; ++i) {
    std::string input = corpus[random.below(corpus.size())];
    for (std::size_t changes = 1 + random.below(4); changes > 0; --changes)
      mutate(input, corpus, random);
    run(input);
  }
  std::printf("%zu inputs\n", corpus.size() + runs);
}

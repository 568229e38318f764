// Checkpoints with files that were changed by a disk, an incomplete copy, or an attacker.

// SPDX-License-Identifier: Apache-2.0
#include <ATen/ops/arange.h>
#include <ATen/ops/full.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <functional>
#include <iterator>
#include <random>
#include <string>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/checkpoint/checkpoint_reader.h"
#include "lockstep/checkpoint/checkpointer.h"
#include "lockstep/checkpoint/safetensors_header.h"
#include "tests/faults/saved_state.h"
#include "tests/ranks.h"

namespace lockstep::test {
namespace {

namespace fs = std::filesystem;

std::string bytes_of(const fs::path& file) {
  std::ifstream in(file, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

void write(const fs::path& file, const std::string& bytes) {
  std::ofstream(file, std::ios::binary | std::ios::trunc) << bytes;
}

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != text.npos;
}

// Reads the whole checkpoint.
void read_all(const fs::path& folder) {
  const CheckpointReader reader(folder);
  for (const std::string& part : reader.parts())
    for (const auto& [name, tensor] : reader.contents(part).tensors) reader.verify(part, name);
}

// Returns the name of the tensor that contains the byte; empty for the header.
std::string tensor_at(const std::string& file, std::size_t byte) {
  std::uint64_t length = 0;
  std::copy_n(file.data(), sizeof length, reinterpret_cast<char*>(&length));
  const std::size_t data = sizeof length + length;
  const auto header =
      parse_safetensors_header("file", file.substr(sizeof length, length), file.size() - data);
  for (const SafetensorsEntry& entry : header.entries)
    if (byte >= data + entry.begin && byte < data + entry.end) return entry.name;
  return "";
}

class CheckpointDamage : public testing::Test {
 protected:
  void save(std::int64_t elements) {
    StateDict state;
    state.tensors["layer.weight"] = whole(at::arange(elements, at::kFloat));
    state.tensors["mask"] = whole(at::full({5}, 1, at::kBool));
    state.values["step"] = std::int64_t{7};
    StateDict other;
    other.tensors["moment"] = whole(at::full({3}, 0.5, at::kDouble));
    SavedState model(std::move(state));
    SavedState optimizer(std::move(other));
    Checkpointer(scratch_.path(), ProcessGroup::self())
        .save(1, {{"model", &model}, {"optimizer", &optimizer}});
    for (const auto& entry : fs::directory_iterator(folder_)) files_.push_back(entry.path());
    ASSERT_EQ(files_.size(), 3U);
    read_all(folder_);
  }

  // Returns the message of the Error, which names the file.
  std::string refusal(const fs::path& file) {
    try {
      read_all(folder_);
      ADD_FAILURE() << file << " was accepted";
    } catch (const Error& error) {
      EXPECT_EQ(error.fault(), Fault::corrupt) << error.what();
      EXPECT_TRUE(contains(error.what(), file.string())) << error.what();
      return error.what();
    }
    return "";
  }

  // Flips one bit in place, reads, and flips it back.
  void flip(const fs::path& file, const std::string& whole_file, std::size_t bit) {
    const auto change = [&](char byte) {
      std::fstream out(file, std::ios::binary | std::ios::in | std::ios::out);
      out.seekp(static_cast<std::streamoff>(bit / 8)).put(byte);
    };
    const char byte = whole_file[bit / 8];
    change(static_cast<char>(byte ^ 1 << bit % 8));
    const std::string message = refusal(file);
    change(byte);
    if (file.extension() != ".safetensors") return;
    const std::string tensor = tensor_at(whole_file, bit / 8);
    EXPECT_TRUE(tensor.empty() || contains(message, '"' + tensor + '"')) << message;
  }

  const ScratchDirectory scratch_;
  const fs::path folder_ = scratch_.path() / "step-0000000001";
  std::vector<fs::path> files_;
};

TEST_F(CheckpointDamage, IsDetectedInAnyBit) {
  save(6);
  for (const fs::path& file : files_) {
    const std::string bytes = bytes_of(file);
    for (std::size_t bit = 0; bit < 8 * bytes.size() && !HasFailure(); ++bit)
      flip(file, bytes, bit);
    EXPECT_EQ(bytes_of(file), bytes);
  }
  read_all(folder_);
}

TEST_F(CheckpointDamage, IsDetectedInOneBitOfAMillionBytes) {
  save(1 << 18);
  const fs::path file = folder_ / "model-00001-of-00001.safetensors";
  const std::string bytes = bytes_of(file);
  std::mt19937_64 random(1);
  for (int i = 0; i < 2000 && !HasFailure(); ++i) flip(file, bytes, random() % (8 * bytes.size()));
  read_all(folder_);
}

TEST_F(CheckpointDamage, IsDetectedInFilesOfWrongLength) {
  save(6);
  for (const fs::path& file : files_) {
    const std::string bytes = bytes_of(file);
    for (std::size_t length = 0; length < bytes.size() && !HasFailure(); ++length) {
      write(file, bytes.substr(0, length));
      refusal(file);
    }
    write(file, bytes + '\0');
    refusal(file);
    write(file, bytes);
  }
  read_all(folder_);
}

TEST_F(CheckpointDamage, IsDetectedInALargeTruncatedFile) {
  save(1 << 18);
  const fs::path file = folder_ / "model-00001-of-00001.safetensors";
  for (std::uintmax_t size = fs::file_size(file); size > 997 && !HasFailure(); size -= 997) {
    fs::resize_file(file, size - 1);
    refusal(file);
  }
}

TEST_F(CheckpointDamage, IsDetectedInMissingFilesAndOtherFileTypes) {
  save(6);
  const fs::path elsewhere = scratch_.path() / "elsewhere";
  for (const fs::path& file : files_) {
    fs::rename(file, elsewhere);
    EXPECT_TRUE(contains(refusal(file), "missing"));
    fs::create_symlink(elsewhere, file);
    EXPECT_TRUE(contains(refusal(file), "symbolic link"));
    fs::remove(file);
    ASSERT_EQ(::mkfifo(file.c_str(), 0600), 0);
    EXPECT_TRUE(contains(refusal(file), "not a regular file"));
    fs::remove(file);
    fs::create_directory(file);
    EXPECT_TRUE(contains(refusal(file), "not a regular file"));
    fs::remove(file);
    fs::rename(elsewhere, file);
  }
  read_all(folder_);
}

TEST_F(CheckpointDamage, IsDetectedInFilesOfAnotherCheckpoint) {
  save(6);
  SavedState model(state_at(2));
  Checkpointer(scratch_.path(), ProcessGroup::self()).save(2, {{"model", &model}});
  const fs::path file = folder_ / "model-00001-of-00001.safetensors";
  fs::copy_file(scratch_.path() / "step-0000000002" / file.filename(), file,
                fs::copy_options::overwrite_existing);
  refusal(file);
}

}  // namespace
}  // namespace lockstep::test

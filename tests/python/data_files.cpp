// Reads and writes files of data for data_files_test.py. Each line of standard input is a command,
// its words separated by tabs:
//   arrays FILE...                    prints type, shape and the values' bytes of each
//   tokens LENGTH STRIDE RAW FILE...  prints each window: its data and its targets; RAW is 0 or 1
//   npz FILE NAME...                  prints the names in it, and likewise each array NAME
//   idx PATH TRAIN                    prints the images' and the labels' bytes; TRAIN is 0 or 1
//   documents FILE                    prints the begins of documents
//   shards SOURCE...                  prints each sample, its key and parts, and skipped entries
//   strict SOURCE...                  likewise, with this option
//   concatenated SOURCE...            likewise, with this option
//   write PREFIX SAMPLES FILE         writes shards of so many samples of FILE, which has that form
// Bytes are printed in hexadecimal. A line "done", or "refused" and the Error, ends each answer.

// SPDX-License-Identifier: Apache-2.0
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <fstream>
#include <iostream>
#include <sstream>
#include <string>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/toolkit/datasets/arrays/array_file.h"
#include "lockstep/toolkit/datasets/image_datasets.h"
#include "lockstep/toolkit/datasets/shards/shard_writer.h"
#include "lockstep/toolkit/datasets/shards/tar_shards.h"
#include "lockstep/toolkit/datasets/tokens/token_file.h"

namespace {

std::string in_hexadecimal(std::string_view bytes) {
  constexpr std::string_view digits = "0123456789abcdef";
  std::string text;
  for (const char byte : bytes) {
    text += digits[static_cast<unsigned char>(byte) >> 4];
    text += digits[static_cast<unsigned char>(byte) & 15];
  }
  return text.empty() ? "-" : text;
}

std::string from_hexadecimal(const std::string& text) {
  std::string bytes;
  for (std::size_t i = 0; i + 1 < text.size(); i += 2)
    bytes += static_cast<char>(std::stoi(text.substr(i, 2), nullptr, 16));
  return bytes;
}

std::string bytes_of(const at::Tensor& tensor) {
  const at::Tensor in_order = tensor.contiguous();
  return in_hexadecimal({static_cast<const char*>(in_order.const_data_ptr()), in_order.nbytes()});
}

void print_array(const std::string& path, const std::string& name = "") {
  const at::Tensor tensor = lockstep::ArrayFile(path, name).tensor();
  std::cout << at::toString(tensor.scalar_type()) << '\n';
  for (const std::int64_t size : tensor.sizes()) std::cout << size << ' ';
  std::cout << '\n';
  for (const std::int64_t stride : tensor.strides()) std::cout << stride << ' ';
  std::cout << '\n' << bytes_of(tensor) << '\n';
}

void print_names(const std::string& path) {
  for (const std::string& name : lockstep::ArrayFile::names(path))
    std::cout << in_hexadecimal(name) << ' ';
  std::cout << '\n';
}

void print_idx(const std::string& path, bool train) {
  const lockstep::IdxDataset dataset(path, train);
  std::cout << bytes_of(dataset.images()) << '\n' << bytes_of(dataset.targets()) << '\n';
}

void print_documents(const std::string& path) {
  const std::int64_t tokens = lockstep::TokenFile(path, {.length = 1}).tokens();
  const lockstep::TokenFile file(path, {.length = tokens - 1});
  for (const std::int64_t begin : file.document_begins(0)) std::cout << begin << ' ';
  std::cout << '\n';
}

void print_tokens(std::int64_t length, std::int64_t stride, bool raw,
                  const std::vector<std::filesystem::path>& files) {
  lockstep::TokenFileOptions options{.length = length, .stride = stride};
  if (raw) options.raw = at::kUInt16;
  const lockstep::TokenFile tokens(files, options);
  const at::Tensor data = at::empty({1, length}, at::kLong),
                   target = at::empty({1, length}, at::kLong);
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    tokens.fill({.indices = std::vector{i}, .data = data, .target = target});
    for (const at::Tensor& row : {data, target})
      for (std::int64_t k = 0; k < length; ++k)
        std::cout << row.const_data_ptr<std::int64_t>()[k] << ' ';
    std::cout << '\n';
  }
}

void print_shards(const std::vector<std::string>& sources,
                  const lockstep::TarShardsOptions& options = {}) {
  const lockstep::TarShards shards(sources, options);
  for (std::size_t i = 0; i < shards.size(); ++i) {
    const lockstep::ShardSample sample = shards.sample(i);
    std::cout << in_hexadecimal(sample.key);
    for (const auto& [suffix, bytes] : sample.parts)
      std::cout << ' ' << in_hexadecimal(suffix) << ' ' << in_hexadecimal(bytes);
    std::cout << '\n';
  }
  std::cout << shards.skipped() << " skipped\n";
}

void write_shards(const std::string& prefix, std::size_t samples, const std::string& file) {
  lockstep::ShardWriter writer(prefix, {.samples = samples});
  std::ifstream in(file);
  for (std::string line; std::getline(in, line);) {
    std::istringstream words(line);
    std::string key, suffix, bytes;
    words >> key;
    std::vector<std::pair<std::string, std::string>> parts;
    while (words >> suffix >> bytes)
      parts.emplace_back(from_hexadecimal(suffix), bytes == "-" ? "" : from_hexadecimal(bytes));
    writer.write(from_hexadecimal(key), {parts.begin(), parts.end()});
  }
  writer.finish();
}

void obey(const std::vector<std::string>& words) {
  const std::string& command = words.at(0);
  const std::vector<std::string> sources(words.begin() + 1, words.end());
  if (command == "arrays")
    for (const std::string& file : sources) print_array(file);
  if (command == "tokens")
    print_tokens(std::stoll(words.at(1)), std::stoll(words.at(2)), words.at(3) == "1",
                 {words.begin() + 4, words.end()});
  if (command == "npz") {
    print_names(words.at(1));
    for (std::size_t i = 2; i < words.size(); ++i) print_array(words[1], words[i]);
  }
  if (command == "idx") print_idx(words.at(1), words.at(2) == "1");
  if (command == "documents") print_documents(words.at(1));
  if (command == "shards") print_shards(sources);
  if (command == "strict") print_shards(sources, {.strict = true});
  if (command == "concatenated") print_shards(sources, {.concatenated = true});
  if (command == "write") write_shards(words.at(1), std::stoul(words.at(2)), words.at(3));
}

}  // namespace

int main() {
  for (std::string line; std::getline(std::cin, line);) {
    std::vector<std::string> words;
    std::istringstream in(line);
    for (std::string word; std::getline(in, word, '\t');) words.push_back(word);
    try {
      obey(words);
      std::cout << "done" << std::endl;
    } catch (const lockstep::Error& error) {
      std::string text = error.what();
      std::ranges::replace(text, '\n', ' ');
      std::cout << "refused " << text << std::endl;
    }
  }
}

// SPDX-License-Identifier: Apache-2.0
#include "lockstep/launch/interpreter.h"

#include <elf.h>

#include <cstring>
#include <fstream>
#include <optional>
#include <string_view>

namespace lockstep::launch {
namespace {

constexpr std::size_t longest_path = 4096;

std::string bytes_at(std::ifstream& file, std::uint64_t offset, std::size_t size) {
  std::string bytes(size, '\0');
  file.clear();
  file.seekg(static_cast<std::streamoff>(offset));
  file.read(bytes.data(), static_cast<std::streamsize>(size));
  bytes.resize(static_cast<std::size_t>(file.gcount()));
  return bytes;
}

template <class Header>
std::optional<Header> header_at(std::ifstream& file, std::uint64_t offset) {
  const std::string bytes = bytes_at(file, offset, sizeof(Header));
  if (bytes.size() < sizeof(Header)) return std::nullopt;
  Header header;
  std::memcpy(&header, bytes.data(), sizeof header);
  return header;
}

// For "#! /usr/bin/env python3": /usr/bin/env.
std::string interpreter_in(std::string_view first_line) {
  first_line.remove_prefix(2);
  const auto begin = first_line.find_first_not_of(" \t");
  if (begin == first_line.npos) return {};
  first_line.remove_prefix(begin);
  return std::string(first_line.substr(0, first_line.find_first_of(" \t\n")));
}

std::string loader_in(std::ifstream& file) {
  const auto program = header_at<Elf64_Ehdr>(file, 0);
  if (!program || program->e_ident[EI_CLASS] != ELFCLASS64) return {};
  for (unsigned i = 0; i < program->e_phnum; ++i) {
    const auto segment =
        header_at<Elf64_Phdr>(file, program->e_phoff + std::uint64_t{i} * program->e_phentsize);
    if (!segment) return {};
    if (segment->p_type != PT_INTERP || segment->p_filesz > longest_path) continue;
    const std::string name = bytes_at(file, segment->p_offset, segment->p_filesz);
    return name.substr(0, name.find('\0'));
  }
  return {};
}

}  // namespace

std::string interpreter_of(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  const std::string begin = bytes_at(file, 0, longest_path);
  if (begin.starts_with("#!")) return interpreter_in(begin.substr(0, begin.find('\n')));
  return begin.starts_with(ELFMAG) ? loader_in(file) : std::string();
}

}  // namespace lockstep::launch

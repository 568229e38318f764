// Recognises a file's format by its contents, to name the format in an Error.
//
// Thread safety: full. Blocking: no.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "lockstep/base/api.h"

namespace lockstep {

enum class FileKind {
  array,  // .npy.
  compressed,
  model,        // GGUF, or a file of llm.c that is no stream of tokens.
  pickle,       // A pickle, or a zip archive, as of torch.save() or numpy.savez().
  pointer,      // A pointer of Git LFS.
  program,      // ELF.
  safetensors,  // Only the beginning is checked.
  table,        // Parquet, HDF5 and others.
  tar,
  text,    // ASCII in the first 4 KiB.
  tokens,  // Tokens with a header, or an index of tokens.
};

struct FileFormat {
  std::string_view name;  // "a .npy array of NumPy".
  FileKind kind;
  std::string_view remedy = {};  // "gunzip it"; empty if it depends on the reader.

  // Recognised by printable characters only, which other files may have.
  bool by_letters = false;
};

// `bytes` is the whole file. Its beginning suffices except for formats that are recognised by their
// end, too, such as pickles and Parquet. Empty for unknown formats.
LOCKSTEP_API std::optional<FileFormat> file_format_of(std::span<const std::byte> bytes);

LOCKSTEP_API std::string describe(const FileFormat& format);

}  // namespace lockstep

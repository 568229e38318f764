// Recognises the format of a file by its contents. A reader of another format can thus name the
// real one in its Error. A reader of raw data can reject files whose headers would become data.
//
// Thread safety: any thread may call any function. Blocking: no.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "lockstep/base/api.h"

namespace lockstep {

// A reader chooses its remedy by the kind.
enum class FileKind {
  array,        // .npy.
  compressed,   // By gzip and others.
  model,        // Weights in GGUF, or a file of llm.c without tokens.
  pickle,       // A pickle, or a zip archive, as torch.save() and numpy.savez() write.
  pointer,      // A pointer of Git LFS.
  program,      // ELF.
  safetensors,  // A file that begins as safetensors do. The rest was not checked.
  table,        // Parquet, HDF5 and others.
  tar,
  text,    // ASCII, of any length.
  tokens,  // Tokens with a header.
};

struct FileFormat {
  std::string_view name;  // "a .npy array of NumPy".
  FileKind kind;
  std::string_view remedy = {};  // "gunzip it"; empty if the remedy depends on the reader.

  // Whether printable characters alone identify the format. Another text may begin with them, too.
  bool by_letters = false;
};

// `bytes` is the contents of the file. A beginning suffices, except for formats that are recognised
// by their end, too, such as pickles and Parquet. Returns nothing for unknown formats.
LOCKSTEP_API std::optional<FileFormat> file_format_of(std::span<const std::byte> bytes);

// Returns the name and, if it has one, the remedy: "compressed by gzip: gunzip it".
LOCKSTEP_API std::string describe(const FileFormat& format);

}  // namespace lockstep

// One mapped file of tokens in any supported format.
//
// Thread safety: const members may be called concurrently. Errors: as TokenFile's.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "lockstep/toolkit/datasets/mapped_file.h"
#include "lockstep/toolkit/datasets/tokens/token_format.h"

namespace lockstep::datasets {

class StoredTokens {
 public:
  StoredTokens(const std::filesystem::path& path, std::optional<TokenType> raw);

  const std::string& name() const { return file_.name(); }
  std::uint64_t count() const { return range_.count; }
  bool has_documents() const { return index_.has_value(); }
  void require_unchanged() const;

  // Copies tokens from `begin` on. Errors: corrupt for one outside [0, vocabulary).
  void read(std::uint64_t begin, std::span<std::int64_t> out,
            std::optional<std::int64_t> vocabulary) const;

  // Positions in [begin, end) at which documents begin. Without an index, the file is one document.
  std::vector<std::uint64_t> document_begins(std::uint64_t begin, std::uint64_t end) const;

 private:
  struct Opened;
  explicit StoredTokens(Opened opened);
  static Opened open(const std::filesystem::path& path, std::optional<TokenType> raw);
  [[noreturn]] void refuse_token(std::uint64_t begin, std::span<const std::int64_t> tokens,
                                 std::int64_t vocabulary) const;

  MappedFile file_;
  std::optional<MappedFile> index_file_;  // index_ is a view of it.
  std::optional<MegatronIndex> index_;
  TokenRange range_;
};

}  // namespace lockstep::datasets

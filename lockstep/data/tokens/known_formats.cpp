// SPDX-License-Identifier: Apache-2.0
#include "lockstep/data/tokens/known_formats.h"

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "lockstep/data/compression.h"

namespace lockstep::data {
namespace {

constexpr std::string_view unset_raw = "leave TokenFileOptions::raw unset, and its header is read";
constexpr std::string_view save_alone =
    "load it in Python and save the tokens alone, as tokens.tofile(FILE) or numpy.save(FILE, "
    "tokens)";
constexpr std::string_view decompress = "decompress it";

struct Magic {
  std::string_view bytes;
  KnownFormat format;

  // The file must also end with this text, before its last `after_end` bytes. Used for formats
  // whose magic number is a few letters, because texts and tokens of two bytes may begin with them.
  std::string_view end = {};
  std::size_t after_end = 0;
};

// Literals that contain zeros have explicit lengths.
constexpr Magic magics[]{
    {"\x93NUMPY", {"a .npy array of NumPy", unset_raw}},
    {{"MMIDIDX\0\0", 9}, {"an index of Megatron-LM or fairseq", unset_raw}},
    {{"TNTIDX\0\0", 8},
     {"an index of fairseq's older kind", "preprocess again with --dataset-impl mmap"}},
    {{"PK\3\4", 4}, {"a zip archive, as of numpy.savez() and torch.save()", save_alone}},
    {{"PK\5\6", 4}, {"an empty zip archive", save_alone}},
    {{"\x80\2\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20", 10}, {"a file of torch.save()", save_alone}},
    {"7z\xbc\xaf\x27\x1c", {"an archive of 7-Zip", decompress}},
    {"Rar!\x1a\x07", {"an archive of RAR", decompress}},
    {"PAR1", {"a file of Parquet", save_alone}, "PAR1"},
    {{"ARROW1\0\0", 8}, {"a file of Arrow", save_alone}},
    {"FEA1", {"a file of Feather", save_alone}, "FEA1"},
    {"ORC", {"a file of ORC", save_alone}, "ORC", 1},  // The last byte is a length.
    {{"Obj\1", 4}, {"a file of Avro", save_alone}},
    {"\x89HDF\r\n\x1a\n", {"a file of HDF5", save_alone}},
    {{"SQLite format 3\0", 16}, {"a database of SQLite", save_alone}},
    {{"\x7f"
      "ELF",
      4},
     {"a program", "name a file of tokens"}},
};

bool has_magic(std::string_view bytes, const Magic& magic) {
  if (!bytes.starts_with(magic.bytes)) return false;
  return bytes.size() >= magic.after_end &&
         bytes.substr(0, bytes.size() - magic.after_end).ends_with(magic.end);
}

std::string_view text_of_bytes(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

template <class Number>
std::optional<Number> number_in(std::string_view bytes, std::uint64_t offset) {
  if (offset > bytes.size() || bytes.size() - offset < sizeof(Number)) return std::nullopt;
  Number number{};
  std::memcpy(&number, bytes.data() + offset, sizeof number);
  return number;
}

// u64 length of the header, and the header, a JSON object that may end with spaces.
bool is_safetensors(std::string_view bytes) {
  const auto length = number_in<std::uint64_t>(bytes, 0);
  if (!length || *length < 2 || *length > bytes.size() - 8) return false;
  const std::string_view header = bytes.substr(8, *length);
  return header[0] == '{' && (header[1] == '"' || header[1] == '}' || header[1] == ' ') &&
         (header.back() == '}' || header.back() == ' ');
}

// A stream of Arrow IPC, as Hugging Face's datasets write it: 0xffffffff, i32 length of the
// metadata, and a FlatBuffer, which begins with the offset of its table.
bool is_arrow_stream(std::string_view bytes) {
  const auto length = number_in<std::int32_t>(bytes, 4);
  if (!bytes.starts_with("\xff\xff\xff\xff") || !length || *length < 8 || *length % 8 != 0 ||
      static_cast<std::uint64_t>(*length) > bytes.size() - 8)
    return false;
  const auto table = number_in<std::uint32_t>(bytes, 8);
  return table && *table >= 4 && *table < static_cast<std::uint32_t>(*length);
}

// "GGUF", and u32 version, in the byte order of the model.
bool is_gguf(std::string_view bytes) {
  const auto version = number_in<std::uint32_t>(bytes, 4);
  return bytes.starts_with("GGUF") && version && *version != 0 &&
         ((*version & 0xffffff) == 0 || *version >> 8 == 0);
}

// Protocols 4 and 5 begin with a frame, protocols 2 and 3 with an opcode that builds a value. All
// end with the opcode STOP.
bool is_pickle(std::string_view bytes) {
  if (bytes.size() < 4 || bytes.back() != '.' || bytes[0] != '\x80') return false;
  const auto protocol = static_cast<unsigned char>(bytes[1]);
  if (protocol == 4 || protocol == 5) {
    const auto frame = number_in<std::uint64_t>(bytes, 3);
    return bytes[2] == '\x95' && frame && *frame > 0 && *frame <= bytes.size() - 11;
  }
  return (protocol == 2 || protocol == 3) &&
         std::string_view("]}()cXUKJMGN\x8a\x8b\x88\x89").find(bytes[2]) != std::string_view::npos;
}

// Protocols 0 and 1 begin with the opcode of a list, dict, tuple or class. A text may begin so,
// too.
bool is_pickle_of_letters(std::string_view bytes) {
  if (bytes.size() < 4 || bytes.back() != '.') return false;
  for (const std::string_view begin :
       {"(lp", "(dp", "(tp", "(I", "(K", "(M", "(J", "(L", "(V", "(X", "(F", "(G", "]q", "}q",
        "c__builtin__\n", "cnumpy", "ccopy_reg\n"})
    if (bytes.starts_with(begin)) return true;
  return false;
}

// A tar header: its checksum is octal text, the sum of all bytes with spaces in the checksum field.
bool is_tar(std::string_view bytes) {
  constexpr std::size_t block = 512, sum_at = 148, sum_size = 8;
  if (bytes.size() < block) return false;
  std::uint32_t sum = 0, found = 0;
  for (std::size_t i = 0; i < block; ++i)
    sum += i >= sum_at && i < sum_at + sum_size ? ' ' : static_cast<unsigned char>(bytes[i]);
  for (const char digit : bytes.substr(sum_at, sum_size))
    if (digit >= '0' && digit <= '7') found = found * 8 + static_cast<std::uint32_t>(digit - '0');
  return found == sum && sum > sum_size * ' ';
}

// llm.c's files begin with an i32 magic number and an i32 version. Returns 0 for other files.
std::int32_t llm_c_magic(std::string_view bytes) {
  const auto magic = number_in<std::int32_t>(bytes, 0), version = number_in<std::int32_t>(bytes, 4);
  const bool is_llm_c =
      magic && version && *magic > 20240000 && *magic < 20250000 && *version > 0 && *version < 100;
  return is_llm_c ? *magic : 0;
}

bool is_llm_c_tokens(std::string_view bytes) {
  return llm_c_magic(bytes) == 20240520 || llm_c_magic(bytes) == 20240801;
}

// A file of dev/data/hellaswag.py or mmlu.py: contexts with several completions.
bool is_llm_c_evaluation(std::string_view bytes) { return llm_c_magic(bytes) == 20240522; }

bool is_llm_c_other(std::string_view bytes) { return llm_c_magic(bytes) != 0; }

// Tokens of two or more bytes contain zeros, or bytes of all values.
bool is_text(std::string_view bytes) {
  constexpr std::size_t least = 64, most = 4096;
  return bytes.size() >= least && std::ranges::all_of(bytes.substr(0, most), [](char each) {
           return (each >= ' ' && each <= '~') || each == '\n' || each == '\r' || each == '\t';
         });
}

struct Detected {
  bool (*is)(std::string_view);
  KnownFormat format;
};

constexpr KnownFormat pickle{"a pickle of Python", save_alone};

constexpr Detected detected[]{
    {is_safetensors, {"a file of safetensors", save_alone}},
    {is_arrow_stream, {"a stream of Arrow, as of Hugging Face's datasets", save_alone}},
    {is_llm_c_tokens, {"llm.c's tokens with a header", unset_raw}},
    {is_llm_c_evaluation,
     {"llm.c's file of an evaluation, HellaSwag or MMLU, with several ends of each context",
      "name a file of tokens, such as fineweb_train_000001.bin"}},
    {is_llm_c_other, {"another file of llm.c, such as weights", "name a file of tokens"}},
    {is_tar, {"a tar archive", "unpack it; TarShards reads its samples"}},
    {is_gguf, {"a model in GGUF", "name a file of tokens"}},
    {is_pickle, pickle},
};

}  // namespace

std::optional<KnownFormat> known_format_of(std::span<const std::byte> bytes,
                                           std::size_t bytes_of_token) {
  const std::string_view text = text_of_bytes(bytes);
  if (const Compression* const compression = compression_of(bytes))
    return KnownFormat{compression->description, compression->remedy};
  for (const Magic& each : magics)
    if (has_magic(text, each)) return each.format;
  for (const Detected& each : detected)
    if (each.is(text)) return each.format;
  if (bytes_of_token == 1) return std::nullopt;
  if (is_pickle_of_letters(text)) return pickle;
  if (is_text(text))
    return KnownFormat{"a text", "tokenize it; tokens of one byte are torch::kByte"};
  return std::nullopt;
}

}  // namespace lockstep::data

// SPDX-License-Identifier: Apache-2.0
#include "lockstep/base/file_format.h"

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "lockstep/base/compression.h"

namespace lockstep {
namespace {

struct Magic {
  std::string_view bytes;
  FileFormat format;

  // Expected before the last `after_end` bytes: texts and tokens may begin with short magic
  // numbers.
  std::string_view end = {};
  std::size_t after_end = 0;
};

constexpr Magic magics[]{
    {"version https://git-lfs.github.com/",
     {"a pointer of Git LFS, not the file itself", FileKind::pointer,
      "download the file, with git lfs pull"}},
    {"\x93NUMPY", {"a .npy array of NumPy", FileKind::array}},
    {{"MMIDIDX\0\0", 9}, {"an index of Megatron-LM or fairseq", FileKind::tokens}},
    {{"TNTIDX\0\0", 8},
     {"an index of fairseq's older kind", FileKind::tokens,
      "preprocess again with --dataset-impl mmap"}},
    {{"PK\3\4", 4}, {"a zip archive, as of numpy.savez() and torch.save()", FileKind::pickle}},
    {{"PK\5\6", 4}, {"an empty zip archive", FileKind::pickle}},
    {{"\x80\2\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20", 10}, {"a file of torch.save()", FileKind::pickle}},
    {"7z\xbc\xaf\x27\x1c", {"an archive of 7-Zip", FileKind::compressed, "decompress it"}},
    {"Rar!\x1a\x07", {"an archive of RAR", FileKind::compressed, "decompress it"}},
    {"PAR1", {"a file of Parquet", FileKind::table}, "PAR1"},
    {{"ARROW1\0\0", 8}, {"a file of Arrow", FileKind::table}},
    {"FEA1", {"a file of Feather", FileKind::table}, "FEA1"},
    {"ORC", {"a file of ORC", FileKind::table}, "ORC", 1},  // The last byte is a length.
    {{"Obj\1", 4}, {"a file of Avro", FileKind::table}},
    {"\x89HDF\r\n\x1a\n", {"a file of HDF5", FileKind::table}},
    {{"SQLite format 3\0", 16}, {"a database of SQLite", FileKind::table}},
    {{"\x7f"
      "ELF",
      4},
     {"a program", FileKind::program}},
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

// u64 header length, then a JSON object that may end with spaces.
bool is_safetensors(std::string_view bytes) {
  const auto length = number_in<std::uint64_t>(bytes, 0);
  if (!length || *length < 2 || *length > bytes.size() - 8) return false;
  const std::string_view header = bytes.substr(8, *length);
  return header[0] == '{' && (header[1] == '"' || header[1] == '}' || header[1] == ' ') &&
         (header.back() == '}' || header.back() == ' ');
}

// Arrow IPC, as Hugging Face's datasets write it: 0xffffffff, the metadata's i32 length, and a
// FlatBuffer, which begins with its table's offset.
bool is_arrow_stream(std::string_view bytes) {
  const auto length = number_in<std::int32_t>(bytes, 4);
  if (!bytes.starts_with("\xff\xff\xff\xff") || !length || *length < 8 || *length % 8 != 0 ||
      static_cast<std::uint64_t>(*length) > bytes.size() - 8)
    return false;
  const auto table = number_in<std::uint32_t>(bytes, 8);
  return table && *table >= 4 && *table < static_cast<std::uint32_t>(*length);
}

// "GGUF", and a u32 version in the model's byte order.
bool is_gguf(std::string_view bytes) {
  const auto version = number_in<std::uint32_t>(bytes, 4);
  return bytes.starts_with("GGUF") && version && *version != 0 &&
         ((*version & 0xffffff) == 0 || *version >> 8 == 0);
}

// Protocols 4 and 5 begin with a frame, 2 and 3 with an opcode that builds a value. All end with
// STOP.
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

// Protocols 0 and 1 begin with the opcode of a list, dict, tuple or class, as text may.
bool is_pickle_of_letters(std::string_view bytes) {
  if (bytes.size() < 4 || bytes.back() != '.') return false;
  for (const std::string_view begin :
       {"(lp", "(dp", "(tp", "(I", "(K", "(M", "(J", "(L", "(V", "(X", "(F", "(G", "]q", "}q",
        "c__builtin__\n", "cnumpy", "ccopy_reg\n"})
    if (bytes.starts_with(begin)) return true;
  return false;
}

// The checksum is octal: the sum of all bytes with spaces in the checksum field.
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

// i32 magic number and i32 version; 0 for other files.
std::int32_t llm_c_magic(std::string_view bytes) {
  const auto magic = number_in<std::int32_t>(bytes, 0), version = number_in<std::int32_t>(bytes, 4);
  const bool is_llm_c =
      magic && version && *magic > 20240000 && *magic < 20250000 && *version > 0 && *version < 100;
  return is_llm_c ? *magic : 0;
}

bool is_llm_c_tokens(std::string_view bytes) {
  return llm_c_magic(bytes) == 20240520 || llm_c_magic(bytes) == 20240801;
}

// From dev/data/hellaswag.py or mmlu.py.
bool is_llm_c_evaluation(std::string_view bytes) { return llm_c_magic(bytes) == 20240522; }

bool is_llm_c_other(std::string_view bytes) { return llm_c_magic(bytes) != 0; }

bool is_text(std::string_view bytes) {
  constexpr std::size_t most = 4096;
  return !bytes.empty() && std::ranges::all_of(bytes.substr(0, most), [](char each) {
    return (each >= ' ' && each <= '~') || each == '\n' || each == '\r' || each == '\t';
  });
}

struct Detected {
  bool (*is)(std::string_view);
  FileFormat format;
};

// In this order: a pickle of letters may be a text.
constexpr Detected detected[]{
    {is_safetensors, {"a file of safetensors", FileKind::safetensors}},
    {is_arrow_stream, {"a stream of Arrow, as of Hugging Face's datasets", FileKind::table}},
    {is_llm_c_tokens, {"llm.c's tokens with a header", FileKind::tokens}},
    {is_llm_c_evaluation,
     {"llm.c's file of an evaluation, HellaSwag or MMLU, with several ends of each context",
      FileKind::model}},
    {is_llm_c_other, {"another file of llm.c, such as weights", FileKind::model}},
    {is_tar, {"a tar archive", FileKind::tar}},
    {is_gguf, {"a model in GGUF", FileKind::model}},
    {is_pickle, {"a pickle of Python", FileKind::pickle}},
    {is_pickle_of_letters, {"a pickle of Python", FileKind::pickle, {}, /*by_letters=*/true}},
    {is_text, {"a text", FileKind::text, {}, /*by_letters=*/true}},
};

}  // namespace

std::optional<FileFormat> file_format_of(std::span<const std::byte> bytes) {
  const std::string_view text = text_of_bytes(bytes);
  if (const Compression* const compression = compression_of(bytes))
    return FileFormat{compression->description, FileKind::compressed, compression->remedy};
  for (const Magic& each : magics)
    if (has_magic(text, each)) return each.format;
  for (const Detected& each : detected)
    if (each.is(text)) return each.format;
  return std::nullopt;
}

std::string describe(const FileFormat& format) {
  std::string text(format.name);
  if (!format.remedy.empty()) text.append(": ").append(format.remedy);
  return text;
}

}  // namespace lockstep

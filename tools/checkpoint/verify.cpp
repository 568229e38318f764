// SPDX-License-Identifier: Apache-2.0
#include <memory>
#include <optional>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"
#include "lockstep/checkpoint/checkpoint_reader.h"
#include "lockstep/checkpoint/checkpointer.h"
#include "tools/checkpoint/commands.h"
#include "tools/checkpoint/output.h"
#include "tools/checkpoint/source.h"

namespace lockstep::checkpoint {
namespace {

namespace fs = std::filesystem;

// The error's text after a mention of `path`, usually its beginning.
std::string text_beside(const fs::path& path, const Error& error) {
  std::string text = bare_text(error);
  if (text.starts_with(path.string() + ": ")) text.erase(0, path.string().size() + 2);
  return text;
}

// opened() records why it cannot be opened.
struct Candidate {
  fs::path path;
  std::unique_ptr<const CheckpointReader> reader;
  std::unique_ptr<const WeightsSource> weights;
  std::string problem;
  int problems = 0;
  bool is_damaged = false;

  void fails(const Error& error) {
    is_damaged = is_damaged || error.fault() == Fault::corrupt;
    if (problems++ == 0)
      problem = (error.fault() == Fault::corrupt ? "damaged: " : "cannot be read: ") +
                text_beside(path, error);
  }
};

Candidate opened(const fs::path& path, Kind kind) {
  Candidate candidate{.path = path, .reader = nullptr, .weights = nullptr, .problem = {}};
  try {
    if (kind == Kind::weights)
      candidate.weights = std::make_unique<const WeightsSource>(path, "model");
    else
      candidate.reader = std::make_unique<const CheckpointReader>(path);
  } catch (const Error& error) {
    candidate.fails(error);
  }
  return candidate;
}

std::vector<Candidate> candidates_in(const std::vector<fs::path>& paths) {
  std::vector<Candidate> all;
  for (const fs::path& path : paths) {
    const Kind kind = kind_of(path);
    if (kind == Kind::folder)
      for (const fs::path& each : list_checkpoints(path))
        all.push_back(opened(each, Kind::checkpoint));
    else
      all.push_back(opened(path, kind));
  }
  return all;
}

std::uint64_t bytes_to_read(const std::vector<Candidate>& candidates) {
  std::uint64_t bytes = 0;
  for (const Candidate& each : candidates) {
    if (each.weights) bytes += bytes_of(each.weights->contents({}));
    if (each.reader)
      for (const std::string& part : each.reader->parts())
        bytes += bytes_of(each.reader->contents(part));
  }
  return bytes;
}

void read_all(Candidate& candidate, ByteBar& bar) {
  for (const std::string& part : candidate.reader->parts())
    for (const auto& [name, tensor] : candidate.reader->contents(part).tensors) {
      try {
        candidate.reader->verify(part, name);
      } catch (const Error& error) {
        candidate.fails(error);
      }
      bar.add(tensor.data.nbytes());
    }
}

// Opening has checked headers and sizes.
void read_weights(Candidate& candidate, ByteBar& bar) {
  for (const auto& [name, tensor] : candidate.weights->contents({}).tensors) {
    try {
      candidate.weights->read({}, name);
    } catch (const Error& error) {
      candidate.fails(error);
    }
    bar.add(tensor.data.nbytes());
  }
}

void print_result(const Candidate& candidate) {
  std::string text = candidate.path.string() + ": ";
  if (candidate.problems == 0 && candidate.weights) {
    const WeightFiles& files = candidate.weights->files();
    text += "readable, " + count_text(files.tensors().size(), "tensor") + " in " +
            count_text(files.files().size(), "file") + (files.index() ? " as the index says" : "") +
            "; such files have no checksums";
  } else if (candidate.problems == 0) {
    text += "ok, step " + std::to_string(candidate.reader->step()) + ", " +
            count_text(candidate.reader->files().size(), "file");
  } else {
    text += candidate.problem;
    if (candidate.problems > 1) text += "; and " + std::to_string(candidate.problems - 1) + " more";
  }
  print(text + "\n");
}

}  // namespace

int verify(const std::vector<fs::path>& paths) {
  std::vector<Candidate> candidates = candidates_in(paths);
  ByteBar bar("", bytes_to_read(candidates));
  int code = 0;
  for (Candidate& each : candidates) {
    bar.set_label(each.path.filename().string());
    if (each.reader) read_all(each, bar);
    if (each.weights) read_weights(each, bar);
    bar.clear();
    print_result(each);
    flush_output();  // While the next checkpoint is read.
    if (each.problems > 0 && code != data_error) code = each.is_damaged ? data_error : io_error;
  }
  return code;
}

}  // namespace lockstep::checkpoint

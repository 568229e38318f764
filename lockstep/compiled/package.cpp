// SPDX-License-Identifier: Apache-2.0
#include "lockstep/compiled/package.h"

#include <ATen/Parallel.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/from_blob.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <caffe2/serialize/inline_container.h>
#include <torch/csrc/inductor/aoti_runner/model_container_runner_cpu.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>
#include <system_error>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/base/log.h"
#include "lockstep/base/number_formats.h"
#include "lockstep/base/text_file.h"
#include "lockstep/tensor/named_tensors.h"

namespace lockstep::compiled {
namespace {

namespace fs = std::filesystem;

constexpr const char* description = "extra/lockstep.json";

// A folder that is removed with all that is in it.
class TemporaryFolder {
 public:
  TemporaryFolder() {
    std::error_code error;
    path_ = (fs::temp_directory_path(error) / "lockstep-XXXXXX").string();
    if (error) throw Error(Fault::system, "TMPDIR: " + error.message());
    if (::mkdtemp(path_.data()) == nullptr) throw_errno(path_);
  }
  ~TemporaryFolder() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;

  fs::path path() const { return path_; }

 private:
  std::string path_;
};

template <class Read>
auto reading(const std::string& file, Read read) {
  try {
    return read();
  } catch (const c10::Error& error) {
    throw Error(Fault::corrupt,
                file + ": no package of lockstep_export, or a damaged one: " + error.msg());
  }
}

// The files of an archive in the form of torch.save().
class Archive {
 public:
  explicit Archive(const fs::path& file) : name_(file.string()) {
    if (::access(file.c_str(), R_OK) != 0) throw_errno(name_);
    reader_ = reading(name_, [&] { return std::make_unique<Reader>(name_); });
  }

  at::Tensor read(const std::string& record) const {
    return reading(name_, [&] {
      auto [data, size] = reader_->getRecord(record);
      void* const bytes = data.get();
      const auto kept = std::make_shared<at::DataPtr>(std::move(data));
      return at::from_blob(
          bytes, {static_cast<std::int64_t>(size)}, [kept](void*) {}, at::kByte);
    });
  }

 private:
  using Reader = caffe2::serialize::PyTorchStreamReader;

  const std::string name_;
  std::unique_ptr<Reader> reader_;
};

std::string_view text_of(const at::Tensor& bytes) {
  return {static_cast<const char*>(bytes.const_data_ptr()), bytes.nbytes()};
}

// Writes the files of one graph into the new `folder`; returns the shared library.
fs::path unpack(const Archive& archive, const std::string& file, const GraphForm& graph,
                const fs::path& folder) {
  fs::path library;
  std::error_code ignored;  // write_file() says what is wrong.
  fs::create_directory(folder, ignored);
  for (const auto& [record, digest] : graph.files) {
    const at::Tensor bytes = archive.read(record);
    if (sha256(bytes) != digest) throw Error(Fault::corrupt, file + ": " + record + " is damaged");
    const fs::path path = folder / fs::path(record).filename();
    write_file(path.string(), text_of(bytes));
    if (path.extension() == ".so") library = path;
  }
  if (library.empty()) throw Error(Fault::corrupt, file + ": a graph has no shared library");
  return library;
}

void warn_of_other_threads(const std::string& file, int threads) {
  if (threads == 0 || threads == at::get_num_threads()) return;
  log(LogLevel::warning, file + ": its code computes with " + std::to_string(threads) +
                             " threads, and this process with " +
                             std::to_string(at::get_num_threads()) +
                             ": export it with that number in --threads");
}

}  // namespace

Code::Code(const fs::path& file, GraphForm form)
    : form_(std::move(form)),
      runner_(std::make_unique<torch::inductor::AOTIModelContainerRunnerCpu>(
          file.string(), /*num_models=*/1, /*run_single_threaded=*/true)) {}

Code::~Code() = default;

std::vector<at::Tensor> Code::run(const std::vector<at::Tensor>& inputs) const {
  // The code calls LibTorch's operators: Autocast would change them, and autograd records nothing.
  const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
  const at::AutoDispatchBelowADInplaceOrView no_autograd;
  std::vector<at::Tensor> results = runner_->run(inputs);
  if (results.size() != form_.results)
    throw Error(Fault::corrupt, "CompiledModule: the code has " + std::to_string(results.size()) +
                                    " results, and its description in the package " +
                                    std::to_string(form_.results));
  return results;
}

LoadedPackage load_package(const fs::path& file) {
  const std::string name = file.string();
  const Archive archive(file);
  LoadedPackage package;
  package.signature = read_signature(name, text_of(archive.read(description)));
  require_runnable(name, package.signature, instruction_sets());
  warn_of_other_threads(name, package.signature.threads);
  const TemporaryFolder folder;
  const auto load = [&](const char* part, const GraphForm& graph) {
    const fs::path library = unpack(archive, name, graph, folder.path() / part);
    try {
      return std::make_unique<const Code>(library, graph);
    } catch (const c10::Error& error) {  // For example, a file system without execution.
      throw Error(Fault::system, name + ": its code cannot be loaded: " + error.msg());
    }
  };
  package.train = load("train", package.signature.train);
  package.eval = load("eval", package.signature.eval);
  return package;
}

}  // namespace lockstep::compiled

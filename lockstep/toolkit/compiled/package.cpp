// SPDX-License-Identifier: Apache-2.0
#include "lockstep/toolkit/compiled/package.h"

#include <ATen/Parallel.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/from_blob.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <caffe2/serialize/inline_container.h>
#include <torch/csrc/inductor/aoti_runner/model_container_runner_cpu.h>

#include <array>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <fstream>
#include <string_view>
#include <system_error>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/base/log.h"
#include "lockstep/base/number_formats.h"
#include "lockstep/base/temporary_folder.h"
#include "lockstep/base/text_file.h"
#include "lockstep/tensor/named_tensors.h"

namespace lockstep::compiled {
namespace {

namespace fs = std::filesystem;

constexpr const char* description = "extra/lockstep.json";

[[noreturn]] void refuse(const std::string& file, const std::string& what) {
  throw Error(Fault::corrupt, file + ": " + what);
}

void require_archive(const fs::path& file) {
  const std::string name = file.string();
  std::error_code ignored;  // Opening it reports the cause.
  if (fs::is_directory(file, ignored)) throw_errno(name, EISDIR);
  std::ifstream stream(file, std::ios::binary);
  if (!stream) throw_errno(name);
  std::array<char, 4> begin{};
  stream.read(begin.data(), begin.size());
  if (stream.gcount() == 0) refuse(name, "the file is empty");
  if (begin != std::array{'P', 'K', '\x03', '\x04'})
    refuse(name, "it is no archive, and so no package of lockstep_export");
}

// In the form of torch.save(), with messages for packages.
class Archive {
 public:
  explicit Archive(const fs::path& file) : name_(file.string()) {
    require_archive(file);
    try {
      reader_ = std::make_unique<Reader>(name_);
      if (!reader_->hasRecord(description))
        refuse(name_, "this archive is no package of lockstep_export: it has no " +
                          std::string(description));
    } catch (const c10::Error&) {
      refuse(name_, "the archive is damaged, or a part of it is missing");
    }
  }

  at::Tensor read(const std::string& record) const {
    try {
      auto [data, size] = reader_->getRecord(record);
      void* const bytes = data.get();
      const auto kept = std::make_shared<at::DataPtr>(std::move(data));
      return at::from_blob(
          bytes, {static_cast<std::int64_t>(size)}, [kept](void*) {}, at::kByte);
    } catch (const c10::Error&) {
      refuse(name_, record + " is damaged or missing");
    }
  }

 private:
  using Reader = caffe2::serialize::PyTorchStreamReader;

  const std::string name_;
  std::unique_ptr<Reader> reader_;
};

std::string_view text_of(const at::Tensor& bytes) {
  return {static_cast<const char*>(bytes.const_data_ptr()), bytes.nbytes()};
}

// Writes a graph's files into `folder`; returns the library.
fs::path unpack(const Archive& archive, const std::string& file, const GraphForm& graph,
                const fs::path& folder) {
  fs::path library;
  std::error_code ignored;  // write_file() reports the cause.
  fs::create_directory(folder, ignored);
  for (const auto& [record, digest] : graph.files) {
    const at::Tensor bytes = archive.read(record);
    if (sha256(bytes) != digest) refuse(file, record + " is damaged");
    const fs::path path = folder / fs::path(record).filename();
    write_file(path.string(), text_of(bytes));
    if (path.extension() == ".so") library = path;
  }
  if (library.empty()) refuse(file, "a graph has no shared library");
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
  // The code calls LibTorch's operators: Autocast would change them. Autograd records nothing.
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

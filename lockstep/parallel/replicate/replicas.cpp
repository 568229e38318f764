// SPDX-License-Identifier: Apache-2.0
#include "lockstep/parallel/replicate/replicas.h"

#include <c10/core/ScalarType.h>

#include <sstream>
#include <string>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"
#include "lockstep/comm/values.h"
#include "lockstep/tensor/cut_tensors.h"
#include "lockstep/tensor/one_rank_edit.h"
#include "lockstep/tensor/tensor_lists.h"

namespace lockstep::parallel {
namespace {

std::string layout_of_gradient(const at::Tensor& tensor) {
  if (!tensor.requires_grad()) return {};
  std::ostringstream text;
  text << ", trained, strides " << tensor.strides();
  return text.str();
}

// Device numbers differ between ranks.
std::string kind_of_device(const at::Tensor& tensor) {
  return tensor.is_cpu() ? "" : " on " + c10::DeviceTypeName(tensor.device().type(), true);
}

// One line per tensor, such as "conv1.weight Float [32, 1, 3, 3], trained, strides [9, 9, 3, 1]".
// Strides determine gradients' layout.
std::string layout_of(const NamedTensors& tensors) {
  std::ostringstream text;
  for (const auto& [name, tensor] : tensors)
    text << name << ' ' << c10::toString(tensor.scalar_type()) << ' ' << tensor.sizes()
         << kind_of_device(tensor) << layout_of_gradient(tensor) << '\n';
  return text.str();
}

std::string text_of(const LineDifference& found) {
  return "rank 0 has " + found.first + ", rank " + std::to_string(found.text) + " has " +
         found.other;
}

const char* name_of(NonFinite choice) {
  switch (choice) {
    case NonFinite::fail:
      return "fail";
    case NonFinite::skip:
      return "skip";
    case NonFinite::ignore:
      return "ignore";
  }
  return "unknown";
}

std::string text_of(const DistributedDataParallelOptions& options) {
  std::ostringstream text;
  text << std::boolalpha << "broadcast_buffers " << options.broadcast_buffers
       << "\nfind_unused_parameters " << options.find_unused_parameters << "\nstatic_graph "
       << options.static_graph << "\nbucket_cap_mb";
  if (options.bucket_cap_mb) text << ' ' << *options.bucket_cap_mb;
  text << "\nbucket_caps_mb";
  for (const double cap : options.bucket_caps_mb) text << ' ' << cap;
  text << "\noverlap ";
  options.overlap ? text << *options.overlap : text << "automatic";
  text << "\ngradient_as_bucket_view " << options.gradient_as_bucket_view << "\nshare_parameters "
       << options.share_parameters << "\nmean "
       << (options.mean == GradientMean::over_ranks ? "over_ranks" : "over_samples")
       << "\nnon_finite " << name_of(options.non_finite) << "\nsparse_gradients";
  for (const std::string& name : options.sparse_gradients) text << ' ' << name;
  text << '\n';
  return text.str();
}

std::string text_of(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const std::exception& exception) {
    const std::string text = exception.what();
    return text.substr(0, text.find('\n'));  // LibTorch appends stack frames.
  } catch (...) {
    return "an exception that is not derived from std::exception";
  }
}

}  // namespace

void require_same_lines(const std::string& lines, const std::string& of_what,
                        const ProcessGroup& group) {
  if (const auto found = differing_line(all_gather_bytes(lines, group, {.label = of_what})))
    throw Error(Fault::mismatch, of_what + " differ: " + text_of(*found) + "; to do: make " +
                                     of_what + " equal on all ranks");
}

void require_same_tensors(const NamedTensors& tensors, const ProcessGroup& group) {
  require_same_lines(layout_of(tensors), "the modules", group);
}

void require_same_parts(const NamedTensors& parameters, const ProcessGroup& group) {
  std::string text;
  for (const auto& [name, parameter] : parameters)
    if (const std::string part = part_text(parameter); !part.empty()) text += name + part + '\n';
  const auto found =
      differing_line(all_gather_bytes(text, group, {.label = "parts of parameters"}));
  require(!found, [&] {
    return "the ranks of group " + group.name() +
           " hold different parts of a parameter: " + text_of(*found) +
           ". Give the ranks that hold the same part, those along another dimension of the mesh, "
           "such as mesh[\"dp\"]";
  });
}

void require_one_device(const NamedTensors& parameters) {
  const NamedTensors::value_type* first = nullptr;
  for (const auto& entry : parameters) {
    const auto& [name, parameter] = entry;
    if (!parameter.requires_grad()) continue;
    if (first == nullptr) first = &entry;
    if (parameter.device() == first->second.device()) continue;
    throw Error(Fault::unsupported, "gradients are averaged on one device, but parameter " +
                                        first->first + " is on " + first->second.device().str() +
                                        " and " + name + " on " + parameter.device().str());
  }
}

void require_same_options(const DistributedDataParallelOptions& options,
                          const ProcessGroup& group) {
  require_same_lines(text_of(options), "the options of data parallel training", group);
}

void broadcast_replica(const NamedTensors& tensors, const ProcessGroup& group, int root) {
  std::string label = "broadcast_replica";
  std::vector<at::Tensor> values;
  for (const auto& [name, tensor] : tensors) {
    label += ' ' + name;
    values.push_back(tensor);
  }
  broadcast_coalesced(values, group, root, {.label = label});
}

std::exception_ptr attempt_on_rank_0(const ProcessGroup& group, std::string_view what,
                                     const std::function<void()>& action) {
  std::exception_ptr error;
  std::string reason;  // Empty on success.
  if (group.rank() == 0) {
    try {
      const OneRankEdit edit;
      action();
    } catch (...) {
      error = std::current_exception();
      reason = std::string(what) + " failed on rank 0: " + text_of(error);
    }
  }
  reason = broadcast_bytes(reason, group, 0, {.label = what});
  if (!error && !reason.empty()) error = std::make_exception_ptr(Error(Fault::aborted, reason));
  return error;
}

}  // namespace lockstep::parallel

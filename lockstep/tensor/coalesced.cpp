// SPDX-License-Identifier: Apache-2.0
#include "lockstep/tensor/coalesced.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/tensor/buffers.h"

namespace lockstep {
namespace {

constexpr std::size_t most_bytes = std::size_t{32} << 20;

// Tensors of one type, on one device, that travel together.
struct Piece {
  std::vector<at::Tensor> tensors;
  std::size_t bytes = 0;
  std::int64_t elements = 0;
};

// All ranks get the same pieces, because only types, shapes and kinds of device matter and a rank
// uses one device of a kind.
std::vector<Piece> pieces_of(at::TensorList tensors) {
  std::map<std::tuple<c10::DeviceType, c10::DeviceIndex, at::ScalarType>, std::vector<Piece>> lists;
  for (const at::Tensor& tensor : tensors) {
    if (tensor.numel() == 0) continue;
    const c10::Device device = tensor.device();
    std::vector<Piece>& pieces = lists[{device.type(), device.index(), tensor.scalar_type()}];
    if (pieces.empty() || pieces.back().bytes + tensor.nbytes() > most_bytes) pieces.emplace_back();
    pieces.back().tensors.push_back(tensor);
    pieces.back().bytes += tensor.nbytes();
    pieces.back().elements += tensor.numel();
  }
  std::vector<Piece> all;
  for (auto& [key, pieces] : lists)
    for (Piece& piece : pieces) all.push_back(std::move(piece));
  return all;
}

// Calls `copy` with each tensor and its slice of `flat`.
template <class Copy>
void for_each(const Piece& piece, const at::Tensor& flat, Copy copy) {
  std::int64_t begin = 0;
  for (const at::Tensor& tensor : piece.tensors) {
    copy(tensor, flat.narrow(0, begin, tensor.numel()).view(tensor.sizes()));
    begin += tensor.numel();
  }
}

// Calls `collective` on one tensor that holds all of `piece`.
template <class Collective>
void together(const Piece& piece, bool read, bool written, Collective collective) {
  if (piece.tensors.size() == 1) return in_place(piece.tensors[0], written, collective);
  const at::NoGradGuard no_grad;
  const at::Tensor flat = at::empty({piece.elements}, piece.tensors[0].options());
  if (read)
    for_each(piece, flat, [](const at::Tensor& tensor, at::Tensor place) { place.copy_(tensor); });
  collective(flat);
  if (written)
    for_each(piece, flat,
             [](const at::Tensor& tensor, const at::Tensor& place) { tensor.copy_(place); });
}

// Overlapping elements would be combined twice. Tensors with gaps, such as columns of a matrix, may
// interleave without overlap and are not checked.
void require_apart(at::TensorList tensors, const char* what) {
  std::vector<at::Tensor> dense;
  for (const at::Tensor& tensor : tensors)
    if (tensor.numel() > 0 && tensor.is_non_overlapping_and_dense()) dense.push_back(tensor);
  const auto begin = [](const at::Tensor& tensor) {
    return reinterpret_cast<std::uintptr_t>(tensor.const_data_ptr());
  };
  std::sort(dense.begin(), dense.end(),
            [&](const at::Tensor& a, const at::Tensor& b) { return begin(a) < begin(b); });
  for (std::size_t i = 1; i < dense.size(); ++i) {
    const std::uintptr_t end = begin(dense[i - 1]) + dense[i - 1].nbytes();
    require(end <= begin(dense[i]), [&] {
      const auto bytes = std::min(end, begin(dense[i]) + dense[i].nbytes()) - begin(dense[i]);
      return std::string(what) + ": two of the tensors, of" + shape_text(dense[i - 1]) + " and" +
             shape_text(dense[i]) + ", overlap by " + std::to_string(bytes) + " bytes";
    });
  }
}

std::string shapes_text(at::TensorList tensors) {
  std::string text;
  for (const at::Tensor& tensor : tensors) text += shape_text(tensor) + ',';
  return text;
}

}  // namespace

void all_reduce_coalesced(at::TensorList tensors, const ProcessGroup& group, ReduceOp op,
                          const CallOptions& options) {
  for (const at::Tensor& tensor : tensors) {
    require_writable(tensor, "all_reduce_coalesced");
    require_reducible(tensor.scalar_type(), op, "all_reduce_coalesced");
  }
  require_apart(tensors, "all_reduce_coalesced");
  const Labelled labelled(options, shapes_text(tensors));
  for (const Piece& piece : pieces_of(tensors))
    together(piece, true, true,
             [&](const at::Tensor& data) { group.all_reduce(reducible(data, op), op, labelled); });
}

void reduce_coalesced(at::TensorList tensors, const ProcessGroup& group, int root, ReduceOp op,
                      const CallOptions& options) {
  const bool receives = group.rank() == root;
  for (const at::Tensor& tensor : tensors) {
    receives ? require_writable(tensor, "reduce_coalesced")
             : require_dense(tensor, "reduce_coalesced");
    require_reducible(tensor.scalar_type(), op, "reduce_coalesced");
  }
  require_apart(tensors, "reduce_coalesced");
  const Labelled labelled(options, shapes_text(tensors));
  for (const Piece& piece : pieces_of(tensors))
    together(piece, true, receives, [&](const at::Tensor& data) {
      group.reduce(reducible(data, op), root, op, labelled);
    });
}

void broadcast_coalesced(at::TensorList tensors, const ProcessGroup& group, int root,
                         const CallOptions& options) {
  const bool sends = group.rank() == root;
  for (const at::Tensor& tensor : tensors)
    sends ? require_dense(tensor, "broadcast_coalesced")
          : require_writable(tensor, "broadcast_coalesced");
  const Labelled labelled(options, shapes_text(tensors));
  for (const Piece& piece : pieces_of(tensors))
    together(piece, sends, !sends,
             [&](const at::Tensor& data) { group.broadcast(movable(data), root, labelled); });
}

}  // namespace lockstep

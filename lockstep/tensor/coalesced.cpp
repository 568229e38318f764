// SPDX-License-Identifier: Apache-2.0
#include "lockstep/tensor/coalesced.h"

#include <ATen/ops/empty.h>

#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "lockstep/comm/error.h"
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

// The same on all ranks, as it follows from types, shapes and kinds of device alone: a rank uses one
// device of a kind.
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

// Calls `copy` with each tensor and its place in `flat`.
template <class Copy>
void for_each(const Piece& piece, const at::Tensor& flat, Copy copy) {
  std::int64_t begin = 0;
  for (const at::Tensor& tensor : piece.tensors) {
    copy(tensor, flat.narrow(0, begin, tensor.numel()).view(tensor.sizes()));
    begin += tensor.numel();
  }
}

// Calls `collective` on one tensor that stands for all of `piece`.
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
  const Tagged tagged(options, shapes_text(tensors));
  for (const Piece& piece : pieces_of(tensors))
    together(piece, true, true,
             [&](const at::Tensor& data) { group.all_reduce(reducible(data, op), op, tagged); });
}

void reduce_coalesced(at::TensorList tensors, const ProcessGroup& group, int root, ReduceOp op,
                      const CallOptions& options) {
  const bool receives = group.rank() == root;
  for (const at::Tensor& tensor : tensors) {
    receives ? require_writable(tensor, "reduce_coalesced")
             : require_dense(tensor, "reduce_coalesced");
    require_reducible(tensor.scalar_type(), op, "reduce_coalesced");
  }
  const Tagged tagged(options, shapes_text(tensors));
  for (const Piece& piece : pieces_of(tensors))
    together(piece, true, receives,
             [&](const at::Tensor& data) { group.reduce(reducible(data, op), root, op, tagged); });
}

void broadcast_coalesced(at::TensorList tensors, const ProcessGroup& group, int root,
                         const CallOptions& options) {
  const bool sends = group.rank() == root;
  for (const at::Tensor& tensor : tensors)
    sends ? require_dense(tensor, "broadcast_coalesced")
          : require_writable(tensor, "broadcast_coalesced");
  const Tagged tagged(options, shapes_text(tensors));
  for (const Piece& piece : pieces_of(tensors))
    together(piece, sends, !sends,
             [&](const at::Tensor& data) { group.broadcast(movable(data), root, tagged); });
}

}  // namespace lockstep

// SPDX-License-Identifier: Apache-2.0
#include "lockstep/tensor/tensor_lists.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/comm/values.h"
#include "lockstep/tensor/buffers.h"
#include "lockstep/tensor/list_layout.h"

namespace lockstep {
namespace {

constexpr std::size_t most_bytes = std::size_t{32} << 20;

struct Chunk {
  std::vector<at::Tensor> tensors;
  std::size_t bytes = 0;
  std::int64_t elements = 0;
};

// Equal on all ranks: each uses one device of a kind.
std::vector<Chunk> chunks_of(at::TensorList tensors) {
  std::map<std::tuple<c10::DeviceType, c10::DeviceIndex, at::ScalarType>, std::vector<Chunk>> lists;
  for (const at::Tensor& tensor : tensors) {
    if (tensor.numel() == 0) continue;
    const c10::Device device = tensor.device();
    std::vector<Chunk>& chunks = lists[{device.type(), device.index(), tensor.scalar_type()}];
    if (chunks.empty() || chunks.back().bytes + tensor.nbytes() > most_bytes) chunks.emplace_back();
    chunks.back().tensors.push_back(tensor);
    chunks.back().bytes += tensor.nbytes();
    chunks.back().elements += tensor.numel();
  }
  std::vector<Chunk> all;
  for (auto& [key, chunks] : lists)
    for (Chunk& chunk : chunks) all.push_back(std::move(chunk));
  return all;
}

template <class Copy>
void for_each(const Chunk& chunk, const at::Tensor& flat, Copy copy) {
  std::int64_t begin = 0;
  for (const at::Tensor& tensor : chunk.tensors) {
    copy(tensor, flat.narrow(0, begin, tensor.numel()).view(tensor.sizes()));
    begin += tensor.numel();
  }
}

template <class Collective>
void together(const Chunk& chunk, bool read, bool written, Collective collective) {
  if (chunk.tensors.size() == 1) return in_place(chunk.tensors[0], written, collective);
  const at::NoGradGuard no_grad;
  const at::Tensor flat = at::empty({chunk.elements}, chunk.tensors[0].options());
  if (read)
    for_each(chunk, flat, [](const at::Tensor& tensor, at::Tensor place) { place.copy_(tensor); });
  collective(flat);
  if (written)
    for_each(chunk, flat,
             [](const at::Tensor& tensor, const at::Tensor& place) { tensor.copy_(place); });
}

// Overlapping elements would be combined twice. Tensors with gaps may interleave.
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

Tensors only_defined(const Tensors& tensors) {
  Tensors defined;
  for (const at::Tensor& tensor : tensors)
    if (tensor.defined()) defined.push_back(tensor);
  return defined;
}

Tensors empty_of(const ListLayout& list) {
  Tensors tensors;
  for (const TensorLayout& tensor : list.tensors)
    tensors.push_back(tensor.type ? at::empty(tensor.sizes, *tensor.type) : at::Tensor());
  return tensors;
}

at::Tensor block_of(std::int64_t bytes) { return at::empty({bytes}, at::kByte); }

std::int64_t total(const std::vector<ListLayout>& lists) {
  std::int64_t bytes = 0;
  for (const ListLayout& list : lists)
    if (__builtin_add_overflow(bytes, list.bytes, &bytes))
      throw Error(Fault::corrupt, "lists of tensors: together they are larger than any memory");
  return bytes;
}

Counts counts_of(const std::vector<ListLayout>& lists) {
  Counts counts;
  for (const ListLayout& list : lists) counts.push_back(static_cast<std::size_t>(list.bytes));
  return counts;
}

// The lists' blocks follow each other.
at::Tensor pack(const std::vector<Tensors>& lists, const std::vector<ListLayout>& layouts) {
  const at::NoGradGuard no_grad;
  const at::Tensor block = block_of(total(layouts));
  std::int64_t begin = 0;
  for (std::size_t i = 0; i < lists.size(); ++i) {
    const Tensors places = views_of(layouts[i], block.narrow(0, begin, layouts[i].bytes));
    for (std::size_t j = 0; j < places.size(); ++j)
      if (places[j].defined() && places[j].numel() > 0) places[j].copy_(lists[i][j]);
    begin += layouts[i].bytes;
  }
  return block;
}

std::vector<Tensors> unpack(const at::Tensor& block, const std::vector<ListLayout>& layouts) {
  std::vector<Tensors> lists;
  std::int64_t begin = 0;
  for (const ListLayout& layout : layouts) {
    lists.push_back(views_of(layout, block.narrow(0, begin, layout.bytes)));
    begin += layout.bytes;
  }
  return lists;
}

std::vector<ListLayout> exchange_layouts(const ListLayout& own, const ProcessGroup& group,
                                         const CallOptions& options) {
  std::vector<ListLayout> all;
  for (const std::string& text : all_gather_bytes(encode_layouts({own}), group, options)) {
    std::vector<ListLayout> one = decode_layouts(text);
    if (one.size() != 1)
      throw Error(Fault::corrupt, "lists of tensors: a rank sent more than one list");
    all.push_back(std::move(one[0]));
  }
  return all;
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
  for (const Chunk& chunk : chunks_of(tensors))
    together(chunk, true, true,
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
  for (const Chunk& chunk : chunks_of(tensors))
    together(chunk, true, receives, [&](const at::Tensor& data) {
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
  for (const Chunk& chunk : chunks_of(tensors))
    together(chunk, sends, !sends,
             [&](const at::Tensor& data) { group.broadcast(movable(data), root, labelled); });
}

Tensors broadcast_tensors(const Tensors& tensors, const ProcessGroup& group, int root,
                          const CallOptions& options) {
  Tensors result;
  Tensors travelling;
  if (group.rank() == root) {
    broadcast_bytes(encode_layouts({layout_of(tensors)}), group, root, options);
    for (const at::Tensor& tensor : tensors)
      result.push_back(tensor.defined() ? tensor.detach() : tensor);
    for (const at::Tensor& tensor : only_defined(result)) travelling.push_back(tensor.cpu());
  } else {
    const auto layouts = decode_layouts(broadcast_bytes({}, group, root, options));
    if (layouts.size() != 1) throw Error(Fault::corrupt, "broadcast_tensors: expected one list");
    result = empty_of(layouts[0]);
    travelling = only_defined(result);
  }
  broadcast_coalesced(travelling, group, root, options);
  return result;
}

std::vector<Tensors> all_gather_tensors(const Tensors& tensors, const ProcessGroup& group,
                                        const CallOptions& options) {
  const ListLayout own = layout_of(tensors);
  const auto layouts = exchange_layouts(own, group, options);
  const at::Tensor input = pack({tensors}, {own});
  const at::Tensor block = block_of(total(layouts));
  group.all_gather(movable(input), movable(block), counts_of(layouts), options);
  return unpack(block, layouts);
}

std::vector<Tensors> gather_tensors(const Tensors& tensors, const ProcessGroup& group, int root,
                                    const CallOptions& options) {
  const ListLayout own = layout_of(tensors);
  const auto layouts = exchange_layouts(own, group, options);
  const bool receives = group.rank() == root;
  const at::Tensor input = pack({tensors}, {own});
  const at::Tensor block = block_of(receives ? total(layouts) : 0);
  group.gather(movable(input), movable(block), root, counts_of(layouts), options);
  return receives ? unpack(block, layouts) : std::vector<Tensors>{};
}

Tensors scatter_tensors(const std::vector<Tensors>& lists, const ProcessGroup& group, int root,
                        const CallOptions& options) {
  const bool sends = group.rank() == root;
  const auto ranks = static_cast<std::size_t>(group.size());
  std::vector<ListLayout> layouts;
  if (sends) {
    require(lists.size() == ranks, [&] {
      return "scatter_tensors: " + std::to_string(lists.size()) + " lists for " +
             std::to_string(ranks) + " ranks";
    });
    for (const Tensors& list : lists) layouts.push_back(layout_of(list));
    broadcast_bytes(encode_layouts(layouts), group, root, options);
  } else {
    layouts = decode_layouts(broadcast_bytes({}, group, root, options));
    if (layouts.size() != ranks)
      throw Error(Fault::corrupt, "scatter_tensors: expected one list for each rank");
  }
  const ListLayout& own = layouts[static_cast<std::size_t>(group.rank())];
  const at::Tensor input = sends ? pack(lists, layouts) : block_of(0);
  const at::Tensor block = block_of(own.bytes);
  group.scatter(movable(input), movable(block), root, counts_of(layouts), options);
  return views_of(own, block);
}

}  // namespace lockstep

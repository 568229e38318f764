// SPDX-License-Identifier: Apache-2.0
#include "lockstep/tensor/tensor_lists.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>

#include "lockstep/base/error.h"
#include "lockstep/comm/values.h"
#include "lockstep/tensor/buffers.h"
#include "lockstep/tensor/coalesced.h"
#include "lockstep/tensor/tensor_layout.h"

namespace lockstep {
namespace {

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

// The tensors' elements in the places that `layouts` give, one list's block after the other.
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

// Every rank's layout of the one list that it has.
std::vector<ListLayout> exchange_layouts(const ListLayout& own, const ProcessGroup& group,
                                         const CallOptions& options) {
  std::vector<ListLayout> all;
  for (const std::string& text : all_gather_bytes(encode({own}), group, options)) {
    std::vector<ListLayout> one = decode(text);
    if (one.size() != 1) throw Error(Fault::corrupt, "lists of tensors: a rank has sent several");
    all.push_back(std::move(one[0]));
  }
  return all;
}

}  // namespace

Tensors broadcast_tensors(const Tensors& tensors, const ProcessGroup& group, int root,
                          const CallOptions& options) {
  Tensors result;
  Tensors travelling;
  if (group.rank() == root) {
    broadcast_bytes(encode({layout_of(tensors)}), group, root, options);
    for (const at::Tensor& tensor : tensors)
      result.push_back(tensor.defined() ? tensor.detach() : tensor);
    for (const at::Tensor& tensor : only_defined(result)) travelling.push_back(tensor.cpu());
  } else {
    const auto layouts = decode(broadcast_bytes({}, group, root, options));
    if (layouts.size() != 1) throw Error(Fault::corrupt, "broadcast_tensors: not one list");
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
    require(lists.size() == ranks, "scatter_tensors: " + std::to_string(lists.size()) +
                                       " lists for " + std::to_string(ranks) + " ranks");
    for (const Tensors& list : lists) layouts.push_back(layout_of(list));
    broadcast_bytes(encode(layouts), group, root, options);
  } else {
    layouts = decode(broadcast_bytes({}, group, root, options));
    if (layouts.size() != ranks)
      throw Error(Fault::corrupt, "scatter_tensors: not one list for each rank");
  }
  const ListLayout& own = layouts[static_cast<std::size_t>(group.rank())];
  const at::Tensor input = sends ? pack(lists, layouts) : block_of(0);
  const at::Tensor block = block_of(own.bytes);
  group.scatter(movable(input), movable(block), root, counts_of(layouts), options);
  return views_of(own, block);
}

}  // namespace lockstep

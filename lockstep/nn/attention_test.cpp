// SPDX-License-Identifier: Apache-2.0
#include "lockstep/nn/attention.h"

#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/types.h>

#include <bit>
#include <cstddef>
#include <fstream>
#include <memory>
#include <mutex>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/comm/group_hooks.h"
#include "lockstep/comm/in_process.h"
#include "lockstep/comm/process_group.h"
#include "lockstep/nn/shared_slots.h"
#include "tests/fault_of.h"
#include "tests/ranks.h"
#include "tests/rigs/across_hosts.h"
#include "tests/rigs/known_numbers.h"

namespace lockstep::nn::attention_test {
namespace {

using test::expect_near;
using test::fault_of;
using test::numbers;
using Tensors = std::vector<at::Tensor>;

constexpr std::int64_t length = 24, head_width = 5;

// [2, heads, length, head_width] as models make it, by a transposition.
at::Tensor by_head(std::int64_t heads, double seed) {
  return numbers({2, length, heads, head_width}, seed).transpose(1, 2);
}

struct Case {
  std::string name;
  std::int64_t heads = 12, key_heads = 12;
  AttentionOptions options = {};
  at::ScalarType type = at::kDouble;
  double bound = 1e-11;
};

// Returns the result, and the gradients of q, k and v, for the whole sequences on one rank.
Tensors whole(const Case& c) {
  Tensors qkv{by_head(c.heads, 1), by_head(c.key_heads, 2), by_head(c.key_heads, 3)};
  for (auto& x : qkv) x = x.to(c.type).requires_grad_();
  auto options = c.options;
  options.context.reset();
  const at::Tensor y = scaled_dot_product_attention(qkv[0], qkv[1], qkv[2], options);
  y.backward(by_head(c.heads, 4).to(c.type));
  return {y.detach(), qkv[0].grad(), qkv[1].grad(), qkv[2].grad()};
}

void expect_parts_of(const Tensors& expected, const Case& c, const ProcessGroup& group) {
  const auto part = [&](const at::Tensor& x) {
    return sequence_part(x, 2, group, c.options.order).to(c.type);
  };
  Tensors qkv{by_head(c.heads, 1), by_head(c.key_heads, 2), by_head(c.key_heads, 3)};
  for (auto& x : qkv) x = part(x).requires_grad_();
  auto options = c.options;
  options.context = group;
  const at::Tensor y = scaled_dot_product_attention(qkv[0], qkv[1], qkv[2], options);
  const std::string what = c.name + ", rank " + std::to_string(group.rank()) + " of " +
                           std::to_string(group.size()) + ": ";
  expect_near(y.detach(), part(expected[0]), what + "result", c.bound);
  y.backward(part(by_head(c.heads, 4)));
  const char* names[] = {"q", "k", "v"};
  for (std::size_t i = 0; i < 3; ++i)
    expect_near(qkv[i].grad(), part(expected[i + 1]), what + "gradient of " + names[i], c.bound);
}

const std::vector<std::pair<std::string, AttentionOptions>>& kinds() {
  static const std::vector<std::pair<std::string, AttentionOptions>> all = {
      {"every key", {.scale = 0.7}},
      {"causal", {.is_causal = true}},
      {"head and tail", {.is_causal = true, .order = SequenceOrder::head_tail}}};
  return all;
}

std::vector<Case> all_cases(ContextMethod method) {
  std::vector<Case> cases;
  for (const auto& [name, options] : kinds())
    for (const std::int64_t key_heads : {12, 4}) {  // Three ranks do not divide four.
      Case c{name + ", " + std::to_string(key_heads) + " key heads", 12, key_heads, options};
      c.options.enable_gqa = key_heads != 12;
      c.options.method = method;
      cases.push_back(c);
    }
  return cases;
}

class Attention : public testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Ranks, Attention, testing::Values(1, 2, 3, 4));

void expect_all_equal_whole(ContextMethod method, int ranks) {
  for (const Case& c : all_cases(method)) {
    const Tensors expected = whole(c);
    run_in_process(ranks, [&](ProcessGroup& group) { expect_parts_of(expected, c, group); });
  }
}

TEST_P(Attention, ByARingEqualsTheWholeOne) {
  expect_all_equal_whole(ContextMethod::ring, GetParam());
}

TEST_P(Attention, ByUlyssesEqualsTheWholeOne) {
  expect_all_equal_whole(ContextMethod::ulysses, GetParam());
}

TEST_P(Attention, ByARingTakesAnyNumberOfHeadsAndOtherTypes) {
  const auto& [name, options] = kinds()[2];
  for (const auto& [type, bound] : {std::pair{at::kFloat, 1e-6}, {at::kBFloat16, 0.02}}) {
    const Case c{name + c10::toString(type), 1, 1, options, type, bound};
    const Tensors expected = whole(c);
    run_in_process(GetParam(), [&](ProcessGroup& group) { expect_parts_of(expected, c, group); });
  }
}

TEST(Context, KeysMayHaveAnotherLength) {
  const at::Tensor q = by_head(2, 1), k = by_head(2, 2).slice(2, 0, 8);
  const at::Tensor expected = nn::scaled_dot_product_attention(q, k, k);
  for (const auto method : {ContextMethod::ring, ContextMethod::ulysses})
    run_in_process(2, [&](ProcessGroup& group) {
      const at::Tensor keys = sequence_part(k, 2, group);
      expect_near(scaled_dot_product_attention(sequence_part(q, 2, group), keys, keys,
                                               {.context = group, .method = method}),
                  sequence_part(expected, 2, group), "cross attention");
    });
}

// --- Several hosts: keys and values travel -------------------------------------------------------

const test::Ranks across_hosts("attention across hosts", [](const test::Rank& rank) {
  auto world = test::join_across_hosts(rank);
  for (const auto method : {ContextMethod::ring, ContextMethod::automatic})
    for (const Case& c : all_cases(method)) expect_parts_of(whole(c), c, world);
  destroy_process_group(world);
});

TEST(Context, OnSeveralHostsEqualsTheWholeOne) {
  LOCKSTEP_NEEDS_ENGINE("gloo");
  for (const char* const hosts : {"ab", "aab", "aa"}) {  // "aa" uses one engine only.
    const test::HostLayout layout{hosts, "gloo"};
    layout.set();
    EXPECT_TRUE(all_succeeded(across_hosts.run(layout.ranks()))) << hosts;
    test::HostLayout::unset();
  }
}

// --- Memory --------------------------------------------------------------------------------------

at::Tensor attended(const Tensors& qkv, const ProcessGroup& group) {
  return scaled_dot_product_attention(
      qkv[0], qkv[1], qkv[2], {.context = group, .is_causal = true, .method = ContextMethod::ring});
}

TEST(RingMemory, IsUsedAgainAndGivenBackWithTheGroup) {
  std::mutex mutex;
  std::vector<std::weak_ptr<SharedSlots>> all;
  run_in_process(3, [&](ProcessGroup& group) {
    Tensors qkv;
    for (const double seed : {1, 2, 3})
      qkv.push_back(sequence_part(by_head(2, seed), 2, group).requires_grad_());
    const auto slots = attachment_of<SharedSlots>(group);
    const std::size_t block = std::bit_ceil(qkv[1].nbytes() * 2);
    std::size_t after_three = 0;
    for (int step = 0; step < 50; ++step) {
      at::Tensor y = attended(qkv, group) + attended(qkv, group);  // Two layers.
      y.sum().backward();
      const at::NoGradGuard no_grad;
      attended(qkv, group);
      if (step == 2) after_three = slots->bytes();
    }
    EXPECT_EQ(slots->bytes(), after_three);
    EXPECT_LE(after_three, 5 * group.size() * block) << "two, sums, and reuse a call later";
    const std::lock_guard lock(mutex);
    all.push_back(slots);
  });
  ASSERT_EQ(all.size(), 3U);
  for (const auto& slots : all) EXPECT_TRUE(slots.expired());
}

TEST(RingMemory, GrowsToLessThanTwiceThatOfTheLongestSequence) {
  run_in_process(2, [](ProcessGroup& group) {
    std::size_t longest = 0;
    for (std::int64_t part = 8; part <= 128; part += 2) {
      const Tensors qkv(3, at::ones({1, 2, part, 4}).requires_grad_());
      attended(qkv, group).sum().backward();
      longest = std::bit_ceil(qkv[1].nbytes() * 2);
    }
    EXPECT_LE(attachment_of<SharedSlots>(group)->bytes(), 2 * 3 * group.size() * longest);
  });
}

// Returns the bytes that this process shares with others.
std::size_t mapped_shared() {
  std::ifstream maps("/proc/self/maps");
  std::size_t bytes = 0;
  for (std::string line; std::getline(maps, line);) {
    std::istringstream words(line);
    std::size_t begin = 0, end = 0;
    char dash = 0;
    std::string rights;
    words >> std::hex >> begin >> dash >> end >> rights;
    if (rights.ends_with('s')) bytes += end - begin;
  }
  return bytes;
}

const test::Ranks gives_back("attention gives memory back", [](const test::Rank& /*rank*/) {
  auto world = init_process_group();
  const std::size_t before = mapped_shared();
  auto group = world.split(0);
  Tensors qkv;
  for (const double seed : {1, 2, 3})
    qkv.push_back(at::full({1, 1, 1 << 10, 1 << 8}, seed, at::kFloat).requires_grad_());
  at::Tensor y = attended(qkv, group);
  EXPECT_GT(mapped_shared(), before + 2 * qkv[1].nbytes() * 2);
  y.sum().backward();
  const at::Tensor first = qkv[1].grad().clone();
  destroy_process_group(group);
  EXPECT_LE(mapped_shared(), before + (1 << 20));
  EXPECT_TRUE(at::equal(qkv[1].grad(), first)) << "gradients lie elsewhere";
  destroy_process_group(world);
});

TEST(RingMemory, IsUnmapped) { EXPECT_TRUE(all_succeeded(gives_back.run(2))); }

TEST(Ring, BackwardMayRunTwiceIfTheGraphIsKept) {
  run_in_process(2, [](ProcessGroup& group) {
    Tensors qkv;
    for (const double seed : {1, 2, 3})
      qkv.push_back(sequence_part(by_head(2, seed), 2, group).requires_grad_());
    const at::Tensor loss = attended(qkv, group).pow(2).sum();
    const auto first = torch::autograd::grad({loss}, qkv, {}, /*retain_graph=*/true);
    attended(qkv, group);
    const auto second = torch::autograd::grad({loss}, qkv);
    for (std::size_t i = 0; i < 3; ++i) EXPECT_TRUE(at::equal(first[i], second[i])) << i;
    const at::Tensor other = attended(qkv, group).pow(2).sum();
    EXPECT_EQ(fault_of([&] { torch::autograd::grad({other}, qkv, {}, true, true); }),
              Fault::unsupported);
  });
}

// --- The order of sequences ----------------------------------------------------------------------

TEST(Sequences, AreCutAsPyTorchDoes) {
  run_in_process(4, [](ProcessGroup& group) {
    const auto r = static_cast<std::int64_t>(group.rank());
    EXPECT_TRUE(at::equal(sequence_positions(8, group), at::tensor({2 * r, 2 * r + 1})));
    EXPECT_TRUE(at::equal(sequence_positions(8, group, SequenceOrder::head_tail),
                          at::tensor({r, 7 - r})));  // Its indices are 0 7 1 6 2 5 3 4.
    const at::Tensor x = numbers({3, 16, 2}, 1);
    for (const auto order : {SequenceOrder::contiguous, SequenceOrder::head_tail}) {
      const at::Tensor part = sequence_part(x, -2, group, order);
      EXPECT_TRUE(at::equal(part, x.index_select(1, sequence_positions(16, group, order))));
      EXPECT_TRUE(at::equal(whole_sequence(part, -2, group, order), x));
    }
    std::string text;
    EXPECT_EQ(fault_of([&] { sequence_positions(18, group); }, &text), Fault::misuse);
    EXPECT_NE(text.find("sequence length 18 cannot be cut evenly over 4 ranks: 16 or 20 can"),
              text.npos)
        << text;
    EXPECT_EQ(fault_of([&] { sequence_part(x, 0, group, SequenceOrder::head_tail); }, &text),
              Fault::misuse);
    EXPECT_NE(text.find("head_tail: sequence length 3 in 2 segments cannot be cut evenly over 4 "
                        "ranks: 8 can"),
              text.npos)
        << text;
  });
}

// --- Errors --------------------------------------------------------------------------------------

// Expects an Error on each rank for zeros of these shapes, and a group that still works.
void expect_refused(at::IntArrayRef q, at::IntArrayRef k, const AttentionOptions& of_all,
                    Fault fault, const std::string& expected) {
  run_in_process(2, [&](ProcessGroup& group) {
    std::string text;
    AttentionOptions options = of_all;
    options.context = group;
    const auto call = [&] {
      scaled_dot_product_attention(at::zeros(q), at::zeros(k), at::zeros(k), options);
    };
    EXPECT_EQ(fault_of(call, &text), fault) << expected;
    EXPECT_NE(text.find(expected), text.npos) << text;
    group.barrier();
  });
}

TEST(Context, RejectsInvalidShapesAndOptions) {
  const std::vector<std::int64_t> three{1, 3, 4, 2}, two{1, 2, 4, 2}, odd{1, 2, 3, 2};
  using enum Fault;
  expect_refused(three, three, {.method = ContextMethod::ulysses}, misuse,
                 "heads 3 cannot be cut evenly over 2 ranks: 2 or 4 can");
  expect_refused(three, two, {.enable_gqa = true}, misuse, "3 heads of q, and 2 of k");
  expect_refused({1, 4, 4, 2}, two, {}, misuse, "or a divisor with enable_gqa");
  expect_refused(two, odd, {.is_causal = true}, misuse, "no causal mask");
  expect_refused(odd, odd, {.is_causal = true, .order = SequenceOrder::head_tail}, misuse,
                 "a part of 3 positions has no head and tail: 2 or 4 have");
  expect_refused(two, {2, 4, 2}, {}, misuse, "[N, heads, T, head width]");
  expect_refused(two, {1, 2, 4, 3}, {}, misuse, "head width");
  expect_refused({1, 2, 0, 2}, {1, 2, 0, 2}, {}, misuse, "not empty");
  expect_refused(two, two, {.dropout_p = 0.5}, unsupported, "no dropout");
}

// `first` and `second` are the options of ranks 0 and 1.
void expect_mismatch(AttentionOptions first, AttentionOptions second, std::int64_t first_length,
                     std::int64_t second_length) {
  const auto call = [&](ProcessGroup& group) {
    const bool is_first = group.rank() == 0;
    auto options = is_first ? first : second;
    options.context = group;
    const at::Tensor x = at::zeros({1, 2, is_first ? first_length : second_length, 2});
    std::string text;
    EXPECT_EQ(fault_of([&] { scaled_dot_product_attention(x, x, x, options); }, &text),
              Fault::mismatch);
    EXPECT_NE(text.find("layer 3"), text.npos) << text;
  };
  EXPECT_EQ(fault_of([&] { run_in_process(2, call); }), Fault::mismatch) << "the group is broken";
}

TEST(Context, RanksThatDifferGetAMismatch) {
  for (const auto method : {ContextMethod::ring, ContextMethod::ulysses}) {
    const AttentionOptions plain{.method = method, .name = "layer 3"};
    auto causal = plain, scaled = plain, ordered = plain;
    causal.is_causal = ordered.is_causal = true;
    scaled.scale = 2;
    ordered.order = SequenceOrder::head_tail;
    expect_mismatch(plain, causal, 4, 4);
    expect_mismatch(scaled, plain, 4, 4);
    expect_mismatch(ordered, causal, 4, 4);
    expect_mismatch(plain, plain, 4, 6);
    expect_mismatch(ordered, ordered, 4, 3);  // Rank 1 refuses.
  }
  expect_mismatch({.method = ContextMethod::ring, .name = "layer 3"},
                  {.method = ContextMethod::ulysses, .name = "layer 3"}, 4, 4);
}

}  // namespace
}  // namespace lockstep::nn::attention_test

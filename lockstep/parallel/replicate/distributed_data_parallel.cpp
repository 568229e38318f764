// SPDX-License-Identifier: Apache-2.0
#include "lockstep/parallel/replicate/distributed_data_parallel.h"

#include <ATen/core/grad_mode.h>

#include <cmath>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/parallel/gradients/gradient_hook.h"
#include "lockstep/parallel/gradients/join.h"
#include "lockstep/parallel/gradients/reducer.h"
#include "lockstep/parallel/gradients/sink_choice.h"
#include "lockstep/parallel/pieces/deterministic_pass.h"
#include "lockstep/parallel/replicate/replicas.h"
#include "lockstep/parallel/replicate/shared_parameters.h"
#include "lockstep/parallel/shard/zero_redundancy_optimizer.h"
#include "lockstep/tensor/module_state.h"
#include "lockstep/tensor/named_tensors.h"
#include "lockstep/tensor/tensor_memory.h"

namespace lockstep {
namespace {

void require_shareable(const torch::nn::Module& module,
                       const DistributedDataParallelOptions& options) {
  if (options.overlap.value_or(false) || options.bucket_cap_mb || !options.bucket_caps_mb.empty())
    throw Error(
        Fault::unsupported,
        "share_parameters: gradients lie in no buckets, and are averaged by SharedOptimizer and "
        "not during backward()");
  for (const auto& [name, parameter] : named_parameters(module))
    if (GradientHook::is_on(parameter))
      throw Error(
          Fault::unsupported,
          "share_parameters: another DistributedDataParallel has parameter " + name + " too");
}

// After another DistributedDataParallel, which may be gone, has shared them.
void require_own_memory(const torch::nn::Module& module) {
  for (const auto& [name, parameter] : named_parameters(module))
    require(!lies_in_shared_block(parameter), [&, &name = name] {
      return "parameter " + name +
             " is shared by all ranks, which would step it at once: make it one of its own with "
             "set_data(clone()), or set share_parameters";
    });
}

void require_cpu(const torch::nn::Module& module, const std::string& option) {
  for (const auto& [name, parameter] : named_parameters(module))
    if (parameter.requires_grad() && !parameter.is_cpu())
      throw Error(Fault::unsupported, option + ": only in CPU memory, and parameter " + name +
                                          " is on " + parameter.device().str());
}

// Makes the replicas equal, and shares what is to be shared.
std::shared_ptr<SharedParameters> replicate(const std::shared_ptr<torch::nn::Module>& module,
                                            const ProcessGroup& group,
                                            const DistributedDataParallelOptions& options) {
  require(module != nullptr, "DistributedDataParallel: there is no module");
  require_same_options(options, group);
  if (options.deterministic != 0) {
    require_cpu(*module, "deterministic");
    require_deterministic(options, group);
  }
  require_same_tensors(named_tensors(*module), group);
  require_one_device(named_parameters(*module));
  if (options.share_parameters) require_shareable(*module, options);
  if (!options.share_parameters) {
    require_own_memory(*module);
    broadcast_replica(named_tensors(*module), group);
    return nullptr;
  }
  broadcast_replica(named_buffers(*module), group);
  return std::make_shared<SharedParameters>(named_parameters(*module), group);
}

class DataParallelState final : public Stateful {
 public:
  explicit DataParallelState(DataParallelBase& ddp) : ddp_(ddp) {}

  StateDict state_dict() override { return state_of(ddp_.replica()); }

  StateRequest wanted(const StateDict& saved) override {
    require_fits(ddp_.replica(), saved);
    if (!ddp_.shares_parameters()) return wanted_in_place(ddp_.replica(), saved);
    return ddp_.group().rank() == 0 ? everything(saved) : StateRequest{};
  }

  // Buffers are not shared; edit_parameters() broadcasts them.
  void load_state_dict(StateDict state) override {
    if (!ddp_.shares_parameters()) return copy_into(ddp_.replica(), state);
    ddp_.edit_parameters([&] { copy_into(ddp_.replica(), state); });
  }

 private:
  DataParallelBase& ddp_;
};

}  // namespace

DataParallelBase::NoSync::NoSync(bool& synchronize, bool active)
    : synchronize_(synchronize), before_(std::exchange(synchronize, synchronize && !active)) {}

DataParallelBase::DataParallelBase(std::shared_ptr<torch::nn::Module> module,
                                   const ProcessGroup& group,
                                   const DistributedDataParallelOptions& options)
    : replica_(std::move(module)),
      group_(group),
      options_(options),
      shared_(replicate(replica_, group, options)),
      sinks_(std::make_unique<SinkChoice>(named_parameters(*replica_), group, options)),
      reducer_(std::make_unique<Reducer>(sinks_->parameters(), sinks_->sink(),
                                         Reducer::Groups{.own = sinks_->group(), .given = group},
                                         options)),
      pieces_(options.deterministic > 0
                  ? std::make_unique<DeterministicPass>(*replica_, *reducer_, group, options)
                  : nullptr) {}

DataParallelBase::~DataParallelBase() = default;

void DataParallelBase::require_pass_of_its_own(const char* call) const {
  require(!is_deterministic(), [call] {
    return std::string(call) + ": with deterministic, train_pieces() is how gradients are summed";
  });
}

double DataParallelBase::train_pieces(std::int64_t step, const PieceLoss& loss_of) {
  require(is_deterministic(), "train_pieces: set the option deterministic, the number of pieces");
  require(at::GradMode::is_enabled(), "train_pieces: gradients are disabled");
  require(synchronize_, "train_pieces: one is under way");
  const NoSync alone(synchronize_, /*active=*/true);  // Until all pieces' gradients are summed.
  return pieces_->run(step, loss_of);
}

void DataParallelBase::register_comm_hook(CommunicationHook hook) {
  require_pass_of_its_own("register_comm_hook()");
  sinks_->use_hook(*reducer_, std::move(hook));
}

void DataParallelBase::edit_parameters(const std::function<void()>& change) {
  const auto edit = [&] {
    const at::NoGradGuard no_grad;
    change();
  };
  const std::exception_ptr error = shared_ != nullptr
                                       ? shared_->edit(edit)
                                       : attempt_on_rank_0(group_, "edit_parameters()", edit);
  broadcast_replica(shared_ != nullptr ? named_buffers(*replica_) : named_tensors(*replica_),
                    group_);
  if (error) std::rethrow_exception(error);
}

bool DataParallelBase::has_torn_parameters() const {
  return shared_ != nullptr && shared_->is_torn();
}

void DataParallelBase::shard_gradients(const WholeParameterOptimizer& optimizer) {
  require(optimizer.partition().size() == static_cast<std::size_t>(group_.size()),
          "shard_gradients: the optimizer was made for another number of ranks");
  std::vector<int> owners;
  for (const auto& [name, parameter] : reducer_->parameters())
    owners.push_back(optimizer.owner(parameter));
  sinks_->use_owners(*reducer_, std::move(owners));
}

std::shared_ptr<const std::int64_t> DataParallelBase::passes() const {
  return reducer_->agreement().passes();
}

bool DataParallelBase::shards_gradients() const { return sinks_->shards_gradients(); }

void DataParallelBase::watch(const at::Tensor& output) { reducer_->watch(output); }

const std::optional<NonFiniteGradient>& DataParallelBase::non_finite() const {
  return reducer_->agreement().non_finite();
}

const BucketAssignment& DataParallelBase::bucket_assignment() const {
  return reducer_->assignment();
}

BackwardTimes DataParallelBase::backward_times() const { return reducer_->times(); }

std::vector<at::Tensor> DataParallelBase::piece_memory() const {
  return pieces_ != nullptr ? pieces_->memory() : std::vector<at::Tensor>{};
}

std::vector<RegisteredMemory> DataParallelBase::gradient_memory() const {
  return reducer_->sink().memory();
}

bool DataParallelBase::is_overlapped() const { return sinks_->is_overlapped(); }

void DataParallelBase::count_samples(double samples) {
  require(options_.mean == GradientMean::over_samples,
          "count_samples: gradients are means over ranks; set GradientMean::over_samples");
  require(samples >= 0 && std::isfinite(samples),
          "count_samples: their number is negative or not finite");
  pieces_ ? pieces_->count_samples(samples) : reducer_->count_samples(samples);
}

// As PyTorch: buffers are not synchronised in the first forward() after one under no_sync or
// without gradients, so that of an evaluation no more than the first batch is collective.
void DataParallelBase::before_forward() {
  if (shared_ != nullptr) shared_->require_intact();
  const bool with_gradients = at::GradMode::is_enabled();
  if (with_gradients) reducer_->prepare(synchronize_);
  if (is_deterministic()) return;
  if (std::exchange(buffers_are_due_, with_gradients && synchronize_) && options_.broadcast_buffers)
    broadcast_buffers();
}

void DataParallelBase::broadcast_buffers() {
  const NamedTensors buffers = named_buffers(*replica_);  // A user may have exchanged them.
  if (buffers.empty()) return;
  if (!join_) return broadcast_replica(buffers, group_);
  join_->exchange(Join::Step::broadcast_buffers);
  broadcast_replica(buffers, group_, join_->largest_active_rank());
}

DataParallelBase::Joining::Joining(DataParallelBase& ddp, const JoinOptions& options) : ddp_(ddp) {
  ddp.require_pass_of_its_own("join()");
  require(!ddp.join_, "join() is under way already");
  if (ddp.shared_ != nullptr)
    throw Error(Fault::unsupported,
                "join(): every rank steps its slice of shared parameters, so "
                "that all must make the same number of passes");
  if (ddp.shards_gradients())
    throw Error(
        Fault::unsupported,
        "join(): with shard_gradients() a rank that is done would have to go on stepping the "
        "parameters that it owns");
  auto join = std::make_unique<Join>(ddp.group_, options);
  ddp.reducer_->set_join(join.get());
  ddp.join_ = std::move(join);
}

DataParallelBase::Joining::~Joining() {
  ddp_.reducer_->set_join(nullptr);
  ddp_.join_.reset();
}

void DataParallelBase::follow_others() {
  while (const auto step = join_->exchange(Join::Step::joined)) {
    if (*step == Join::Step::average_gradients)
      reducer_->shadow_pass();
    else
      broadcast_replica(named_buffers(*replica_), group_, join_->largest_active_rank());
  }
  broadcast_replica(
      options_.broadcast_buffers ? named_tensors(*replica_) : named_parameters(*replica_), group_,
      join_->largest_active_rank());
  reducer_->forget_window();  // The others' last pass may have been under no_sync, ours not.
  buffers_are_due_ = true;
}

std::unique_ptr<Stateful> data_parallel_state(DataParallelBase& ddp) {
  return std::make_unique<DataParallelState>(ddp);
}

}  // namespace lockstep

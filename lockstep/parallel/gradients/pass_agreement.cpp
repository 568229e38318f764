// SPDX-License-Identifier: Apache-2.0
#include "lockstep/parallel/gradients/pass_agreement.h"

#include <string>

#include "lockstep/base/log.h"

namespace lockstep {

bool is_agreed(const std::exception_ptr& error) {
  try {
    if (error) std::rethrow_exception(error);
  } catch (const AgreedError&) {
    return true;
  } catch (...) {
  }
  return false;
}

PassReports PassAgreement::exchange(PassReport report, const std::vector<ParameterUse>& uses,
                                    const ProcessGroup& group, std::string_view exception) {
  report.pass = ++*passes_;
  return {report, uses, group, exception};
}

bool PassAgreement::accepts(const PassReports& reports, const NamedTensors& parameters,
                            const ProcessGroup& group) {
  try {
    return judge(reports, parameters, group.rank());
  } catch (const Error& error) {
    throw AgreedError(error);
  }
}

bool PassAgreement::judge(const PassReports& reports, const NamedTensors& parameters, int rank) {
  *passes_ = reports.last_pass();
  reports.require_no_exception();
  reports.require_same_pass();
  reports.require_complete(parameters);
  require(options_.mean == GradientMean::over_ranks || reports.samples() > 0,
          "count_samples() has counted none on any rank, though gradients are means over samples");
  non_finite_.reset();
  if (options_.non_finite == NonFinite::ignore) return true;
  non_finite_ = reports.non_finite(parameters);
  if (!non_finite_) return true;
  const std::string text = "the gradient of " + non_finite_->parameter + " on rank " +
                           std::to_string(non_finite_->rank) + " is infinite or NaN";
  if (options_.non_finite == NonFinite::fail) throw Error(Fault::corrupt, text);
  if (rank == 0) log(LogLevel::warning, text + ": all ranks skip this step");
  return false;
}

}  // namespace lockstep

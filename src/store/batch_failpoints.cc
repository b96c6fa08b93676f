#include "store/batch_failpoints.h"

#include <fmt/core.h>

#include <string>

#include "async/failpoint.h"

namespace ae::store {
namespace {

Error refused(std::string_view name) {
  return {Code::unavailable, fmt::format("failpoint {}: nothing was done; try again", name)};
}

Error answer_lost(std::string_view name) {
  return {
      Code::unknown_outcome,
      fmt::format("failpoint {}: done, but the answer was lost; reload before you retry", name)};
}

}  // namespace

bool BatchFailpoints::may_fail_before_commit(const Batch& batch) {
  return async::failpoint_handler != nullptr && batch.sealed && !batch.failpoints.empty();
}

std::optional<Error> BatchFailpoints::before() {
  return batch_.sealed ? hit_before_commit("append.before") : std::nullopt;
}

std::optional<Error> BatchFailpoints::before_commit() {
  if (!batch_.sealed) return std::nullopt;
  for (const std::string_view name : batch_.failpoints) {
    if (auto error = hit_before_commit(name)) return error;
  }
  return std::nullopt;
}

std::optional<Error> BatchFailpoints::after() {
  const auto hit = [this](std::string_view name) {
    if (async::hit_failpoint(name) != async::FailpointAction::proceed) lost_answer_ = name;
  };
  if (batch_.sealed) {
    hit("append.after");
  } else {
    for (const std::string_view name : batch_.failpoints) hit(name);
  }
  if (const auto* create = std::get_if<Batch::Create>(&batch_.authority);
      create != nullptr && create->job->claim) {
    hit("claim.after");
  }
  if (lost_answer_.empty()) return std::nullopt;
  return answer_lost(lost_answer_);
}

std::optional<Error> BatchFailpoints::hit_before_commit(std::string_view name) {
  switch (async::hit_failpoint(name)) {
    case async::FailpointAction::proceed:
      break;
    case async::FailpointAction::error:
      return refused(name);
    case async::FailpointAction::error_after:
      lost_answer_ = name;
      break;
  }
  return std::nullopt;
}

std::optional<Error> hit_after_failpoint(std::string_view name) {
  if (async::hit_failpoint(name) == async::FailpointAction::proceed) return std::nullopt;
  return answer_lost(name);
}

BeforeFailpoint hit_before_failpoint(std::string_view name) {
  switch (async::hit_failpoint(name)) {
    case async::FailpointAction::proceed:
      break;
    case async::FailpointAction::error:
      return {.now = refused(name), .afterwards = std::nullopt};
    case async::FailpointAction::error_after:
      return {.now = std::nullopt, .afterwards = answer_lost(name)};
  }
  return {};
}

}  // namespace ae::store

#include "store/points.h"

#include <string>

#include "async/point.h"

namespace ae::store {
namespace {

Error refused(std::string_view name) {
  return {Code::unavailable, "failpoint " + std::string(name) + ": nothing was done; try again"};
}

Error lost(std::string_view name) {
  return {Code::unknown_outcome, "failpoint " + std::string(name) +
                                     ": done, but the answer was lost; reload before you retry"};
}

}  // namespace

bool BatchPoints::may_undo(const Batch& batch) {
  return async::point_handler != nullptr && batch.sealed && !batch.points.empty();
}

std::optional<Error> BatchPoints::before() {
  return batch_.sealed ? undoable("append.before") : std::nullopt;
}

std::optional<Error> BatchPoints::inside() {
  if (!batch_.sealed) return std::nullopt;
  for (const std::string_view name : batch_.points) {
    if (auto error = undoable(name)) return error;
  }
  return std::nullopt;
}

std::optional<Error> BatchPoints::after() {
  const auto hit = [this](std::string_view name) {
    if (async::at_point(name) != async::PointAction::go) lost_ = name;
  };
  if (batch_.sealed) {
    hit("append.after");
  } else {
    for (const std::string_view name : batch_.points) hit(name);
  }
  if (const auto* create = std::get_if<Batch::Create>(&batch_.authority);
      create != nullptr && create->job.claim) {
    hit("claim.after");
  }
  if (lost_.empty()) return std::nullopt;
  return lost(lost_);
}

std::optional<Error> BatchPoints::undoable(std::string_view name) {
  switch (async::at_point(name)) {
    case async::PointAction::go:
      break;
    case async::PointAction::error:
      return refused(name);
    case async::PointAction::error_after:
      lost_ = name;
      break;
  }
  return std::nullopt;
}

std::optional<Error> point_after(std::string_view name) {
  if (async::at_point(name) == async::PointAction::go) return std::nullopt;
  return lost(name);
}

PointBefore point_before(std::string_view name) {
  switch (async::at_point(name)) {
    case async::PointAction::go:
      break;
    case async::PointAction::error:
      return {.now = refused(name), .afterwards = std::nullopt};
    case async::PointAction::error_after:
      return {.now = std::nullopt, .afterwards = lost(name)};
  }
  return {};
}

}  // namespace ae::store

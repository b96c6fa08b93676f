#include "engine/code/replay.h"

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "log/field_names.h"

namespace ae::engine {
namespace {

// Without arguments, because it cannot be erased.
Value text_of(const MadeRequest& request) {
  std::vector<Member> found{{field::kind, to_text(request.kind)},
                            {field::position, std::string(request.position)}};
  if (!request.tool.empty()) found.emplace_back("tool", std::string(request.tool));
  if (request.kind == NodeKind::wait) found.emplace_back("wait", to_text(request.wait));
  return Value::object(std::move(found));
}

bool is_same(const MadeRequest& made, const RecordedRequest& recorded) {
  if (made.kind != recorded.kind) return false;
  if (made.kind == NodeKind::wait) return made.wait == recorded.wait;
  if (is_scope(made.kind)) return true;
  // A call that was refused has no recorded arguments.
  return made.tool == recorded.tool && (!recorded.arguments_hash || !made.arguments_hash ||
                                        *made.arguments_hash == *recorded.arguments_hash);
}

}  // namespace

Replay::Replay(CodeRecord record) : record_(std::move(record)), matched_(record_.requests.size()) {
  const std::uint64_t outcomes = record_.outcomes();
  for (std::size_t i = 0; i < record_.requests.size(); ++i) {
    const RecordedRequest& request = record_.requests[i];
    by_position_.emplace(request.position, i);
    AE_CHECK(request.delivered <= outcomes, request.position);
    unmatched_at_[request.delivered]++;
  }
  unmatched_ = record_.requests.size();
  due_ = unmatched_at_[0];
}

Replay::Match Replay::match(const MadeRequest& request) {
  const auto found = by_position_.find(request.position);
  if (found == by_position_.end()) return Match::is_new;
  const RecordedRequest& recorded = record_.requests[found->second];
  if (matched_[found->second] || !is_same(request, recorded)) {
    divergence_ = Divergence{.delivered = static_cast<std::int64_t>(delivered_),
                             .finding = field::arguments,
                             .found = text_of(request),
                             .position = recorded.position};
    return Match::diverged;
  }
  matched_[found->second] = true;
  unmatched_--;
  unmatched_at_[recorded.delivered]--;
  if (recorded.delivered <= delivered_) due_--;
  return Match::recorded;
}

std::optional<std::uint64_t> Replay::first_turn(std::string_view loop) const {
  std::optional<std::uint64_t> first;
  for (const RecordedRequest& request : record_.requests) {
    if (request.kind != NodeKind::turn) continue;
    const auto turn = turn_at(request.position);
    if (turn && turn->loop == loop && (!first || turn->number < *first)) first = turn->number;
  }
  return first;
}

const Value* Replay::value(const std::string& name) const {
  const auto found = record_.values.find(name);
  return found == record_.values.end() ? nullptr : &found->second;
}

bool Replay::was_emitted(const std::string& scope) {
  const auto recorded = record_.emitted.find(scope);
  return recorded != record_.emitted.end() && ++emitted_[scope] <= recorded->second;
}

const Delivery& Replay::deliver() {
  AE_CHECK(may_deliver(), "no outcome may be delivered");
  const Delivery& next = record_.deliveries[next_++];
  const std::uint64_t before = delivered_;
  delivered_ += std::max<std::uint64_t>(next.passed_over, 1);
  for (auto at = unmatched_at_.upper_bound(before);
       at != unmatched_at_.end() && at->first <= delivered_; ++at) {
    due_ += at->second;
  }
  return next;
}

std::optional<Divergence> Replay::find_missing(bool ended) const {
  if (unmatched_ == 0 || (!ended && due_ == 0)) return std::nullopt;
  for (std::size_t i = 0; i < record_.requests.size(); ++i) {
    const RecordedRequest& request = record_.requests[i];
    if (matched_[i] || (!ended && request.delivered > delivered_)) continue;
    return Divergence{.delivered = static_cast<std::int64_t>(delivered_),
                      .finding = ended ? "ended" : "missing",
                      .position = request.position};
  }
  return std::nullopt;
}

}  // namespace ae::engine

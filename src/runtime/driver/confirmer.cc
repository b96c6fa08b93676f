#include "runtime/driver/confirmer.h"

#include <optional>
#include <utility>

#include "engine/confirm/confirm.h"

namespace ae::runtime {
namespace {

constexpr std::size_t kConcurrentMax = 16;
constexpr std::uint32_t kTriesMax = 4;
constexpr Duration kPauseFirst =
    std::chrono::milliseconds(200);  // each later pause is kPauseGrows times longer
constexpr std::uint32_t kPauseGrows = 5;
// Verifiers have shorter limits of their own
constexpr Duration kCheckMax = std::chrono::minutes(2);

CheckResult unreachable(std::string reason) {
  return {.verdict = CheckVerdict::unreachable,
          .expected = {},
          .observed = {},
          .reason = std::move(reason)};
}

}  // namespace

Confirmer::Confirmer(async::Loop& loop, ToolRegistry& tool_registry,
                     std::function<void()> on_checked)
    : loop_(loop), tool_registry_(tool_registry), on_checked_(std::move(on_checked)) {}

Confirmer::~Confirmer() = default;

void Confirmer::check(const engine::State& state, const std::vector<std::string>& keys,
                      const std::vector<std::string>& versions) {
  for (const std::string& key : keys) {
    const engine::Change& change = state.changes.at(key);
    auto [pending, fresh] = checks_.try_emplace(key);
    if (!fresh && pending->second.seq == change.seq) continue;
    const auto& tools = state.plan->tools;
    const auto tool = std::ranges::find(tools, change.tool, &engine::ToolPolicy::name);
    const auto index = static_cast<std::size_t>(tool - tools.begin());
    pending->second = {change.seq, change.tool,
                       index < versions.size() ? versions[index] : std::string(),
                       engine::change_value(change), 0};
    queue_.push_back(key);
  }
  start_next();
}

void Confirmer::start_next() {
  while (running_ < kConcurrentMax && !queue_.empty()) {
    const std::string key = std::move(queue_.front());
    queue_.pop_front();
    if (!checks_.contains(key)) continue;
    running_++;
    start(key);
  }
}

void Confirmer::start(const std::string& key) {
  PendingCheck& pending = checks_.at(key);
  pending.tries++;
  // The first answer counts; the timeout counts as one.
  const auto timeout = std::make_shared<std::optional<async::TimerId>>();
  const auto answer = [weak = std::weak_ptr(self_), key, seq = pending.seq,
                       timeout](CheckResult check_result) {
    auto self = weak.lock();
    if (!self || !*timeout) return;
    (*self)->loop_.cancel(**timeout);
    timeout->reset();
    (*self)->on_check_result(key, seq, std::move(check_result));
  };
  *timeout = loop_.after(kCheckMax, [answer] { answer(unreachable("no answer in time")); });
  auto* entry = tool_registry_.find(pending.tool, pending.version);
  if (entry && entry->verifier) return entry->verifier->check(pending.change, answer);
  loop_.post([answer] { answer(unreachable("this process has no verifier for it")); });
}

void Confirmer::on_check_result(const std::string& key, std::uint64_t seq,
                                CheckResult check_result) {
  auto pending = checks_.find(key);
  const bool is_current = pending != checks_.end() && pending->second.seq == seq;
  if (is_current && check_result.verdict == CheckVerdict::unreachable &&
      pending->second.tries < kTriesMax) {
    Duration pause = kPauseFirst;
    for (std::uint32_t i = 1; i < pending->second.tries; ++i) pause *= kPauseGrows;
    loop_.after(pause, [weak = std::weak_ptr(self_), key, seq] {
      auto self = weak.lock();
      if (!self) return;
      auto& checks = (*self)->checks_;
      if (auto it = checks.find(key); it != checks.end() && it->second.seq == seq) {
        return (*self)->start(key);
      }
      (*self)->running_--;  // the resource has changed meanwhile: its new check is in the queue
      (*self)->start_next();
    });
    return;
  }
  running_--;
  if (is_current) {
    checks_.erase(pending);
    results_[key] = {seq, std::move(check_result)};
  }
  start_next();
  if (is_current) on_checked_();
}

}  // namespace ae::runtime

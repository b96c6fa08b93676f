#include "runtime/confirmer.h"

#include <optional>
#include <utility>

#include "engine/confirm/confirm.h"

namespace ae::runtime {
namespace {

constexpr std::size_t kAtOnce = 16;
constexpr std::uint32_t kTriesMax = 4;
constexpr Duration kPauseFirst = std::chrono::milliseconds(200);  // then five times as long
constexpr std::uint32_t kPauseGrows = 5;
constexpr Duration kLookMax =
    std::chrono::minutes(2);  // verifiers have shorter limits of their own

Sighting unreachable(std::string reason) {
  return {.sight = Sight::unreachable, .expected = {}, .observed = {}, .reason = std::move(reason)};
}

}  // namespace

Confirmer::Confirmer(async::Loop& loop, Performers& performers, std::function<void()> seen)
    : loop_(loop), performers_(performers), told_(std::move(seen)) {}

Confirmer::~Confirmer() = default;

void Confirmer::look(const engine::State& state, const std::vector<std::string>& keys,
                     const std::vector<std::string>& versions) {
  for (const std::string& key : keys) {
    const engine::Change& change = state.changes.at(key);
    auto [look, fresh] = looks_.try_emplace(key);
    if (!fresh && look->second.seq == change.seq) continue;
    const auto& tools = state.plan->tools;
    const auto tool = std::ranges::find(tools, change.tool, &engine::ToolPolicy::name);
    const auto index = static_cast<std::size_t>(tool - tools.begin());
    look->second = {change.seq, change.tool,
                    index < versions.size() ? versions[index] : std::string(),
                    engine::change_value(change), 0};
    waiting_.push_back(key);
  }
  more();
}

void Confirmer::more() {
  while (under_way_ < kAtOnce && !waiting_.empty()) {
    const std::string key = std::move(waiting_.front());
    waiting_.pop_front();
    if (!looks_.contains(key)) continue;
    under_way_++;
    start(key);
  }
}

void Confirmer::start(const std::string& key) {
  Look& look = looks_.at(key);
  look.tries++;
  // The first answer counts; when none comes in time, that is one.
  const auto late = std::make_shared<std::optional<async::TimerId>>();
  const auto answer = [weak = std::weak_ptr(self_), key, seq = look.seq, late](Sighting sighting) {
    auto self = weak.lock();
    if (!self || !*late) return;
    (*self)->loop_.forget(**late);
    late->reset();
    (*self)->answered(key, seq, std::move(sighting));
  };
  *late = loop_.after(kLookMax, [answer] { answer(unreachable("no answer in time")); });
  auto* entry = performers_.find(look.tool, look.version);
  if (entry && entry->verifier) return entry->verifier->look(look.change, answer);
  loop_.post([answer] { answer(unreachable("this process has no verifier for it")); });
}

void Confirmer::answered(const std::string& key, std::uint64_t seq, Sighting sighting) {
  auto look = looks_.find(key);
  const bool wanted = look != looks_.end() && look->second.seq == seq;
  if (wanted && sighting.sight == Sight::unreachable && look->second.tries < kTriesMax) {
    Duration pause = kPauseFirst;
    for (std::uint32_t i = 1; i < look->second.tries; ++i) pause *= kPauseGrows;
    loop_.after(pause, [weak = std::weak_ptr(self_), key, seq] {
      auto self = weak.lock();
      if (!self) return;
      auto& looks = (*self)->looks_;
      if (auto it = looks.find(key); it != looks.end() && it->second.seq == seq) {
        return (*self)->start(key);
      }
      (*self)->under_way_--;  // it has changed meanwhile: the new one is in the queue
      (*self)->more();
    });
    return;
  }
  under_way_--;
  if (wanted) {
    looks_.erase(look);
    seen_[key] = {seq, std::move(sighting)};
  }
  more();
  if (wanted) told_();
}

}  // namespace ae::runtime

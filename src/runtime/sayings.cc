#include "runtime/sayings.h"

#include <algorithm>
#include <map>
#include <utility>

namespace ae::runtime {

struct Sayings::State {
  struct Listener {
    std::weak_ptr<State> state;
    JobId job;
    std::function<void()> heard;
    Listener(const std::shared_ptr<State>& of, JobId which, std::function<void()> then)
        : state(of), job(std::move(which)), heard(std::move(then)) {}
    Listener(const Listener&) = delete;
    Listener& operator=(const Listener&) = delete;
    ~Listener() {
      if (const auto still = state.lock()) still->forget(job);
    }
  };
  SayingLimits limits;
  std::map<JobId, std::vector<std::shared_ptr<Saying>>> open;
  std::size_t bytes = 0, sayings = 0;  // of what is open
  std::map<JobId, std::vector<std::weak_ptr<Listener>>> listeners;
  std::size_t listening = 0;

  // Is it still open? Its bytes are counted as long as it is.
  bool holds(const JobId& job, const std::shared_ptr<Saying>& saying) const {
    const auto of_job = open.find(job);
    return of_job != open.end() && std::ranges::count(of_job->second, saying) > 0;
  }

  void add(const JobId& job, const std::shared_ptr<Saying>& saying, const tools::Piece& piece) {
    if (!holds(job, saying) || saying->full || piece.text.empty()) return;
    const std::size_t size = saying->text.size() + piece.text.size();
    const bool fits = piece.offset == saying->text.size() && size <= limits.text_max &&
                      bytes + piece.text.size() <= limits.all_max;
    if (!fits) {
      saying->full = true;
      return;
    }
    saying->text += piece.text;
    bytes += piece.text.size();
    tell(job);
  }

  // Who hears may leave, and others may come, while they are told.
  void tell(const JobId& job) {
    const auto of_job = listeners.find(job);
    if (of_job == listeners.end()) return;
    const auto all = of_job->second;
    for (const auto& weak : all) {
      if (const auto listener = weak.lock()) listener->heard();
    }
  }

  // One of those who listened to the job has gone.
  void forget(const JobId& job) {
    --listening;
    const auto of_job = listeners.find(job);
    if (of_job == listeners.end()) return;
    std::erase_if(of_job->second, [](const auto& listener) { return listener.expired(); });
    if (of_job->second.empty()) listeners.erase(of_job);
  }

  template <class Which>
  void drop(const JobId& job, Which which) {
    const auto of_job = open.find(job);
    if (of_job == open.end()) return;
    std::erase_if(of_job->second, [&](const std::shared_ptr<Saying>& saying) {
      if (!which(*saying)) return false;
      bytes -= saying->text.size();
      --sayings;
      return true;
    });
    if (of_job->second.empty()) open.erase(of_job);
  }
};

Sayings::Sayings(SayingLimits limits) : state_(std::make_shared<State>()) {
  state_->limits = limits;
}

Sayings::~Sayings() = default;

std::move_only_function<void(tools::Piece)> Sayings::begin(const JobId& job, Saying saying) {
  if (state_->sayings >= state_->limits.sayings_max) return {};
  auto kept = std::make_shared<Saying>(std::move(saying));
  state_->open[job].push_back(kept);
  ++state_->sayings;
  return [weak = std::weak_ptr(state_), job, kept = std::move(kept)](const tools::Piece& piece) {
    if (const auto state = weak.lock()) state->add(job, kept, piece);
  };
}

void Sayings::end(const JobId& job, const InvocationId& invocation, std::uint32_t try_no) {
  state_->drop(job, [&](const Saying& saying) {
    return saying.invocation == invocation && saying.try_no == try_no;
  });
}

void Sayings::end_all(const JobId& job) {
  state_->drop(job, [](const Saying&) { return true; });
}

std::vector<std::shared_ptr<const Saying>> Sayings::of(const JobId& job) const {
  const auto of_job = state_->open.find(job);
  if (of_job == state_->open.end()) return {};
  return {of_job->second.begin(), of_job->second.end()};
}

std::shared_ptr<void> Sayings::listen(const JobId& job, std::function<void()> heard) {
  if (state_->listening >= state_->limits.listeners_max) return nullptr;
  auto listener = std::make_shared<State::Listener>(state_, job, std::move(heard));
  state_->listeners[job].push_back(listener);
  ++state_->listening;
  return listener;
}

}  // namespace ae::runtime

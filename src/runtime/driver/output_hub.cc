#include "runtime/driver/output_hub.h"

#include <algorithm>
#include <map>
#include <utility>

namespace ae::runtime {

struct OutputHub::State {
  struct Subscriber {
    std::weak_ptr<State> state;
    JobId job;
    std::function<void()> on_delta;
    Subscriber(const std::shared_ptr<State>& of, JobId which, std::function<void()> then)
        : state(of), job(std::move(which)), on_delta(std::move(then)) {}
    Subscriber(const Subscriber&) = delete;
    Subscriber& operator=(const Subscriber&) = delete;
    ~Subscriber() {
      if (const auto locked = state.lock()) locked->remove_subscriber(job);
    }
  };
  PartialOutputLimits limits;
  std::map<JobId, std::vector<std::shared_ptr<PartialOutput>>> open;
  std::size_t bytes = 0, open_outputs = 0;  // of open buffers
  std::map<JobId, std::vector<std::weak_ptr<Subscriber>>> subscribers;
  std::size_t subscriber_count = 0;

  // The buffer of this try; one that has no piece yet is added. nullptr: its beginning is missing,
  // or there are too many.
  PartialOutput* buffer_of(const JobId& job, std::string_view node, const engine::SentTry& sent,
                           std::size_t offset) {
    const auto is_its = [&](const std::shared_ptr<PartialOutput>& output) {
      return output->invocation == sent.invocation && output->try_no == sent.try_no;
    };
    if (const auto of_job = open.find(job); of_job != open.end()) {
      const auto found = std::ranges::find_if(of_job->second, is_its);
      if (found != of_job->second.end()) return found->get();
    }
    if (offset > 0 || open_outputs >= limits.outputs_max) return nullptr;
    ++open_outputs;
    return open[job]
        .emplace_back(std::make_shared<PartialOutput>(PartialOutput{.step = sent.step,
                                                                    .node = std::string(node),
                                                                    .invocation = sent.invocation,
                                                                    .try_no = sent.try_no,
                                                                    .text = {}}))
        .get();
  }

  void add(const JobId& job, PartialOutput& output, const tools::TextDelta& piece) {
    if (output.full) return;
    const std::size_t size = output.text.size() + piece.text.size();
    const bool fits = piece.offset == output.text.size() && size <= limits.text_max &&
                      bytes + piece.text.size() <= limits.total_max;
    if (!fits) {
      output.full = true;
      return;
    }
    output.text += piece.text;
    bytes += piece.text.size();
    notify(job);
  }

  // Works on a copy, because a callback may remove or add subscribers.
  void notify(const JobId& job) {
    const auto of_job = subscribers.find(job);
    if (of_job == subscribers.end()) return;
    const auto all = of_job->second;
    for (const auto& weak : all) {
      if (const auto subscriber = weak.lock()) subscriber->on_delta();
    }
  }

  // Called after a subscriber of the job was destroyed.
  void remove_subscriber(const JobId& job) {
    --subscriber_count;
    const auto of_job = subscribers.find(job);
    if (of_job == subscribers.end()) return;
    std::erase_if(of_job->second, [](const auto& subscriber) { return subscriber.expired(); });
    if (of_job->second.empty()) subscribers.erase(of_job);
  }

  template <class Which>
  void drop(const JobId& job, Which which) {
    const auto of_job = open.find(job);
    if (of_job == open.end()) return;
    std::erase_if(of_job->second, [&](const std::shared_ptr<PartialOutput>& output) {
      if (!which(*output)) return false;
      bytes -= output->text.size();
      --open_outputs;
      return true;
    });
    if (of_job->second.empty()) open.erase(of_job);
  }
};

OutputHub::OutputHub(PartialOutputLimits limits) : state_(std::make_shared<State>()) {
  state_->limits = limits;
}

OutputHub::~OutputHub() = default;

void OutputHub::add(const JobId& job, std::string_view node, const engine::SentTry& sent,
                    const tools::TextDelta& piece) {
  if (piece.text.empty()) return;
  PartialOutput* const output = state_->buffer_of(job, node, sent, piece.offset);
  if (output != nullptr) state_->add(job, *output, piece);
}

void OutputHub::end(const JobId& job, const InvocationId& invocation, std::uint32_t try_no) {
  state_->drop(job, [&](const PartialOutput& output) {
    return output.invocation == invocation && output.try_no == try_no;
  });
}

void OutputHub::end_all(const JobId& job) {
  state_->drop(job, [](const PartialOutput&) { return true; });
}

std::vector<std::shared_ptr<const PartialOutput>> OutputHub::outputs_of(const JobId& job) const {
  const auto of_job = state_->open.find(job);
  if (of_job == state_->open.end()) return {};
  return {of_job->second.begin(), of_job->second.end()};
}

std::shared_ptr<void> OutputHub::subscribe(const JobId& job, std::function<void()> on_delta) {
  if (state_->subscriber_count >= state_->limits.subscribers_max) return nullptr;
  auto subscriber = std::make_shared<State::Subscriber>(state_, job, std::move(on_delta));
  state_->subscribers[job].push_back(subscriber);
  ++state_->subscriber_count;
  return subscriber;
}

}  // namespace ae::runtime

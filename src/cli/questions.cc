#include "cli/questions.h"

#include <fmt/core.h>

#include <algorithm>
#include <utility>

#include "engine/confirm/confirm.h"
#include "engine/state/state.h"
#include "log/decisions.h"
#include "log/field_names.h"
#include "log/outcome.h"
#include "log/park_until.h"

namespace ae::cli {

std::string_view kind_text(QuestionKind kind) {
  switch (kind) {
    case QuestionKind::approval:
      return "approval";
    case QuestionKind::wait:
      return "wait";
    case QuestionKind::question:
      return "question";
    case QuestionKind::in_doubt:
      return "in_doubt";
    case QuestionKind::confirmation:
      return "confirmation";
    case QuestionKind::budget:
      return "budget";
    case QuestionKind::parked:
      return "parked";
  }
  return {};
}

Value to_value(const Question& question, const std::string& store_flag) {
  return Value::object({{"command", question.command + store_flag},
                        {"id", question.id},
                        {"job", question.job.text},
                        {"key", question.key},
                        {field::kind, kind_text(question.kind)},
                        {field::node_id, question.node}});
}

void OpenQuestions::add_question(const Event& event, QuestionKind kind, std::string key,
                                 std::string command) {
  Question question{.job = job_,
                    .seq = event.seq,
                    .id = to_text(event.id),
                    .kind = kind,
                    .key = std::move(key),
                    .node = std::string(node_of(event)),
                    .command = std::move(command)};
  const std::string name = event.type == EventType::job_parked ? "" : question.key;
  open_.insert_or_assign(name, std::move(question));
}

void OpenQuestions::opened(const Event& event) {
  const auto& wait = std::get<WaitOpened>(event.body);
  if (wait.wait_type != "human") return;
  const std::string& step = wait.step_id.text;
  std::string key = wait.correlation_key;
  if (key.starts_with("resolve/")) {
    // Its page lists the possible answers; none is a default.
    return add_question(event, QuestionKind::in_doubt, std::move(key),
                        fmt::format("aetheris job {}", job_.text));
  }
  if (or_empty(wait.reason) == to_text(OutcomeKind::input_required)) {  // of a tool
    std::string command = fmt::format(
        R"(aetheris signal {} '{}' '{{"action": "accept", "content": {{}}}}')", job_.text, key);
    return add_question(event, QuestionKind::question, std::move(key), std::move(command));
  }
  const bool of_call = key.starts_with("approval/");
  add_question(
      event, of_call ? QuestionKind::approval : QuestionKind::wait, std::move(key),
      fmt::format("aetheris approve {}.{}", job_.text, of_call ? approval_requests_[step] : step));
}

void OpenQuestions::decided(const Event& event) {
  const auto& decision = std::get<DecisionRecorded>(event.body);
  const std::string step(step_of(event));
  const bool requested = decision.state == "requested";
  if (requested && decision.kind == ApprovalRequested::kKind)
    approval_requests_[step] = decision.decision_id.text;
  if (decision.kind != ConfirmationRequested::kKind) return;
  if (requested) {
    add_question(event, QuestionKind::confirmation, step,
                 fmt::format("aetheris resolve {} {} accept", job_.text, step));
  } else {
    open_.erase(step);
  }
}

// Uses only the park itself: the pause request and verifications may be in an earlier commit.
void OpenQuestions::parked(const Event& event) {
  const auto& park = std::get<JobParked>(event.body);
  const std::string &reason = park.reason, &until = park.until;
  const bool of_runtime = reason == engine::kWornOut || reason == engine::kVerifierUnreachable;
  const bool paused =
      until == park_until::kResume && !of_runtime;  // with any reason of an operator, or none
  if (until == park_until::kResolve || until == park_until::kConfirmation || paused) return;
  add_question(event, until == park_until::kBudget ? QuestionKind::budget : QuestionKind::parked,
               reason, fmt::format("aetheris job {}", job_.text));
}

void OpenQuestions::apply(const Event& event) {
  switch (event.type) {
    case EventType::wait_opened:
      return opened(event);
    case EventType::wait_completed:
      open_.erase(std::get<WaitCompleted>(event.body).correlation_key);
      return;
    case EventType::decision_recorded:
      return decided(event);
    case EventType::job_parked:
      return parked(event);
    case EventType::job_resumed:
      open_.erase("");
      return;
    case EventType::job_completed:
    case EventType::job_failed:
    case EventType::job_cancelled:
      open_.clear();
      return;
    default:
      return;
  }
}

std::vector<Question> OpenQuestions::list() const {
  std::vector<Question> all;
  all.reserve(open_.size());
  for (const auto& [key, question] : open_) all.push_back(question);
  std::ranges::sort(all, {}, &Question::seq);
  return all;
}

}  // namespace ae::cli

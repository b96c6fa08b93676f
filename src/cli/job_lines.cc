#include "cli/job_lines.h"

#include <fmt/core.h>

#include <algorithm>
#include <cstdint>
#include <string_view>
#include <utility>

#include "log/field_names.h"
#include "log/park_until.h"

namespace ae::cli {
namespace {

// What a job waits for, by the kind of question.
std::string_view question_words(QuestionKind kind) {
  switch (kind) {
    case QuestionKind::approval:
      return "approval of a call";
    case QuestionKind::question:
      return "the answer to a question of a tool";
    case QuestionKind::in_doubt:
      return "a decision about a call with an unknown outcome";
    case QuestionKind::confirmation:
      return "a decision about a changed resource";
    case QuestionKind::budget:
      return "a larger budget";
    case QuestionKind::wait:
    case QuestionKind::parked:
      break;
  }
  return "the decision of an operator";
}

std::string park_words(std::string_view until, std::string_view reason) {
  if (reason == "non_determinism") return "its code differs from its log";
  if (reason == "routine_failed") return "its code ended with an exception";
  if (reason == "routine_stalled") return "its code waits for nothing and has not ended";
  if (until == park_until::kResolve) return "call outcome unknown; needs a decision";
  if (until == park_until::kBudget) return "budget used up";
  if (until == park_until::kConfirmation) return "a recorded change differs; needs a decision";
  if (until == park_until::kVersion) return "needs a process of its execution version";
  return "until resumed";
}

// A reason written by a user is a value of the job.
bool is_code(std::string_view reason) {
  constexpr std::string_view kCodes[] = {"invocation_in_doubt",
                                         "budget_exceeded",
                                         "execution_version_mismatch",
                                         "replay_verification_human_required",
                                         "verifier_unreachable",
                                         "re_plan",
                                         "paused",
                                         "store_rolled_back",
                                         "non_determinism",
                                         "routine_failed",
                                         "routine_stalled",
                                         "worn_out"};
  return std::ranges::find(kCodes, reason) != std::end(kCodes);
}

void add(ServiceLog::Line& line, const char* name, std::string_view value) {
  if (!value.empty()) line.more.emplace_back(name, std::string(value));
}

}  // namespace

void JobLines::blocked(const JobId& job, const Event& event, ServiceLog::Line& line) {
  const auto* parked = as<JobParked>(event);
  const auto* waiting = as<JobWaiting>(event);
  const auto seen = jobs_.find(job);
  const std::vector<Question> open =
      seen == jobs_.end() ? std::vector<Question>() : seen->second.list();
  const bool timer = waiting && waiting->wait_type == "timer";
  std::string node(node_of(event));
  const bool paused = parked && parked->until == park_until::kResume;
  std::string answer =
      timer ? ""
            : fmt::format("aetheris {} {}{}", paused ? "resume" : "job", job.text, store_flag_);
  std::string what;
  if (parked) {
    what = park_words(parked->until, parked->reason);
    line.code = is_code(parked->reason) ? parked->reason : "paused";
  } else if (waiting->wait_type == "human") {
    what = "for the decision of an operator";
  } else if (waiting->wait_type == "job") {
    what = "for a child job";
  } else {
    what = fmt::format("for a {}", waiting->wait_type);
  }
  if (!open.empty()) {
    const Question& first = open.front();
    node = first.node.empty() ? node : first.node;
    answer = first.command + store_flag_;
    if (waiting) what = fmt::format("for {}", question_words(first.kind));
    add(line, "question", kind_text(first.kind));
  } else if (waiting) {
    add(line, "wait", waiting->wait_type);
  }
  if (open.size() > 1) line.more.emplace_back("questions", std::uint64_t{open.size()});
  line.words = fmt::format("{} {}{}{}", parked ? fmt::format("parked ({}):", line.code) : "waiting",
                           what, node.empty() ? "" : fmt::format(" at node {}", node),
                           answer.empty() ? "" : fmt::format("; run: {}", answer));
  line.message = std::move(what);
  add(line, "node", node);
  add(line, "answer", answer);
}

std::vector<ServiceLog::Line> JobLines::of(const JobId& job, const std::string& agent,
                                           const std::vector<Event>& events) {
  std::vector<ServiceLog::Line> lines;
  std::string name = agent;
  for (const Event& event : events) {
    if (event.type == EventType::job_running && jobs_.size() < kJobsMax) {
      jobs_.emplace(job, OpenQuestions(job));
    }
    if (auto seen = jobs_.find(job); seen != jobs_.end()) seen->second.apply(event);
    ServiceLog::Line line{.job = job};
    switch (event.type) {
      case EventType::job_created:
        name = std::get<JobCreated>(event.body).agent;
        add(line, field::agent, name);
        line.words = fmt::format("created: agent {}", name);
        break;
      case EventType::job_running: {
        const std::int64_t epoch = std::get<JobRunning>(event.body).epoch;
        add(line, field::agent, name);
        line.more.emplace_back(field::epoch, epoch);
        line.words = epoch == 1 ? "started" : "resumed";
        if (!name.empty()) line.words += fmt::format(": agent {}", name);
        break;
      }
      case EventType::job_failed: {
        const std::string node(node_of(event));
        line.code = std::get<JobFailed>(event.body).code;
        add(line, "node", node);
        line.words = fmt::format("failed ({})", line.code);
        if (!node.empty()) line.words += fmt::format(" at node {}", node);
        break;
      }
      case EventType::job_waiting:
      case EventType::job_parked:
        blocked(job, event, line);
        break;
      case EventType::job_completed:
      case EventType::job_cancelled:
        break;
      default:
        continue;
    }
    line.event = event_name(event);
    lines.push_back(std::move(line));
  }
  return lines;
}

}  // namespace ae::cli

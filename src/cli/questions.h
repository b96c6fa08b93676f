// Questions: the open questions of a job to users and operators, from its events.
//
// A call to approve, a wait for a user, a question of a tool, an unknown outcome, a change to
// verify, a used-up budget, or another park that an operator ends. Threads: a value.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "base/ids.h"
#include "json/value.h"
#include "log/event.h"

namespace ae::cli {

enum class QuestionKind : std::uint8_t {
  approval,
  wait,
  question,
  in_doubt,
  confirmation,
  budget,
  parked
};
std::string_view kind_text(QuestionKind kind);

struct Question {
  JobId job;
  std::uint64_t seq = 0;  // of the event that opened it
  std::string id;         // of that event: unique, and the same in repeated notifications
  QuestionKind kind = QuestionKind::parked;
  std::string key;  // of the wait; the step of a verification; the reason of a park
  std::string node;
  std::string command;  // answers it, or shows how; without --store
};

// `store_flag` is appended to the command. {command, id, job, key, kind, node_id}
Value to_value(const Question& question, const std::string& store_flag);

class OpenQuestions {
 public:
  explicit OpenQuestions(JobId job) : job_(std::move(job)) {}
  // Applies events in the order of the log, starting anywhere.
  void apply(const Event& event);
  // The questions that are open after the applied events.
  std::vector<Question> list() const;

 private:
  void opened(const Event& event);
  void decided(const Event& event);
  void parked(const Event& event);
  void add_question(const Event& event, QuestionKind kind, std::string key, std::string command);

  const JobId job_;
  std::map<std::string, Question> open_;                  // by key; a park has the key ""
  std::map<std::string, std::string> approval_requests_;  // event ids of approval requests, by step
};

}  // namespace ae::cli

// Questions: what a job asks of people, by its events.
//
// A call to approve, a wait for a person, a question of a tool, a call in doubt, a result to confirm, a budget that is used
// up, or another park that a person ends. Threads: a value.
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

struct Question {
  JobId job;
  std::uint64_t seq = 0;  // of the event that asks
  std::string id;  // of that event: the same however often it is notified, and of no other question
  std::string kind;  // approval wait question in_doubt confirmation budget parked
  std::string key;   // of the wait; of a confirmation the step; of a park its reason
  std::string node;
  std::string command;  // that answers, or shows what does, without --store
};

// `store_flag` goes behind the command. {command, id, job, key, kind, node_id}
Value to_value(const Question& question, const std::string& store_flag);

class OpenQuestions {
 public:
  explicit OpenQuestions(JobId job) : job_(std::move(job)) {}
  // In the order of the log; it may begin anywhere.
  void apply(const Event& event);
  // Those that are open after these events.
  std::vector<Question> list() const;

 private:
  void opened(const Event& event);
  void decided(const Event& event);
  void parked(const Event& event);
  void add_question(const Event& event, std::string_view kind, std::string key,
                    std::string command);

  const JobId job_;
  std::map<std::string, Question> open_;                  // by key; a park by ""
  std::map<std::string, std::string> approval_requests_;  // requests to approve a call, by step
};

}  // namespace ae::cli

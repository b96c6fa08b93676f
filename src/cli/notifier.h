// Notifier: starts a user's program for each open question, with the question as JSON on stdin.
//
// Best effort: a job never waits for it or fails because of it. Each question is notified once per
// process. A program that cannot be started, times out or fails causes a warning. It runs without a
// shell, one at a time.
// Threads: one of its own for the programs; the rest on the caller's.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "base/ids.h"
#include "cli/questions.h"
#include "json/value.h"
#include "log/event.h"

namespace ae::cli {

class Notifier {
 public:
  // `store_flag` is appended to answering commands (" --store …"). An empty `program` disables
  // notifications. `descriptors`: limit for the program; 0 = our own.
  Notifier(std::string program, std::string store_flag, std::size_t descriptors = 0);
  ~Notifier();  // waits for started programs, at most their time limit
  Notifier(const Notifier&) = delete;
  Notifier& operator=(const Notifier&) = delete;

  // Starts the program once for this question; `done` gets its failure, "" = none, on the
  // notifier's thread.
  using Done = std::function<void(const std::string& failure)>;
  void start(const Question& question, Done done);
  // Drops questions whose program was not started; their `done` is not called.
  void drop();
  // Notifies of questions that these events of one commit open.
  void notify_open_questions(const JobId& job, const std::vector<Event>& events);
  // The failures since the last call.
  std::vector<std::string> failures();
  // Waits until everything was notified.
  void finish();

 private:
  struct Item {
    std::string text;
    Done done;  // empty: failures() reports a failure
  };
  void add(Item item);
  void run();
  std::string start_program(const std::string& item) const;  // "" = success

  const std::string program_, store_flag_;
  const std::size_t descriptors_;
  std::set<std::string> notified_;  // by id
  std::mutex mutex_;
  std::condition_variable wake_, idle_;
  std::deque<Item> items_;             // guarded by mutex_
  std::vector<std::string> failures_;  // guarded by mutex_
  bool busy_ = false, stop_ = false;   // guarded by mutex_
  std::thread thread_;
};

}  // namespace ae::cli

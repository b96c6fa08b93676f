// Notifier: starts a program of the user's for each thing that waits for a person, with the thing as JSON on stdin.
//
// Best effort: a job never waits for it and never fails by it. What waits is told once per process; a program that cannot be
// started, takes too long or ends badly is a warning. It runs without a shell, one at a time.
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
  // `store_flag` goes behind the commands that answer (" --store …"). "" as program: nobody is told. `descriptors`: how many
  // the program may have open; 0 = as many as we.
  Notifier(std::string program, std::string store_flag, std::size_t descriptors = 0);
  ~Notifier();  // waits for what was asked before, as long as each may take
  Notifier(const Notifier&) = delete;
  Notifier& operator=(const Notifier&) = delete;

  // Starts the program for this, once; `done` gets why it failed, "" = it did not. On the notifier's thread.
  using Done = std::function<void(const std::string& failure)>;
  void start(const Question& question, Done done);
  // What was not started yet never is; its `done` is not called.
  void drop();
  // Tells of what waits for a person since these events of one commit.
  void notify_open_questions(const JobId& job, const std::vector<Event>& events);
  // What went wrong since it was asked last.
  std::vector<std::string> failures();
  // Waits until everything was told.
  void finish();

 private:
  struct Item {
    std::string text;
    Done done;  // empty: a failure is kept for failures()
  };
  void add(Item item);
  void run();
  std::string start_program(const std::string& item) const;  // "" = told

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

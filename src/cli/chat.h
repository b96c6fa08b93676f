// Chat: a conversation with a thread on a terminal, or line by line.
//
//   idle      a line is a message; `/end` ends the thread; the end of input leaves it
//   busy      prints the answer as it comes, and asks for approvals; Ctrl-C interrupts the exchange,
//             and a second one leaves
//
// Leaving does not end the job. Everything that it shows and sends is of the API, so it is the same
// for a job of this process and of a server. Threads: one.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "app/api_client.h"
#include "app/store_url.h"
#include "cli/chat_feed.h"
#include "cli/chat_input.h"
#include "cli/terminal.h"
#include "json/value.h"

namespace ae::cli {

class Chat {
 public:
  struct Options {
    std::string agent;
    std::string job;        // an existing one; "" = the first message creates one
    std::string plan_hash;  // that a new job must have; "" = any
    app::StoreUrl store;    // for commands
    // A client of its own, for the thread that follows the job.
    std::function<Result<std::unique_ptr<app::ApiClient>>()> connect;
    std::function<std::vector<std::string>()> take_warnings;  // of the process that runs the job
  };
  Chat(app::ApiClient& client, Options options, Terminal& terminal);

  // Returns the exit code.
  int run();
  const std::string& job() const { return options_.job; }
  // The command can be used again to continue.
  bool has_left() const { return has_left_; }

 private:
  enum class State { idle, busy, over };

  Result<Value> send(const std::string& method, api::Path path, Value body = {},
                     api::QueryPairs query = {});
  Result<Value> send_again(const std::string& method, const api::Path& path, const Value& body);
  Status begin();
  Status follow(std::uint64_t after);
  void wait_for_line();
  Status send_message(const std::string& line);
  Status control(const char* what);
  void read_feed();
  Status on_event(const Value& event);
  Status refresh();
  Status answer_requests();
  Status decide(const Value& approval);
  void interrupt();
  void leave(int code);
  void print_partial(const Value& delta);
  void print_answer(const Value& thread);
  void print_call(const Value& event);
  void print_warnings();
  void fail(const Error& error);

  app::ApiClient& client_;
  Options options_;
  Terminal& terminal_;
  ChatInput input_;
  std::unique_ptr<ChatFeed> feed_;
  State state_ = State::idle;
  int code_ = 0;
  bool has_left_ = false, is_thread_ = false, is_muted_ = false, must_refresh_ = false;
  int interrupts_ = 0;
  std::string channel_;
  std::set<std::string> prompted_;  // approvals
  std::optional<std::int64_t> shown_exchange_;
  // The partial output of the newest call of a model.
  std::string stream_, streamed_;
};

}  // namespace ae::cli

#include "cli/chat.h"

#include <fmt/core.h>

#include <algorithm>
#include <csignal>
#include <utility>

#include "api/command_line.h"
#include "api/problem.h"
#include "cli/run_creation.h"
#include "cli/shared.h"
#include "json/json.h"
#include "log/field_names.h"
#include "log/park_until.h"
#include "store/rules.h"

namespace ae::cli {
namespace {

constexpr std::string_view kEndLine = "/end";
constexpr std::size_t kArgumentColumns = 60;
constexpr int kTries = 3;  // of a request whose outcome is not known

bool is_process_gone(const Error& error) {
  return error.code == Code::unavailable || error.code == Code::unknown_outcome;
}

// The first open wait for a message; nullptr: none.
const Value* message_wait(const Value& job) {
  for (const Value& wait : job[field::waits].items()) {
    if (wait.text(field::wait_type) == "message") return &wait;
  }
  return nullptr;
}

}  // namespace

Chat::Chat(app::ApiClient& client, Options options, Terminal& terminal)
    : client_(client), options_(std::move(options)), terminal_(terminal) {}

int Chat::run() {
  if (Status begun = begin(); !begun) return terminal_.fail_with(begun.error());
  while (state_ != State::over && !has_left_) {
    print_warnings();
    if (state_ == State::idle) {
      wait_for_line();
      continue;
    }
    switch (input_.wait(false, feed_ ? feed_->descriptor() : -1)) {
      case ChatInput::Ready::interrupt:
        interrupt();
        break;
      default:
        read_feed();
    }
  }
  feed_.reset();
  return code_;
}

Result<Value> Chat::send(const std::string& method, api::Path path, Value body,
                         api::QueryPairs query) {
  api::ApiRequest request;
  request.method = method;
  request.path = std::move(path);
  for (auto& [name, value] : query) request.query.emplace_back(name, std::move(value));
  if (!body.is_null()) request.body = canonical(body);
  request.by = cli_actor();
  AE_ASSIGN(api::ApiResponse answer, client_.send(request));
  if (answer.status >= 400) {
    return std::unexpected(api::error_of_problem(answer.body, answer.status));
  }
  return std::move(answer.body);
}

// The body has an id with which a repetition has no effect.
Result<Value> Chat::send_again(const std::string& method, const api::Path& path,
                               const Value& body) {
  Result<Value> answer = send(method, path, body);
  for (int tries = 1; tries < kTries && !answer && is_process_gone(answer.error()); ++tries) {
    answer = send(method, path, body);
  }
  return answer;
}

Status Chat::begin() {
  if (options_.job.empty()) return {};
  AE_ASSIGN(const Value job, send("GET", {"api", "jobs", options_.job}));
  AE_TRY(follow(static_cast<std::uint64_t>(job["seq"].as_int())));
  state_ = State::busy;
  return refresh();
}

Status Chat::follow(std::uint64_t after) {
  AE_ASSIGN(auto client, options_.connect());
  feed_ = std::make_unique<ChatFeed>(std::move(client), options_.job, after);
  return {};
}

void Chat::wait_for_line() {
  if (can_prompt(terminal_)) terminal_.print("> ");
  terminal_.flush();
  switch (input_.wait(true, feed_ ? feed_->descriptor() : -1)) {
    case ChatInput::Ready::line: {
      const std::string line = input_.take_line();
      if (line.empty()) return;
      const Status sent = line == kEndLine ? control("end") : send_message(line);
      if (!sent) fail(sent.error());
      return;
    }
    case ChatInput::Ready::interrupt:
      terminal_.print("\n");
      return leave(128 + SIGINT);
    case ChatInput::Ready::end:
      if (can_prompt(terminal_)) terminal_.print("\n");
      return leave(code_);  // that of the last message which was refused
    case ChatInput::Ready::other:
      return read_feed();  // another client has sent something
  }
}

// The first message is the input of the job.
Status Chat::send_message(const std::string& line) {
  const std::string id = new_job_id();
  if (options_.job.empty()) {
    std::vector<Member> body{{field::agent, options_.agent},
                             {"id", id},
                             {field::input, Value::object({{"message", line}})}};
    if (!options_.plan_hash.empty()) body.emplace_back(field::plan_hash, options_.plan_hash);
    AE_TRY(send_again("POST", {"api", "jobs"}, Value::object(std::move(body))));
    options_.job = id;
    if (terminal_.shows_progress()) terminal_.note(fmt::format("job {}", id));
    AE_TRY(follow(0));
  } else {
    AE_TRY(send_again(
        "POST", {"api", "jobs", options_.job, "message"},
        Value::object(
            {{field::channel, channel_}, {field::message_id, id}, {field::payload, line}})));
  }
  state_ = State::busy;
  interrupts_ = 0;
  is_muted_ = false;
  return {};
}

Status Chat::control(const char* what) {
  if (options_.job.empty()) {
    leave(kDone);
    return {};
  }
  if (!is_thread_) {
    return ae::fail(Code::unsupported, "this agent decides itself when it ends: send it a message");
  }
  AE_TRY(send_again("POST", {"api", "jobs", options_.job, "message"},
                    Value::object({{field::channel, "thread"},
                                   {field::control, what},
                                   {field::message_id, new_job_id()}})));
  state_ = State::busy;
  return {};
}

void Chat::read_feed() {
  Status read;
  for (const ChatFeed::Item& item : feed_->take()) {
    if (item.is_partial_output) {
      print_partial(item.value);
    } else if (read) {
      read = on_event(item.value);
    }
  }
  // Once for all that came.
  if (read && std::exchange(must_refresh_, false)) read = refresh();
  if (const auto failure = feed_->failure(); read && failure && state_ != State::over) {
    has_left_ = true;
    read = std::unexpected(*failure);
  }
  if (!read) fail(read.error());
}

Status Chat::on_event(const Value& event) {
  const std::string_view type = event.text("type");
  if (type == "job_running" || type == "job_requeued") {
    if (state_ == State::idle && can_prompt(terminal_)) terminal_.print("\n");
    state_ = State::busy;
  } else if (type == "tool_invocation_started") {
    print_call(event);
  } else if (type == "value_emitted" && !is_muted_) {
    const Value& value = event[field::payload][field::value];
    if (terminal_.json()) {
      terminal_.print_json(Value::object({{"job", options_.job}, {field::value, value}}));
    } else {
      terminal_.print(safe(shown_value(value), true));
    }
  } else if (type == "job_waiting" || type == "job_parked" || type == "job_completed" ||
             type == "job_failed" || type == "job_cancelled" || type == "wait_opened") {
    must_refresh_ = true;
  }
  return {};
}

// What the job needs now.
Status Chat::refresh() {
  AE_ASSIGN(const Value job, send("GET", {"api", "jobs", options_.job}));
  const std::string status(job.text("status"));
  const Value& thread = job["thread"];
  is_thread_ = thread.is_object();
  if (store::has_ended(status)) {
    print_answer(thread);
    state_ = State::over;
    code_ = exit_code_of_status(status);
    const std::string why = status == "failed" ? failure_text(job[field::error]) : "";
    terminal_.note(
        fmt::format("the thread has ended: job {} {}{}", safe(options_.job), status, why));
    return {};
  }
  const bool needs_answer = std::ranges::any_of(job[field::waits].items(), [](const Value& wait) {
    return wait.text(field::wait_type) == "human";
  });
  if (needs_answer) AE_TRY(answer_requests());
  if (has_left_) return {};
  if (status == "parked") {
    print_blocked(job, options_.store, terminal_);
    leave(kBlocked);
    return {};
  }
  if (status != "waiting") return {};
  if (const Value* const wait = message_wait(job)) {
    channel_ = wait->text(field::channel);
    print_answer(thread);
    state_ = State::idle;
    interrupts_ = 0;
    is_muted_ = false;
  } else if (!needs_answer && terminal_.shows_progress()) {
    terminal_.note(fmt::format("  {}", wait_sentence(job["waiting"])));
  }
  return {};
}

Status Chat::answer_requests() {
  AE_ASSIGN(const Value list, send("GET", {"api", "approvals"}, {}, {{"job", options_.job}}));
  for (const Value& one : list["approvals"].items()) {
    const std::string id(one.text("id"));
    if (!prompted_.insert(id).second) continue;
    const std::string_view kind = one.text(field::kind);
    if (kind == "call" || (kind == "wait" && one.text("answer") == "decision")) {
      AE_TRY(decide(one));
    } else {
      terminal_.note(fmt::format("{}answer it with another command: aetheris approvals{}",
                                 approval_text(one), store_flag(options_.store)));
    }
    if (has_left_ || is_muted_) return {};
  }
  return {};
}

// Shows what is to be approved, and asks until there is a clear answer.
Status Chat::decide(const Value& approval) {
  std::string text = approval_text(approval);
  while (text.ends_with('\n')) text.pop_back();
  terminal_.note(text);
  input_.drop_typed();
  while (true) {
    terminal_.note("approve? [y/n]");
    switch (input_.wait(true, -1)) {
      case ChatInput::Ready::end:
        leave(kBlocked);
        return {};
      case ChatInput::Ready::interrupt:
        interrupt();
        return {};
      default:
        break;
    }
    const std::string line = input_.take_line();
    const bool yes = line == "y" || line == "Y" || line == "yes";
    if (!yes && line != "n" && line != "N" && line != "no") continue;
    const auto answer = send("POST", {"api", "approvals", std::string(approval.text("id"))},
                             Value::object({{"decision", yes ? "approve" : "reject"}}));
    // Someone else may have answered, or it may have expired: the job shows what follows.
    if (!answer) terminal_.warn(api::message_with_command(answer.error()));
    return {};
  }
}

void Chat::interrupt() {
  if (++interrupts_ > 1) return leave(128 + SIGINT);
  if (!is_thread_) {
    // Also before its first answer: then nothing is known of it yet.
    const auto job = send("GET", {"api", "jobs", options_.job});
    is_thread_ = job && (*job)["thread"].is_object();
  }
  if (!is_thread_) return terminal_.note("Ctrl-C again leaves; the job continues");
  is_muted_ = true;
  if (const Status sent = control("interrupt"); !sent) return fail(sent.error());
  terminal_.note("interrupted; calls in flight end first (Ctrl-C again leaves)");
}

void Chat::leave(int code) {
  has_left_ = true;
  code_ = code;
}

void Chat::fail(const Error& error) {
  code_ = terminal_.fail_with(error);
  // A message that was refused changes nothing.
  if (state_ != State::idle || is_process_gone(error)) has_left_ = true;
}

// ---------------------------------------------------------------- output

void Chat::print_partial(const Value& delta) {
  if (is_muted_ || terminal_.json() || terminal_.width() == 0) return;  // printed as a whole
  const std::string stream =
      fmt::format("{}/{}", delta.text(field::invocation_id), delta[field::try_].as_int());
  if (stream != stream_) {
    if (!streamed_.empty()) terminal_.print("\n");
    stream_ = stream;
    streamed_.clear();
  }
  const auto offset = static_cast<std::size_t>(delta["offset"].as_int());
  const std::string_view text = delta.text("text");
  // A stream that is followed again repeats its beginning.
  if (offset > streamed_.size() || offset + text.size() <= streamed_.size()) return;
  const std::string_view more = text.substr(streamed_.size() - offset);
  streamed_ += more;
  terminal_.print(safe(more, true));
  terminal_.flush();
}

// The answer of the newest exchange, as far as it was not streamed.
void Chat::print_answer(const Value& thread) {
  const Value& answer = thread["answer"];
  const std::string streamed = std::exchange(streamed_, {});
  stream_.clear();
  if (!answer.is_object()) {
    if (!streamed.empty()) terminal_.print("\n");
    return;
  }
  const Value& exchange = thread["exchanges"];
  if (exchange.is_integer() && shown_exchange_ == exchange.as_int()) return;
  if (exchange.is_integer()) {
    shown_exchange_ = exchange.as_int();
  } else if (shown_exchange_) {
    return;  // the end repeats the last answer
  }
  if (terminal_.json()) {
    terminal_.print_json(Value::object({{"answer", answer}, {"job", options_.job}}));
    return;
  }
  const std::string_view text = answer.text("text");
  if (!text.starts_with(streamed)) {
    terminal_.print("\n" + safe(text, true) + "\n");
  } else {
    terminal_.print(safe(text.substr(streamed.size()), true) + "\n");
  }
  if (answer["interrupted"] == Value(true)) terminal_.note("  (interrupted)");
}

void Chat::print_call(const Value& event) {
  const Value& payload = event[field::payload];
  const std::string_view tool = payload.text(field::tool_name);
  if (!terminal_.shows_progress() || tool.starts_with("model:")) return;
  if (!std::exchange(streamed_, {}).empty()) terminal_.print("\n");
  terminal_.note(fmt::format("  {} {} {}", terminal_.err()(Tint::dim, "→"), safe(tool),
                             safe(cut(canonical(payload[field::arguments]), kArgumentColumns))));
}

void Chat::print_warnings() {
  if (!options_.take_warnings) return;
  for (const std::string& warning : options_.take_warnings()) terminal_.warn(warning);
}

}  // namespace ae::cli

// signal, message, approve, reject, cancel, pause, resume, budget, resolve: send control requests.
#include <fmt/core.h>

#include <algorithm>

#include "api/problem.h"
#include "app/api_client.h"
#include "cli/phrases.h"
#include "cli/shared.h"
#include "json/json.h"
#include "log/field_names.h"
#include "net/system.h"

namespace ae::cli {
namespace {

struct JobOptions : CommonOptions {
  std::string id;
};

Option job_argument(std::string& id) { return {"ID", "", &id, "the job", kRequired}; }
Option payload_argument(std::optional<std::string>& data) {
  return {"JSON", "", &data, "the payload: JSON, or @FILE"};
}
Option message_id_option(std::string& id) {
  return {"--message-id", "ID", &id, "a deduplication id"};
}
Option reason_option(std::string& reason) {
  return {"--reason", "TEXT", &reason, "the reason, for the log"};
}
Option note_option(std::string& note) {
  return {"--note", "TEXT", &note, "the reason, for the log"};
}

struct SignalOptions : JobOptions {
  std::string key, wait_type, message_id;
  std::optional<std::string> data;
  bool buffer = false;
};

std::vector<Option> signal_options(SignalOptions& o) {
  return {job_argument(o.id),
          {"KEY", "", &o.key, "the wait's correlation key", kRequired},
          payload_argument(o.data),
          {"--type", "TYPE", &o.wait_type, "the expected type of the wait"},
          message_id_option(o.message_id),
          {"--buffer", "", &o.buffer, "keep the signal for a wait that opens later"}};
}

struct MessageOptions : JobOptions {
  std::string channel, message_id;
  std::optional<std::string> data, text;
  bool ends = false, interrupts = false;
};

std::vector<Option> message_options(MessageOptions& o) {
  return {job_argument(o.id),
          {"CHANNEL", "", &o.channel, "the channel", kRequired},
          payload_argument(o.data),
          {"--text", "TEXT", &o.text, "the payload is this text"},
          message_id_option(o.message_id),
          {"--end", "", &o.ends, "end the thread with its last answer, after earlier messages"},
          {"--interrupt", "", &o.interrupts, "end the running exchange of the thread"}};
}

struct ApprovalOptions : CommonOptions {
  std::string id, arguments, note;
};

std::vector<Option> reject_options(ApprovalOptions& o) {
  return {{"ID", "", &o.id, "the id, from `aetheris approvals`", kRequired}, note_option(o.note)};
}

std::vector<Option> approve_options(ApprovalOptions& o) {
  return std::vector<Option>{{"--arguments", "JSON", &o.arguments,
                              "replace the call's arguments: JSON, or @FILE"}} +
         reject_options(o);
}

struct PauseOptions : JobOptions {
  std::string reason;
};

std::vector<Option> pause_options(PauseOptions& o) {
  return {job_argument(o.id), reason_option(o.reason)};
}

std::vector<Option> resume_options(JobOptions& o) { return {job_argument(o.id)}; }

struct BudgetOptions : JobOptions {
  std::string tokens, cost, model_calls, tool_calls, wall, note;
};

std::vector<Option> budget_options(BudgetOptions& o) {
  return {job_argument(o.id),
          {"--tokens", "N", &o.tokens, "the new total of tokens"},
          {"--cost", "AMOUNT", &o.cost, "the new total cost"},
          {"--model-calls", "N", &o.model_calls, "the new total of model calls"},
          {"--tool-calls", "N", &o.tool_calls, "the new total of tool calls"},
          {"--wall", "DURATION", &o.wall, "the new total duration, such as 2h"},
          note_option(o.note)};
}

// `run` takes a budget as NAME=AMOUNT.
std::string budget_pair_hint(const std::string& pair) {
  constexpr std::string_view kLimits[] = {"tokens", "cost", "model-calls", "tool-calls", "wall"};
  const std::size_t at = pair.find('=');
  std::string name = pair.substr(0, at);
  std::ranges::replace(name, '_', '-');
  if (std::ranges::find(kLimits, name) == std::end(kLimits)) return {};
  return fmt::format("write --{} {}", name, quoted(pair.substr(at + 1)));
}

struct CancelOptions : JobOptions {
  std::string reason;
  bool no_compensate = false;
};

std::vector<Option> cancel_options(CancelOptions& o) {
  return {job_argument(o.id),
          reason_option(o.reason),
          {"--no-compensate", "", &o.no_compensate, "do not compensate completed effects"}};
}

struct ResolveOptions : JobOptions {
  std::string key, resolution, note, of_try;
  std::optional<std::string> data;
};

std::vector<Option> resolve_options(ResolveOptions& o) {
  return {job_argument(o.id),
          {"CALL", "", &o.key,
           "the call's id or a prefix, from `aetheris job`; for a confirmation the step id or node",
           kRequired},
          {"RESOLUTION", "", &o.resolution,
           "happened, not_happened or fail (the node fails); for a confirmation: accept or fail "
           "(the job fails)",
           kRequired},
          {"JSON", "", &o.data, "with happened: the call's result: JSON, or @FILE"},
          note_option(o.note),
          {"--try", "N", &o.of_try, "only for this try, from `aetheris job`"}};
}

// Unknown outcomes that remain if the job has ended; empty if the store cannot be read now.
std::vector<std::string> remaining_unknown_outcomes(const JobOptions& options,
                                                    const Terminal& terminal) {
  const auto store = store_of(options);
  if (!store) return {};
  const auto client = app::ApiClient::open(*store, app::OpenMode::read);
  if (!client) return {};
  api::ApiRequest request;
  request.path = {"api", "jobs", options.id};
  const auto job = (*client)->send(request);
  if (!job || job->status != 200) return {};
  return final_unknown_outcomes(job->body, *store, argument_columns(terminal, Stream::err));
}

// Removes empty texts.
std::vector<Member> without_empty(std::vector<Member> texts) {
  std::erase_if(texts, [](const Member& member) { return member.second.as_string().empty(); });
  return texts;
}

// `id`: of the job or the approval, for errors.
Result<Value> post_to(const CommonOptions& options, const std::string& id, api::Path path,
                      std::vector<Member> body) {
  AE_ASSIGN(const app::StoreUrl store, store_of(options));
  api::ApiRequest request;
  request.method = "POST";
  request.path = std::move(path);
  request.body = canonical(Value::object(std::move(body)));
  request.by = cli_actor();
  auto client = app::ApiClient::open(store, app::OpenMode::write);
  if (!client && client.error().code == Code::not_found) {
    return fail(Code::not_found, "job {} not found: {}", id, client.error().message);
  }
  if (!client) return std::unexpected(client.error());
  AE_ASSIGN(api::ApiResponse response, (*client)->send(request));
  if (response.status >= 400) {
    return std::unexpected(api::error_of_problem(response.body, response.status));
  }
  return std::move(response.body);
}

Result<Value> post(const JobOptions& options, const std::string& verb, std::vector<Member> body) {
  return post_to(options, options.id, {"api", "jobs", options.id, verb}, std::move(body));
}

// Who answered, and when.
std::string answerer_text(const Value& body) {
  const Value& answered = body["answered"];
  if (!answered.is_object()) return "";
  const std::string by =
      answered[field::by].is_string() ? fmt::format(" by {}", safe(answered.text(field::by))) : "";
  return fmt::format(",{} at {}", by, short_time(answered.text(field::at)));
}

int print_answer(const Result<Value>& answer, const JobOptions& options, Terminal& terminal,
                 const std::string& done) {
  if (!answer) return terminal.fail_with(answer.error());
  if (terminal.json()) {
    terminal.print_json(*answer);
    return kDone;
  }
  const Value& body = *answer;
  const bool duplicate = body.find("duplicate") != nullptr;
  const std::string other =
      duplicate && body["applied"] == Value(false)
          ? fmt::format("; the earlier payload counts: {}", safe(canonical(body[field::payload])))
          : "";
  if (body.find("buffered") != nullptr) {
    terminal.print(duplicate ? fmt::format("a signal for this key is already buffered{}\n", other)
                             : "buffered for the wait that opens with this key\n");
  } else if (body.find(field::channel) != nullptr) {
    const bool idle = !duplicate && body["applied"] == Value(false);
    terminal.print(duplicate ? fmt::format("a message with this id was already recorded{}\n", other)
                   : idle    ? "nothing to interrupt: the thread waits for a message\n"
                             : "recorded\n");
  } else if (body.find("accepted") != nullptr) {
    terminal.print(
        fmt::format("accepted: the process that runs job {} applies it\n", safe(options.id)));
  } else if (body["raised"] == Value(false)) {
    terminal.print(fmt::format("{}{}\n", done, answerer_text(body)));
  } else if (body.find("duplicate") != nullptr) {
    const std::string payload =
        body["applied"] == Value(true)
            ? "the same payload"
            : fmt::format("another payload: {}", safe(canonical(body[field::payload])));
    terminal.print(fmt::format("already answered with {}{}\n", payload, answerer_text(body)));
  } else {
    terminal.print(done + "\n");
  }
  if (body["next"].is_string()) terminal.note(fmt::format("then:   {}", safe(body.text("next"))));
  return kDone;
}

// Prints what the job does next after a rejection.
void print_after_rejection(const Value& body, Terminal& terminal) {
  if (body["then"].is_string())
    terminal.note(fmt::format("When a process runs the job next, {}.", safe(body.text("then"))));
}

// Is there a next step to print: the request is recorded, and no lease holder applies it?
bool has_next(const Result<Value>& answer, const Terminal& terminal) {
  if (!answer || terminal.json()) return false;
  for (const char* done : {"accepted", "buffered", "next"}) {
    if (answer->find(done) != nullptr && answer->find(field::channel) == nullptr) return false;
  }
  return (*answer)["noted"] != Value(true);
}

// Another answer or message was first, and this one has no effect.
bool is_other_answer(const Result<Value>& answer) {
  return answer && answer->find("duplicate") != nullptr && (*answer)["applied"] == Value(false);
}

int signal_command(const SignalOptions& options, Terminal& terminal) {
  Value payload;
  if (options.data) {
    auto value = json_argument(*options.data, "the payload");
    if (!value) return terminal.fail_with(value.error());
    payload = std::move(*value);
  }
  std::vector<Member> body = without_empty({{field::correlation_key, options.key},
                                            {field::message_id, options.message_id},
                                            {field::wait_type, options.wait_type}});
  body.emplace_back(field::payload, std::move(payload));
  if (options.buffer) body.emplace_back("buffer", true);
  const auto answer = post(options, "signal", std::move(body));
  const int code = print_answer(answer, options, terminal, "recorded");
  if (answer && !terminal.json()) print_after_rejection(*answer, terminal);
  if (has_next(answer, terminal)) print_next_step(options, options.id, terminal);
  return is_other_answer(answer) ? kConflict : code;
}

int cancel_command(const CancelOptions& options, Terminal& terminal) {
  std::vector<Member> body = without_empty({{field::reason, options.reason}});
  if (options.no_compensate) body.emplace_back(field::compensate, false);
  const auto answer = post(options, "cancel", std::move(body));
  const int code = print_answer(answer, options, terminal, "cancel requested");
  if (has_next(answer, terminal)) print_next_step(options, options.id, terminal);
  if (answer && !terminal.json()) {
    for (const std::string& doubt : remaining_unknown_outcomes(options, terminal))
      terminal.note(doubt);
  }
  return code;
}

int message_command(const MessageOptions& options, Terminal& terminal) {
  Value payload;
  const int kinds = (options.data ? 1 : 0) + (options.text ? 1 : 0) + (options.ends ? 1 : 0) +
                    (options.interrupts ? 1 : 0);
  if (kinds > 1) {
    return terminal.fail_with(
        {Code::usage, "use one of JSON, --text, --end and --interrupt: a message is one of them"});
  }
  if (options.text) payload = *options.text;
  if (options.data) {
    auto value = json_argument(*options.data, "the payload");
    if (!value) return terminal.fail_with(value.error());
    payload = std::move(*value);
  }
  std::vector<Member> body =
      without_empty({{field::channel, options.channel}, {field::message_id, options.message_id}});
  if (options.ends || options.interrupts) {
    body.emplace_back(field::control, options.ends ? "end" : "interrupt");
  } else {
    body.emplace_back(field::payload, std::move(payload));
  }
  const auto answer = post(options, "message", std::move(body));
  const int code = print_answer(answer, options, terminal, "sent");
  if (has_next(answer, terminal)) print_next_step(options, options.id, terminal);
  return is_other_answer(answer) ? kConflict : code;
}

int pause_command(const PauseOptions& options, Terminal& terminal) {
  const auto answer = post(options, "pause", without_empty({{field::reason, options.reason}}));
  const bool is_paused = answer && answer->find("paused") != nullptr;
  return print_answer(answer, options, terminal,
                      is_paused ? "paused" : "pause requested; calls in flight finish first");
}

int resume_command(const JobOptions& options, Terminal& terminal) {
  const auto answer = post(options, "resume", {});
  const int code = print_answer(answer, options, terminal, "resumed");
  if (has_next(answer, terminal)) print_next_step(options, options.id, terminal);
  return code;
}

int budget_command(const BudgetOptions& options, Terminal& terminal) {
  std::vector<Member> body =
      without_empty({{"cost", options.cost}, {field::note, options.note}, {"wall", options.wall}});
  for (const auto& [name, text] :
       {std::pair("tokens", &options.tokens), std::pair("model_calls", &options.model_calls),
        std::pair("tool_calls", &options.tool_calls)}) {
    if (!text->empty()) body.emplace_back(name, number_or_text(*text));
  }
  const bool sets_no_limit =
      std::ranges::none_of(body, [](const Member& member) { return member.first != field::note; });
  if (sets_no_limit) {
    return terminal.fail_with(
        {Code::usage, fmt::format("set a new total: --tokens, --cost, --model-calls, --tool-calls "
                                  "or --wall; `aetheris job {}` shows limits and usage",
                                  quoted(options.id))});
  }
  const auto answer = post(options, "budget", std::move(body));
  const bool had = answer && (*answer)["raised"] == Value(false);
  const int code = print_answer(answer, options, terminal, had ? "budget unchanged" : "raised");
  if (answer && !terminal.json() && (*answer)["command"].is_string()) {
    terminal.note(fmt::format("the next call still exceeds the budget{}", shortfall_text(*answer)));
    terminal.note(
        fmt::format("answer: {}", terminal.err()(Tint::bold, safe(answer->text("command")))));
  } else if (has_next(answer, terminal)) {
    print_next_step(options, options.id, terminal);
  }
  return code;
}

// Approves if `yes`, otherwise rejects.
int answer_approval(const ApprovalOptions& options, bool yes, Terminal& terminal) {
  std::vector<Member> body =
      without_empty({{"decision", yes ? "approve" : "reject"}, {field::note, options.note}});
  if (!options.arguments.empty()) {
    auto arguments = json_argument(options.arguments, "--arguments");
    if (!arguments) return terminal.fail_with(arguments.error());
    body.emplace_back(field::arguments, *std::move(arguments));
  }
  const auto answer =
      post_to(options, options.id, {"api", "approvals", options.id}, std::move(body));
  if (!answer) return terminal.fail_with(answer.error());
  // Unchanged arguments are no edit but a plain approval.
  const bool edited = !options.arguments.empty() && answer->text(field::outcome) != "approved";
  const std::string_view wanted = !yes ? "rejected" : edited ? "edited" : "approved";
  // The question was already answered or closed: the user must know that this answer has no effect.
  const std::string_view outcome = answer->text(field::outcome, wanted);
  if (terminal.json()) {
    terminal.print_json(*answer);
  } else if (answer->find("accepted") != nullptr) {
    terminal.print("accepted: the process that runs the job applies it\n");
  } else if (answer->find("duplicate") != nullptr) {
    terminal.print(fmt::format("already answered: {}{}\n", safe(outcome), answerer_text(*answer)));
  } else {
    terminal.print(edited ? "approved with changed arguments\n" : fmt::format("{}\n", wanted));
  }
  const bool unused = (*answer)[field::reason].is_string() && (*answer)["applied"] == Value(false);
  if (unused && !terminal.json()) {
    terminal.note(fmt::format("the call will not be made: {}", safe(answer->text(field::reason))));
    terminal.note("see:    aetheris approvals");
  } else if (has_next(answer, terminal)) {
    print_after_rejection(*answer, terminal);
    print_next_step(options, options.id.substr(0, options.id.rfind('.')), terminal);
  }
  // A different edit is rejected; this is the same one, perhaps with another note.
  const bool is_superseded = !options.arguments.empty() && answer->find("duplicate") != nullptr &&
                             (*answer)["applied"] == Value(false) && outcome != "edited";
  return outcome == wanted && !is_superseded && !unused ? kDone : kConflict;
}

int approve_command(const ApprovalOptions& options, Terminal& terminal) {
  return answer_approval(options, true, terminal);
}

int reject_command(const ApprovalOptions& options, Terminal& terminal) {
  return answer_approval(options, false, terminal);
}

int resolve_command(const ResolveOptions& options, Terminal& terminal) {
  const bool accepts = options.resolution == "accept";
  // The operator has checked the downstream by now; the request may be applied much later.
  std::vector<Member> body =
      without_empty({{accepts ? field::step_id : field::idempotency_key, options.key},
                     {"checked_at", to_text(net::SystemClock().now())},
                     {field::note, options.note},
                     {field::resolution, options.resolution}});
  if (options.data) {
    auto value = json_argument(*options.data, "the result");
    if (!value) return terminal.fail_with(value.error());
    body.emplace_back(field::result, std::move(*value));
  }
  if (!options.of_try.empty()) {
    auto of_try = json_argument(options.of_try, "--try");
    if (!of_try) return terminal.fail_with(of_try.error());
    body.emplace_back(field::try_, std::move(*of_try));
  }
  const auto answer = post(options, "resolve", std::move(body));
  const bool noted = answer && (*answer)["noted"] == Value(true);
  std::string done =
      fmt::format("{}: {}", noted ? "recorded in the log of the ended job" : "recorded",
                  safe(options.resolution));
  if (const Value* result = answer ? answer->find(field::result) : nullptr) {
    done += fmt::format("\nresult: {}", safe_json(canonical(*result)));
  }
  const int code = print_answer(answer, options, terminal, done);
  if (has_next(answer, terminal)) print_next_step(options, options.id, terminal);
  return code;
}

}  // namespace

extern const Command kSignalCommand{
    .name = "signal",
    .group = Group::respond,
    .target = Target::store_or_server,
    .summary = "send a signal to a waiting job",
    .example = "aetheris signal holiday ok-holiday '{\"by\": \"Ada\"}'",
    .bind = bound_command<SignalOptions, signal_options, signal_command>};

extern const Command kMessageCommand{
    .name = "message",
    .group = Group::respond,
    .target = Target::store_or_server,
    .summary = "send a job a message on a channel",
    .example = "aetheris message holiday news '{\"rain\": true}'",
    .bind = bound_command<MessageOptions, message_options, message_command>};

extern const Command kApproveCommand{
    .name = "approve",
    .group = Group::respond,
    .target = Target::store_or_server,
    .summary = "approve a pending call or question",
    .example = "aetheris approve holiday.5d0c2f8a91b3e4f7",
    .bind = bound_command<ApprovalOptions, approve_options, approve_command>};

extern const Command kRejectCommand{
    .name = "reject",
    .group = Group::respond,
    .target = Target::store_or_server,
    .summary = "reject a pending call or question",
    .example = "aetheris reject holiday.5d0c2f8a91b3e4f7",
    .bind = bound_command<ApprovalOptions, reject_options, reject_command>};

extern const Command kPauseCommand{
    .name = "pause",
    .group = Group::control,
    .target = Target::store_or_server,
    .summary = "pause a job once calls in flight have finished",
    .example = "aetheris pause holiday --reason \"prices are wrong\"",
    .bind = bound_command<PauseOptions, pause_options, pause_command>};

extern const Command kResumeCommand{
    .name = "resume",
    .group = Group::control,
    .target = Target::store_or_server,
    .summary = "resume a job that is paused, or parked until `resume`",
    .example = "aetheris resume holiday",
    .bind = bound_command<JobOptions, resume_options, resume_command>};

extern const Command kBudgetCommand{
    .name = "budget",
    .group = Group::control,
    .target = Target::store_or_server,
    .summary = "raise a job's budget",
    .example = "aetheris budget holiday --tokens 200000",
    .bind = bound_command<BudgetOptions, budget_options, budget_command>,
    .pair_hint = budget_pair_hint};

extern const Command kCancelCommand{
    .name = "cancel",
    .group = Group::control,
    .target = Target::store_or_server,
    .summary = "cancel a job",
    .example = "aetheris cancel holiday --reason \"the trip is off\"",
    .bind = bound_command<CancelOptions, cancel_options, cancel_command>};

extern const Command kResolveCommand{
    .name = "resolve",
    .group = Group::respond,
    .target = Target::store_or_server,
    .summary = "resolve a call whose outcome is unknown, or a resource that has changed",
    .example = "aetheris resolve payment 5d0c2f8a91b3 happened '{\"receipt\": 17}'",
    .bind = bound_command<ResolveOptions, resolve_options, resolve_command>};

}  // namespace ae::cli

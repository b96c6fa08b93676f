// signal, message, approve, reject, cancel, pause, resume, budget, resolve: what others want of a job.
#include <algorithm>

#include "api/problem.h"
#include "app/door.h"
#include "cli/commands.h"
#include "cli/phrases.h"
#include "core/json.h"
#include "net/system.h"

namespace ae::cli {
namespace {

// What stays unknown if the job has ended by now; who cannot be asked again has said what was asked for.
std::vector<std::string> doubts_left(const Options& options, const Terminal& terminal) {
  const auto store = store_of(options);
  if (!store) return {};
  const auto door = app::Door::open(*store, app::Purpose::read);
  if (!door) return {};
  api::ApiRequest request;
  request.path = {"api", "jobs", options.id};
  const auto job = (*door)->ask(request);
  if (!job || job->status != 200) return {};
  return doubts_of_end(job->body, *store, argument_columns(terminal, Stream::err));
}

// Texts that were not given are left out.
std::vector<Member> given(std::vector<Member> texts) {
  std::erase_if(texts, [](const Member& member) { return member.second.as_string().empty(); });
  return texts;
}

Result<Value> post_to(const Options& options, api::Path path, std::vector<Member> body) {
  AE_ASSIGN(const app::StoreUrl store, store_of(options));
  api::ApiRequest request;
  request.method = "POST";
  request.path = std::move(path);
  request.body = canonical(Value::object(std::move(body)));
  request.by = who();
  auto door = app::Door::open(store, app::Purpose::write);
  if (!door && door.error().code == Code::not_found) {
    return fail(Code::not_found, "job " + options.id + " not found: " + door.error().message);
  }
  if (!door) return std::unexpected(door.error());
  AE_ASSIGN(api::ApiResponse response, (*door)->ask(request));
  if (response.status >= 400) {
    return std::unexpected(api::error_of_problem(response.body, response.status));
  }
  return std::move(response.body);
}

Result<Value> post(const Options& options, const std::string& verb, std::vector<Member> body) {
  return post_to(options, {"api", "jobs", options.id, verb}, std::move(body));
}

// By whom it was answered, when.
std::string answerer_text(const Value& body) {
  const Value& answered = body["answered"];
  if (!answered.is_object()) return "";
  std::string text = answered["by"].is_string() ? ", by " + safe(answered.text("by")) : ",";
  return text.append(" at ").append(short_time(answered.text("at")));
}

int say(const Result<Value>& asked, const Options& options, Terminal& terminal,
        const std::string& done) {
  if (!asked) return terminal.fail_with(asked.error());
  if (terminal.json()) {
    terminal.print_json(*asked);
    return kDone;
  }
  const Value& body = *asked;
  const bool duplicate = body.find("duplicate") != nullptr;
  const std::string other =
      duplicate && body["applied"] == Value(false)
          ? "; the earlier payload counts: " + safe(canonical(body["payload"]))
          : "";
  if (body.find("buffered") != nullptr) {
    terminal.print(duplicate ? "a signal for this key is already buffered" + other + "\n"
                             : "buffered for the wait that opens with this key\n");
  } else if (body.find("channel") != nullptr) {
    terminal.print(duplicate ? "a message with this id was already recorded" + other + "\n"
                             : "recorded\n");
  } else if (body.find("accepted") != nullptr) {
    terminal.print("accepted: the process that runs job " + safe(options.id) + " applies it\n");
  } else if (body["raised"] == Value(false)) {
    terminal.print(done + answerer_text(body) + "\n");
  } else if (body.find("duplicate") != nullptr) {
    const bool same = body["applied"] == Value(true);
    terminal.print("already answered" +
                   (same ? " with the same payload"
                         : " with another payload: " + safe(canonical(body["payload"]))) +
                   answerer_text(body) + "\n");
  } else {
    terminal.print(done + "\n");
  }
  if (body["next"].is_string()) terminal.note("then:   " + safe(body.text("next")));
  return kDone;
}

// Prints what the job does next after a rejection.
void say_then(const Value& body, Terminal& terminal) {
  if (body["then"].is_string())
    terminal.note("When a process runs the job next, " + safe(body.text("then")) + ".");
}

// Is there a next step to print: nothing holds the job, and the request is recorded?
bool has_next(const Result<Value>& asked, const Terminal& terminal) {
  if (!asked || terminal.json()) return false;
  for (const char* done : {"accepted", "buffered", "next"}) {
    if (asked->find(done) != nullptr && asked->find("channel") == nullptr) return false;
  }
  return (*asked)["noted"] != Value(true);
}

// Another answer or message counts. The client must know that this one does not.
bool differs(const Result<Value>& asked) {
  return asked && asked->find("duplicate") != nullptr && (*asked)["applied"] == Value(false);
}

}  // namespace

int signal_command(const Options& options, Terminal& terminal) {
  Value payload;
  if (options.has_data) {
    auto value = json_argument(options.data, "the payload");
    if (!value) return terminal.fail_with(value.error());
    payload = std::move(*value);
  }
  std::vector<Member> body = given({{"correlation_key", options.key},
                                    {"message_id", options.message_id},
                                    {"wait_type", options.wait_type}});
  body.emplace_back("payload", std::move(payload));
  if (options.buffer) body.emplace_back("buffer", true);
  const auto asked = post(options, "signal", std::move(body));
  const int code = say(asked, options, terminal, "recorded");
  if (asked && !terminal.json()) say_then(*asked, terminal);
  if (has_next(asked, terminal)) say_next(options, options.id, terminal);
  return differs(asked) ? kConflict : code;
}

int cancel_command(const Options& options, Terminal& terminal) {
  std::vector<Member> body = given({{"reason", options.reason}});
  if (options.no_compensate) body.emplace_back("compensate", false);
  const auto asked = post(options, "cancel", std::move(body));
  const int code = say(asked, options, terminal, "cancel requested");
  if (has_next(asked, terminal)) say_next(options, options.id, terminal);
  if (asked && !terminal.json()) {
    for (const std::string& doubt : doubts_left(options, terminal)) terminal.note(doubt);
  }
  return code;
}

int message_command(const Options& options, Terminal& terminal) {
  Value payload;
  if (options.has_data) {
    auto value = json_argument(options.data, "the payload");
    if (!value) return terminal.fail_with(value.error());
    payload = std::move(*value);
  }
  std::vector<Member> body =
      given({{"channel", options.channel}, {"message_id", options.message_id}});
  body.emplace_back("payload", std::move(payload));
  const auto asked = post(options, "message", std::move(body));
  const int code = say(asked, options, terminal, "sent");
  if (has_next(asked, terminal)) say_next(options, options.id, terminal);
  return differs(asked) ? kConflict : code;
}

int pause_command(const Options& options, Terminal& terminal) {
  const auto asked = post(options, "pause", given({{"reason", options.reason}}));
  const bool rests = asked && asked->find("paused") != nullptr;
  return say(asked, options, terminal,
             rests ? "paused" : "pause requested; calls in flight finish first");
}

int resume_command(const Options& options, Terminal& terminal) {
  const auto asked = post(options, "resume", {});
  const int code = say(asked, options, terminal, "resumed");
  if (has_next(asked, terminal)) say_next(options, options.id, terminal);
  return code;
}

int budget_command(const Options& options, Terminal& terminal) {
  std::vector<Member> body =
      given({{"cost", options.cost}, {"note", options.note}, {"wall", options.wall}});
  for (const auto& [name, text] :
       {std::pair("tokens", &options.tokens), std::pair("model_calls", &options.model_calls),
        std::pair("tool_calls", &options.tool_calls)}) {
    if (!text->empty()) body.emplace_back(name, number_or_text(*text));
  }
  const bool says_nothing =
      std::ranges::none_of(body, [](const Member& member) { return member.first != "note"; });
  if (says_nothing) {
    return terminal.fail_with({Code::usage,
                               "set a new total: --tokens, --cost, --model-calls, --tool-calls or "
                               "--wall; `aetheris job " +
                                   quoted(options.id) + "` shows limits and usage"});
  }
  const auto asked = post(options, "budget", std::move(body));
  const bool had = asked && (*asked)["raised"] == Value(false);
  const int code = say(asked, options, terminal, had ? "budget unchanged" : "raised");
  if (asked && !terminal.json() && (*asked)["command"].is_string()) {
    terminal.note("the next call still exceeds the budget" + lacking_text(*asked));
    terminal.note("answer: " + terminal.err()(Tint::bold, safe(asked->text("command"))));
  } else if (has_next(asked, terminal)) {
    say_next(options, options.id, terminal);
  }
  return code;
}

int approve_command(const Options& options, Terminal& terminal) {
  const bool yes = options.command == "approve";
  std::vector<Member> body =
      given({{"decision", yes ? "approve" : "reject"}, {"note", options.note}});
  if (!options.arguments.empty()) {
    auto arguments = json_argument(options.arguments, "--arguments");
    if (!arguments) return terminal.fail_with(arguments.error());
    body.emplace_back("arguments", *std::move(arguments));
  }
  const auto asked = post_to(options, {"api", "approvals", options.id}, std::move(body));
  if (!asked) return terminal.fail_with(asked.error());
  // The arguments as they were asked for are no edit: a plain yes.
  const bool edited = !options.arguments.empty() && asked->text("outcome") != "approved";
  const std::string_view wanted = !yes ? "rejected" : edited ? "edited" : "approved";
  // Answered before, or closed by something else: whoever asks must know that their answer is not the one.
  const std::string_view outcome = asked->text("outcome", wanted);
  if (terminal.json()) {
    terminal.print_json(*asked);
  } else if (asked->find("accepted") != nullptr) {
    terminal.print("accepted: the process that runs the job applies it\n");
  } else if (asked->find("duplicate") != nullptr) {
    terminal.print("already answered: " + safe(outcome) + answerer_text(*asked) + "\n");
  } else {
    terminal.print(edited ? "approved with changed arguments\n" : std::string(wanted) + "\n");
  }
  const bool unused = (*asked)["reason"].is_string() && (*asked)["applied"] == Value(false);
  if (unused && !terminal.json()) {
    terminal.note("the call will not be made: " + safe(asked->text("reason")));
    terminal.note("see:    aetheris approvals");
  } else if (has_next(asked, terminal)) {
    say_then(*asked, terminal);
    say_next(options, options.id.substr(0, options.id.rfind('.')), terminal);
  }
  // Of an edit, whoever made another one is refused: this is the same, perhaps with another note.
  const bool overtaken = !options.arguments.empty() && asked->find("duplicate") != nullptr &&
                         (*asked)["applied"] == Value(false) && outcome != "edited";
  return outcome == wanted && !overtaken && !unused ? kDone : kConflict;
}

int resolve_command(const Options& options, Terminal& terminal) {
  const bool accepts = options.resolution == "accept";
  // Whoever says this has looked by now; the process that takes it in may stand still until later.
  std::vector<Member> body = given({{accepts ? "step_id" : "idempotency_key", options.key},
                                    {"looked_at", to_text(net::SystemClock().now())},
                                    {"note", options.note},
                                    {"resolution", options.resolution}});
  if (options.has_data) {
    auto value = json_argument(options.data, "the result");
    if (!value) return terminal.fail_with(value.error());
    body.emplace_back("result", std::move(*value));
  }
  if (!options.of_try.empty()) {
    auto of_try = json_argument(options.of_try, "--try");
    if (!of_try) return terminal.fail_with(of_try.error());
    body.emplace_back("try", std::move(*of_try));
  }
  const auto asked = post(options, "resolve", std::move(body));
  const bool noted = asked && (*asked)["noted"] == Value(true);
  std::string done =
      (noted ? "recorded in the log of the ended job: " : "recorded: ") + safe(options.resolution);
  if (const Value* result = asked ? asked->find("result") : nullptr) {
    done += "\nresult: " + safe_json(canonical(*result));
  }
  const int code = say(asked, options, terminal, done);
  if (has_next(asked, terminal)) say_next(options, options.id, terminal);
  return code;
}

}  // namespace ae::cli

// Messages with parts have lines of at most 160 characters, also with the longest usual names.
#include "cli/phrases.h"

#include <fmt/core.h>

#include <string>
#include <vector>

#include "api/stuck.h"
#include "cli/shared.h"
#include "cli/text.h"
#include "json/json.h"
#include "store/store.h"
#include "testing/test.h"

namespace ae::cli {
namespace {

constexpr std::size_t kMessageMax = 160;
constexpr const char* kJob = "01a21315-4cb4-7933-8dfd-771fb3d84cee";
constexpr const char* kNode = "send_confirmation_mail";
constexpr const char* kTool = "payments__create_refund_request";
constexpr const char* kAgent = "customer_support_refunds";
constexpr const char* kAt = "2026-11-25T14:22:41.806470Z";

void expect_short(const std::string& text) {
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = std::min(text.find('\n', at), text.size());
    const std::string line = text.substr(at, end - at);
    EXPECT_LE(width_of(line), kMessageMax) << line;
    at = end + 1;
  }
}

Value job_of(const char* status) {
  return Value::object({{"agent", kAgent}, {"id", kJob}, {"status", status}});
}

Value unknown_outcome(const char* reason, const char* message) {
  const std::string resolve = fmt::format("aetheris resolve {} 5d0c2f8a91b3 ", kJob);
  return Value::object(
      {{"arguments", Value()},
       {"commands", Value::array({Value(resolve + "happened RESULT"),
                                  Value(resolve + "not_happened"), Value(resolve + "fail")})},
       {"external_key", fmt::format("aetheris:{}:5d0c2f8a91b3e4f7:12", kJob)},
       {"given_up", true},
       {"idempotency_key", std::string(64, 'a')},
       {"node_id", kNode},
       {"reason", reason},
       {"resolvable_at", "2999-01-01T00:00:00.000001Z"},
       {"error_message", message},
       {"tool", kTool}});
}

AE_TEST("cli/composed messages have at most 160 characters a line") {
  for (const char* reason :
       {"invocation_in_doubt", "budget_exceeded", "execution_version_mismatch",
        "replay_verification_human_required", "verifier_unreachable", "worn_out",
        "store_rolled_back", "paused", "the prices of the hotel are wrong"}) {
    for (const char* until : {"resolve", "resume", ""}) {
      expect_short("parked: " + parked_text(Value::object({{"reason", reason}, {"until", until}})));
    }
  }
  for (const auto& [reason, message] :
       {std::pair("", ""),
        {"timeout", "no response within 30 s"},
        {"signal_9", "python3 was killed by SIGKILL"},
        {"signal_9", ""},
        {"protocol_version_unsupported", "the server does not support the version"}}) {
    for (const char* status : {"completed", "failed"}) {
      const Value unknown = unknown_outcome(reason, message);
      const Value undo = unknown.with("compensates", "5d0c2f8a91b3e4f7");
      const Value ended = job_of(status).with("in_doubt", Value::array({unknown, undo}));
      for (const std::string& line : final_unknown_outcomes(ended, {}, 0)) expect_short(line);
      expect_short(fmt::format("{}, since {}", unknown_outcome_text(unknown), short_time(kAt)));
    }
    const Value open = unknown_outcome(reason, message);
    for (const Value& command : open["commands"].items()) {
      const std::string text = command.as_string();
      for (const bool ended : {false, true}) {
        const std::string note = answer_note(text, {.doubt = open, .ended = ended});
        EXPECT_FALSE(note.empty()) << text;
        expect_short("answer: " + text);
        expect_short(fmt::format("        ({})", note));
      }
    }
    expect_short("    try 12  outcome unknown  error: " + error_shown(reason, message));
  }
  for (const char* code : {"request_invalid", "rejected", "deadline_exceeded"}) {
    const Value error = Value::object({{"code", code}, {"node_id", kNode}});
    const Value reads =
        error.with("reads_input", Value::array({Value("reservation_number"), Value("order_id")}))
            .with("reads_kept", Value::array({Value(kNode)}));
    for (const char* path : {"agents.yaml", ""}) {
      const Value job = job_of("failed").with("error", reads).with("input", Value::object({}));
      for (const NextCommand& next : next_commands(job, {.path = path})) {
        expect_short(next.lead + next.command);
      }
    }
    const Value failed =
        error.with("summary", fmt::format("node {} (tool {}): .args.id is null", kNode, kTool));
    expect_short(fmt::format("job {} failed{}", kJob, failure_text(failed)));
  }
  for (const char* head : {"intact", "unsigned", "unknown_key", "altered", "truncated"}) {
    for (const bool has : {false, true}) {
      expect_short(fmt::format("NOT verified  job {}, {}", kJob, head_text(head, has)));
    }
  }
}

AE_TEST("cli/a failed job lists the next commands, with the arguments for a new input") {
  const struct {
    const char* input;
    const char* reads;
    const char* arguments;
  } kCases[] = {{"{}", "[\"id\"]", "id=VALUE"},
                {"{\"who\":\"Ada\"}", "[\"id\"]", "id=VALUE who=VALUE"},
                {"{\"message\":\"hi\"}", "[\"message\"]", "--message TEXT"},
                {"{\"n\":7}", "[\"id\"]", "--input JSON"},
                {"{}", "[\"a b\"]", "--input JSON"},
                {"{}", "[]", "--input JSON"},
                {"null", "[\"id\"]", "--input JSON"}};
  for (const auto& one : kCases) {
    const Value error =
        Value::object({{"code", "expression_failed"}, {"reads_input", *parse_json(one.reads)}});
    const Value job = job_of("failed").with("error", error).with("input", *parse_json(one.input));
    const auto next = next_commands(job, {.path = "trip.yaml", .has_one_agent = true});
    ASSERT_EQ(next.size(), 2u);
    EXPECT_EQ(next[0].lead, "After correcting the file, run: ");
    EXPECT_EQ(next[1].lead, "With another input, run: ");
    EXPECT_EQ(next[1].command, fmt::format("aetheris run trip.yaml {}", one.arguments));
    EXPECT_NE(next_commands(job, {})[1].command.find(fmt::format("FILE {}", kAgent)),
              std::string::npos);
  }
  const Value typed =
      *parse_json(R"({"code":"request_invalid","expression":".input.n","reads_input":["n"],)"
                  R"("summary":"node a (tool t): args.n: .input.n: must be a number"})");
  const Value given =
      job_of("failed").with("error", typed).with("input", *parse_json(R"({"n":"12","to":"Ada"})"));
  EXPECT_EQ(next_commands(given, {.path = "trip.yaml", .has_one_agent = true})[1].command,
            "aetheris run trip.yaml n:=JSON to=VALUE");
  const Value deep = *parse_json(
      R"({"code":"x","committed":["pay"],"expression":".input.order.id","reads_input":["order"]})");
  const auto steps =
      next_commands(job_of("failed").with("error", deep).with("input", *parse_json("{}")),
                    {.path = "trip.yaml",
                     .has_one_agent = true,
                     .retry_chain = {.last = "t-1", .status = "failed", .next = "t-2"}});
  ASSERT_EQ(steps.size(), 3u);
  EXPECT_EQ(steps[0].lead, "Retried as job t-1 (failed).");
  EXPECT_EQ(steps[1].command, "aetheris retry t-1 trip.yaml --job-id t-2") << "the newest failed";
  EXPECT_EQ(steps[2].lead, "With another input, which repeats pay, run: ");
  EXPECT_EQ(steps[2].command, "aetheris run trip.yaml --input JSON") << "a text has no members";
  EXPECT_EQ(committed_text(Value::object({{"error", deep}})), "Took effect: pay");
  for (const char* status : {"completed", "running", "waiting"}) {
    const FailedJobFile file{.retry_chain = {.last = "t-1", .status = status, .next = "t-2"}};
    EXPECT_EQ(next_commands(job_of("failed").with("error", deep), file).size(), 1u) << status;
  }
  const Value refused =
      *parse_json(R"({"code":"tool_output_invalid","committed":["pay"],"node_id":"pay",)"
                  R"("idempotency_key":"5d0c2f8a91b3e4f7"})");
  const auto commands_of = [](const Value& error) {
    std::string all;
    for (const NextCommand& one :
         next_commands(job_of("failed").with("error", error), {.path = "trip.yaml"})) {
      all += fmt::format("{} | {}\n", one.name, one.lead);
    }
    return all;
  };
  EXPECT_EQ(
      commands_of(refused),
      "record | Node pay took effect and its result was refused. To keep the call, first run: "
      "\n"
      "retry | Then correct the file, and run: \n"
      "repeat | To make the call of node pay again, which took effect, run: \n");
  EXPECT_EQ(commands_of(refused.with("idempotency_key", nullptr)),
            "retry | After fixing the cause, run: \n"
            "repeat | To make the call of node pay again, which took effect, run: \n")
      << "its result was accepted";
  const Value other = job_of("failed").with("error", *parse_json(R"({"code":"http_503"})"));
  const auto next = next_commands(other, {});
  ASSERT_EQ(next.size(), 1u);
  EXPECT_EQ(next[0].command, retry_command_text(kJob, "", ""));
}

AE_TEST("cli/a job is shown as being cancelled until it ends") {
  const Value ending = Value::object({{"kind", "cancelled"}});
  const auto text = [&](const char* status) {
    return continues_text(job_of(status).with("ending", ending), "", false, "");
  };
  const std::string name = fmt::format("job {}", kJob);
  EXPECT_TRUE(text("parked").starts_with(name + " is being cancelled and is parked. See: "));
  EXPECT_EQ(text("cancelled"), name + " is cancelled");
  store::JobRow row;
  row.id = JobId(kJob);
  const std::string left = continues_text(
      job_of("queued").with("ending", ending).with("no_worker", api::unattended_json(row)), "",
      false, "");
  EXPECT_TRUE(left.starts_with(name + " is being cancelled\nTo continue, run: ")) << left;
}

AE_TEST("cli/the text after a recorded request has at most 160 characters a line") {
  store::JobRow row;
  row.id = JobId(kJob);
  const Value no_worker = api::unattended_json(row);
  for (const char* status : {"queued", "running", "waiting", "parked", "cancelled"}) {
    for (const char* holder : {"", "the server", "process 1234567"}) {
      for (const bool runs_here : {false, true}) {
        const std::string text = continues_text(job_of(status), holder, runs_here, "");
        EXPECT_FALSE(text.empty()) << status;
        expect_short(text);
        expect_short(
            continues_text(job_of(status).with("no_worker", no_worker), holder, runs_here, ""));
      }
    }
  }
  EXPECT_EQ(continues_text(job_of("completed"), "", false, ""), "");
  expect_short(fmt::format("no worker runs job {}: {}", kJob, no_worker.text("message")));
}

AE_TEST("cli/a request for approval names the call in one form, in short lines") {
  const Value approval = Value::object({{"arguments", Value::object({})},
                                        {"expires_at", kAt},
                                        {"id", fmt::format("{}.5d0c2f8a91b3e4f7", kJob)},
                                        {"job_id", kJob},
                                        {"node_id", kNode},
                                        {"tool", kTool}});
  for (const char* kind : {"call", "question"}) {
    const std::string text = approval_text(approval.with("kind", kind));
    EXPECT_NE(text.find("call of tool \"payments__create_refund_request\""), text.npos) << text;
    EXPECT_NE(text.find("  expires:   2026-11-25 14:22:41Z\n"), text.npos) << text;
    expect_short(text);
  }
}

AE_TEST("cli/a wait of code shows its question and what it is about") {
  const Value question =
      Value::object({{"data", Value::object({{"amount", 40}})}, {"message", "Pay the refund?"}});
  const Value wait = Value::object({{"answer", "decision"},
                                    {"correlation_key", "k"},
                                    {"id", fmt::format("{}.5d0c2f8a91b3e4f7", kJob)},
                                    {"job_id", kJob},
                                    {"kind", "wait"},
                                    {"node_id", kNode},
                                    {"question", question},
                                    {"wait_type", "human"}});
  const std::string text = approval_text(wait);
  EXPECT_NE(text.find(" asks (k)\n"), text.npos) << text;
  EXPECT_NE(text.find("  question:  Pay the refund?\n  data:      "), text.npos) << text;
  EXPECT_NE(text.find("\"amount\""), text.npos) << text;
  EXPECT_NE(wait_sentence(wait).find("waits for a decision with the key k"), std::string::npos);
}

AE_TEST("cli/times have one form; the time after which an answer is accepted is rounded up") {
  EXPECT_EQ(short_time(kAt), "2026-11-25 14:22:41Z");
  EXPECT_EQ(short_time("2026-11-25T14:22:41Z"), "2026-11-25 14:22:41Z");
  EXPECT_EQ(short_time("tomorrow"), "tomorrow");
  EXPECT_EQ(short_time(""), "");
  EXPECT_EQ(short_time_after(kAt), "2026-11-25 14:22:42Z");
  EXPECT_EQ(short_time_after("2026-11-25T14:22:41Z"), "2026-11-25 14:22:41Z");
}

AE_TEST("cli/a step is named in one form") {
  const auto place = [](Value item, Value turn, Value call) {
    return place_text(
        Value::object({{"item", item}, {"node_id", "n"}, {"turn", turn}, {"turn_call", call}}));
  };
  EXPECT_EQ(place({}, {}, {}), "n");
  EXPECT_EQ(place(1, {}, {}), "n[1]");
  EXPECT_EQ(place({}, 1, {}), "n turn 2");
  EXPECT_EQ(place({}, 1, 0), "n turn 2, call 1");
}

AE_TEST("cli/calls and tries are counted in one form") {
  EXPECT_EQ(calls_text(1, 0, "call"), "1 call");
  EXPECT_EQ(calls_text(2, 1, "call"), "1 call, 2 tries (1 retry)");
  EXPECT_EQ(calls_text(11, 2, "tool call"), "9 tool calls, 11 tries (2 retries)");
}

AE_TEST("cli/a message of several lines is printed as lines") {
  EXPECT_EQ(message_text("one\n"), "one");
  EXPECT_EQ(message_text("one\r\n\n  two \n", "> "), "one\n>   two");
  EXPECT_EQ(message_text("\x1b[2J"), "\\x1b[2J");
  EXPECT_EQ(first_line("\none\ntwo"), "one …");
  EXPECT_EQ(first_line("one\n\n"), "one");
  EXPECT_EQ(first_line(""), "");
}

AE_TEST("cli/a wait is printed as a sentence") {
  const auto wait = [](const char* type, const char* key) {
    return Value::object({{"correlation_key", key},
                          {"due_at", kAt},
                          {"node_id", "n"},
                          {"tool", Value()},
                          {"wait_type", type}});
  };
  const std::string due = ", due 2026-11-25 14:22:41Z";
  EXPECT_EQ(wait_sentence(wait("timer", "k")), "node n waits for a timer" + due);
  EXPECT_EQ(wait_sentence(wait("signal", "k")), "node n waits for a signal with the key k" + due);
  EXPECT_EQ(wait_sentence(wait("human", "resolve/1")),
            "node n waits for the outcome of its call (aetheris resolve)" + due);
}

AE_TEST("cli/a cause is shown once") {
  EXPECT_EQ(cause_of("signal_9", "sh was killed by SIGKILL"), "");
  EXPECT_EQ(cause_of("signal_9", ""), " (killed by signal 9)");
  EXPECT_EQ(cause_of("timeout", "no response"), " (timeout)");
  EXPECT_EQ(cause_of("the outcome is unknown", ""), "");
  EXPECT_EQ(error_shown("signal_9", "sh was killed by SIGKILL"), "sh was killed by SIGKILL");
  EXPECT_EQ(error_shown("exit_3", "sh exited with code 3"), "exit_3: sh exited with code 3");
}

AE_TEST("cli/an answer is explained; not_happened with the time from which it is accepted") {
  const auto unknown = [](const char* at) { return Value::object({{"resolvable_at", at}}); };
  const std::string command = "aetheris resolve j 5d0c2f8a91b3 not_happened";
  EXPECT_EQ(answer_note(command, {.doubt = unknown("2999-01-01T00:00:00Z")}),
            "it took no effect; the call is sent again; accepted after 2999-01-01 00:00:00Z");
  EXPECT_EQ(answer_note(command, {.doubt = unknown("2001-01-01T00:00:00Z")}),
            "it took no effect; the call is sent again");
  EXPECT_EQ(answer_note(command, {.ended = true}), "it took no effect");
  EXPECT_EQ(answer_note("aetheris resolve j n fail", {.confirms = true}), "the job fails");
  EXPECT_EQ(answer_note("aetheris approve j.5d0c2f8a91b3e4f7", {}), "");
}

}  // namespace
}  // namespace ae::cli

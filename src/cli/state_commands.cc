// trace, replay, verify: show the steps of a job, its state at an event, and whether its log is
// intact.
#include <fmt/core.h>

#include <algorithm>
#include <cstdlib>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "app/key_file.h"
#include "cli/code_checks.h"
#include "cli/job_reads.h"
#include "cli/job_tree.h"
#include "cli/phrases.h"
#include "cli/shared.h"
#include "cli/trace_details.h"
#include "cli/trace_fields.h"
#include "cli/trace_text.h"
#include "inspect/step_tree.h"
#include "json/json.h"
#include "log/field_names.h"

namespace ae::cli {
namespace {

struct TraceOptions : CommonOptions {
  std::string id, parent, step;
  bool verbose = false, tree = false;
};

std::vector<Option> trace_options(TraceOptions& o) {
  return {{"ID", "", &o.id, "the job", kRequired},
          {"--parent",
           "STEP",
           &o.parent,
           "only list the steps below this one; `root`: the nodes of the plan",
           {.accepts = Accepts::not_empty, .excludes = {"--step"}}},
          {"--step", "STEP", &o.step, "only this step", kNotEmpty},
          {"--tree",
           "",
           &o.tree,
           "also the child jobs, to the last level",
           {.excludes = {"--step", "--parent"}}},
          {"-v,--verbose", "", &o.verbose, "with call ids and invocation ids"}};
}

struct ReplayOptions : CommonOptions {
  std::string id, at, diff_from, fields, code;
  bool inspect = false;
};

std::vector<Option> replay_options(ReplayOptions& o) {
  return {{"ID", "", &o.id, "the job", kRequired},
          {"--at", "SEQ", &o.at, "at this event (default: the last)"},
          {"--diff-from", "SEQ", &o.diff_from, "only what has changed since this event", kNotEmpty},
          {"--fields",
           "FIELDS",
           &o.fields,
           "only these fields of the state, as JSON",
           {.choices = {"summary", "steps"}}},
          {"--code",
           "FILE",
           &o.code,
           "instead: does this file of code fit the log? as `preflight`",
           {.accepts = Accepts::not_empty, .excludes = {"--diff-from", "--fields"}}},
          {"--inspect",
           "",
           &o.inspect,
           "run the code under its language's debugger, whose address is printed",
           {.needs = "--code"}}};
}

struct VerifyOptions : CommonOptions {
  std::string id;
  std::vector<std::string> keys;  // trusted signing keys
};

std::vector<Option> verify_options(VerifyOptions& o) {
  return {{"ID", "", &o.id, "the job", kRequired},
          {"--key", "KEY", &o.keys,
           "a trusted signing key: a file or 64 hex digits (default: AETHERIS_SIGNING_KEY); "
           "repeatable"}};
}

// All steps below a step, as one page.
Result<Value> get_steps(const TraceOptions& options) {
  AE_ASSIGN(const app::StoreUrl store, store_of(options));
  AE_ASSIGN(const auto client, open_to_read(store, options.id));
  std::vector<Value> steps;
  std::string after;
  while (true) {
    AE_ASSIGN(const Value page,
              get(*client, {"api", "jobs", options.id, "steps"},
                  {{field::parent, options.parent}, {"after", after}, {"limit", "500"}}));
    for (const Value& step : page["steps"].items()) steps.push_back(step);
    if (!page["next"].is_string()) return page.with("steps", Value::array(std::move(steps)));
    after = page["next"].as_string();
  }
}

std::string steps_text(const Value& page, const Paint& paint) {
  Table table({"STEP", "WHERE", "STATE", "TRIES", "TOOK", "PARTS", "ERROR"});
  for (const Value& step : page["steps"].items()) {
    const std::size_t parts = natural_of(step["children"]["total"]);
    table.row({{std::string(step.text(field::step_id))},
               {place_text(step)},
               {std::string(step.text("status"))},
               {std::to_string(natural_of(step["tries"]))},
               {span_text(step[field::duration_us])},
               {parts > 0 ? std::to_string(parts) : std::string()},
               {safe(step[field::error].text(field::code))}});
  }
  return table.text(paint, 0);
}

int print_steps(const TraceOptions& options, Terminal& terminal) {
  const auto page = get_steps(options);
  if (!page) return terminal.fail_with(page.error());
  if (terminal.json()) {
    terminal.print_json(*page);
  } else {
    terminal.print(steps_text(*page, terminal.out()));
  }
  return kDone;
}

int print_step(const TraceOptions& options, Terminal& terminal) {
  const auto step = [&]() -> Result<Value> {
    AE_ASSIGN(const app::StoreUrl store, store_of(options));
    AE_ASSIGN(const auto client, open_to_read(store, options.id));
    return get(*client, {"api", "jobs", options.id, "steps", options.step}, {});
  }();
  if (!step) return terminal.fail_with(step.error());
  if (terminal.json()) {
    terminal.print_json(*step);
    return kDone;
  }
  const auto store = store_of(options);
  const TraceStyle style{.paint = terminal.out(),
                         .width = terminal.width(),
                         .verbose = options.verbose,
                         .store_flag = store ? store_flag(*store) : std::string()};
  const Value trace = Value::object({{"id", options.id}});
  const std::string status(step->text("status"));
  std::string text = fmt::format("{}  {}  {}\n", style.paint(Tint::bold, place_text(*step)), status,
                                 span_text((*step)[field::duration_us]));
  TraceDetails(trace, style, text).details(*step, status, "  ");
  terminal.print(text);
  return kDone;
}

std::string trace_page(const TraceOptions& options, const std::string& id, const Value& trace,
                       Terminal& terminal) {
  const auto store = store_of(options);
  const bool failed = trace.text("status") == "failed";
  const RetryChain known = failed && store ? find_retries(*store, id) : RetryChain{};
  return trace_text(trace, {.paint = terminal.out(),
                            .width = terminal.width(),
                            .verbose = options.verbose,
                            .store_flag = store ? store_flag(*store) : std::string(),
                            .retry_chain = known});
}

int trace_command(const TraceOptions& options, Terminal& terminal) {
  if (!options.parent.empty()) return print_steps(options, terminal);
  if (!options.step.empty()) return print_step(options, terminal);
  if (options.tree) {
    const auto show = [&](app::ApiClient& client, const std::string& id) -> Result<Value> {
      AE_ASSIGN(Value trace, get(client, {"api", "jobs", id, "trace"}, {}));
      if (!terminal.json()) terminal.print(trace_page(options, id, trace, terminal));
      return trace;
    };
    const Status printed = print_tree(options, options.id, terminal, show);
    return printed ? kDone : terminal.fail_with(printed.error());
  }
  const auto trace = get_job_view(options, options.id, "trace");
  if (!trace) return terminal.fail_with(trace.error());
  if (terminal.json()) {
    terminal.print_json(*trace);
  } else {
    terminal.print(trace_page(options, options.id, *trace, terminal));
  }
  return kDone;
}

// A step's phase in words; --json has the stored one.
std::string_view phase_words(std::string_view phase) {
  constexpr std::pair<std::string_view, std::string_view> kWords[] = {
      {"blocked", "not started"},     {"calling", "running"},
      {field::settled, "call ended"}, {"backoff", "waiting to retry"},
      {"redo", "to be sent again"},   {field::in_doubt, "outcome unknown"},
      {"probing", "probe running"},   {"committed", "call succeeded"},
      {"asking", "needs approval"},   {"questioned", "needs an answer"},
      {"mapping", "running items"},   {"looping", "running turns"},
      {"recorded", "value recorded"}, {"refused", "given up"}};
  const auto* const found =
      std::ranges::find(kWords, phase, &std::pair<std::string_view, std::string_view>::first);
  return found == std::end(kWords) ? phase : found->second;
}

// A summary of the state at an event; --json has all of it.
std::string state_text(const Value& state, const Paint& paint) {
  std::string text = fmt::format(
      "{}  {}  {}\n", paint(Tint::bold, safe(state.text("id"))), safe(state.text(field::agent)),
      paint(status_tint(state.text("status")), safe(state.text("status"))));
  const auto line = [&](const char* name, const Value& value) {
    if (value.is_null() || value == Value("") || (value.is_object() && value.members().empty())) {
      return;
    }
    text += fmt::format("  {}{}\n", paint(Tint::dim, pad(name, 12)),
                        value.is_string() ? safe(value.as_string()) : safe_json(canonical(value)));
  };
  const auto time = [&](const char* name, const Value& at) {
    if (at.is_string()) line(name, short_time(at.as_string()));
  };
  time("created", state["job"]["created_at"]);
  line(field::labels, labels_text(state["job"][field::labels]));
  line("event", state[field::at]);
  time("updated", state["updated_at"]);
  for (const char* name : {field::epoch, field::input, field::result}) line(name, state[name]);
  if (const Value& error = state[field::error]; error.is_object()) {
    text += fmt::format("  {}{}: {}\n", paint(Tint::dim, pad(field::error, 12)),
                        safe(error.text(field::code)),
                        message_text(error.text("message"), std::string(14, ' ')));
  }
  time(field::deadline, state[field::deadline]);
  if (state["parked"][field::reason].is_string()) line("parked", state["parked"][field::reason]);
  for (std::size_t i = 0; i < state[field::waits].size(); ++i) {
    line(i == 0 ? field::waits : "", wait_sentence(state[field::waits].items()[i]));
  }
  if (state["steps"].is_array() && state["steps"].size() > 0) {
    Table table({"NODE", "STATE"});
    for (const Value& step : state["steps"].items()) {
      const std::string_view status = step["failure"].is_object() ? "failed"
                                      : step[field::skipped] == Value(true)
                                          ? to_text(engine::StepStatus::skipped)
                                          : phase_words(step.text("phase"));
      table.row({{place_text(step)}, {std::string(status)}});
    }
    text += table.text(paint, 0);
  }
  return fmt::format("{}{}\n", text, paint(Tint::dim, "all fields: --json"));
}

// The changes between two events, one a line.
std::string changes_text(const Value& body, const Paint& paint, std::size_t width) {
  constexpr std::size_t kValueColumns = 40;
  const auto shown = [](const Value& value) {
    return cut(safe_json(canonical(value)), kValueColumns);
  };
  Table table({"NODE", "FIELD", "BEFORE", "AFTER"});
  for (const Value& change : body["changes"].items()) {
    const std::string_view op = change.text("op");
    table.row({{safe(change.text(field::node_id))},
               {safe(change.text("path"))},
               {op == "add" ? "" : shown(change["before"])},
               {op == "remove" ? "" : shown(change[field::value])}});
  }
  const bool capped = body["capped"] == Value(true);
  return table.text(paint, width) + (capped ? "more: only the first changes are shown\n" : "");
}

int replay_code(const ReplayOptions& options, Terminal& terminal) {
  CodeCheckRequest request{.file = options.code,
                           .jobs = {options.id},
                           .archives = {},
                           .at = {},
                           .is_debugged = options.inspect};
  if (!options.at.empty()) {
    const Value at = number_or_text(options.at);
    if (!at.is_integer() || at.as_int() < 1) {
      return terminal.fail_with(
          {Code::usage, fmt::format("--at must be the number of an event, not \"{}\"",
                                    options.at.substr(0, 80))});
    }
    request.at = static_cast<std::uint64_t>(at.as_int());
  }
  const auto checks = check_code(options, request, terminal);
  if (!checks) return terminal.fail_with(checks.error());
  return print_code_checks(*checks, terminal);
}

int replay_command(const ReplayOptions& options, Terminal& terminal) {
  if (!options.code.empty()) return replay_code(options, terminal);
  const auto state = get_job_view(
      options, options.id, "replay",
      {{field::at, options.at}, {"diff_from", options.diff_from}, {"fields", options.fields}});
  if (!state) return terminal.fail_with(state.error());
  if (terminal.json()) {
    terminal.print_json(*state);
  } else if (!options.diff_from.empty()) {
    terminal.print(changes_text(*state, terminal.out(), terminal.width()));
  } else if (!options.fields.empty()) {
    terminal.print(shown_value(*state));
  } else {
    terminal.print(state_text(*state, terminal.out()));
  }
  return kDone;
}

int verify_command(const VerifyOptions& options, Terminal& terminal) {
  const auto proof = [&]() -> Result<Value> {
    std::vector<std::string> keys = options.keys;
    const char* own = std::getenv("AETHERIS_SIGNING_KEY");
    if (keys.empty() && own != nullptr && *own != '\0') keys.emplace_back(own);
    api::QueryPairs query;
    for (const std::string& text : keys) {
      AE_ASSIGN(const PublicKey key, app::read_public_key(text));
      query.emplace_back("key", key.hex());
    }
    return get_job_view(options, options.id, "verify", std::move(query));
  }();
  if (!proof) return terminal.fail_with(proof.error());
  const bool ok = (*proof)["ok"] == Value(true);
  if (terminal.json()) {
    terminal.print_json(*proof);
    return ok ? kDone : kUnverified;
  }
  const Paint& paint = terminal.out();
  std::string text = fmt::format(
      "{}  job {}, {}\n", ok ? paint(Tint::good, "verified") : paint(Tint::bad, "NOT verified"),
      safe(options.id), head_text(proof->text("head"), (*proof)["signature"].is_object()));
  if ((*proof)["proofs"].is_object()) {
    for (const auto& [name, result] : (*proof)["proofs"].members()) {
      const bool good = result["ok"] == Value(true);
      text += fmt::format("  {}{}{}\n", good ? paint(Tint::good, "ok  ") : paint(Tint::bad, "BAD "),
                          pad(safe(name), 18), proof_text(result.text(field::detail)));
    }
  }
  for (const Value& name : (*proof)["redacted"].items()) {
    text +=
        fmt::format("  redacted  event {}, {}\n", name["seq"].as_int(), safe(name.text("field")));
  }
  terminal.print(text);
  return ok ? kDone : kUnverified;
}

}  // namespace

extern const Command kTraceCommand{
    .name = "trace",
    .group = Group::inspect,
    .target = Target::store_or_server,
    .summary = "show the steps of a job",
    .example = "aetheris trace holiday",
    .bind = bound_command<TraceOptions, trace_options, trace_command>};

extern const Command kReplayCommand{
    .name = "replay",
    .group = Group::inspect,
    .target = Target::store_or_server,
    .summary = "show a job's state at an event; read-only",
    .example = "aetheris replay holiday --at 5",
    .bind = bound_command<ReplayOptions, replay_options, replay_command>};

extern const Command kVerifyCommand{
    .name = "verify",
    .group = Group::inspect,
    .target = Target::store_or_server,
    .summary = "verify a job's log",
    .example = "aetheris verify holiday --key ada.pub",
    .bind = bound_command<VerifyOptions, verify_options, verify_command>};

}  // namespace ae::cli

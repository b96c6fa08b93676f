// redact, audit: erase values of a job's log, and print the audit log.
#include <fmt/core.h>

#include <charconv>

#include "api/problem.h"
#include "app/api_client.h"
#include "cli/phrases.h"
#include "cli/shared.h"
#include "json/json.h"
#include "log/field_names.h"

namespace ae::cli {
namespace {

struct RedactOptions : CommonOptions {
  std::string id, reason;
  std::vector<std::string> values;
  bool all = false, tree = false, keep_forks = false, keep_blind = false;
};

std::vector<Option> redact_options(RedactOptions& o) {
  return {{"ID", "", &o.id, "the job", kRequired},
          {"SEQ[:FIELD]", "", &o.values,
           "the event and value, from `salts` in `aetheris events`; without FIELD all values of "
           "the event"},
          {"--all", "", &o.all, "every erasable value; the output lists what is kept"},
          {"--tree", "", &o.tree, "with --all: also every value of its forks"},
          {"--keep-forks", "", &o.keep_forks, "keep the copies in forks"},
          {"--keep-blind", "", &o.keep_blind,
           "keep the job's hash secret: guesses of erased values can be confirmed"},
          {"--reason", "TEXT", &o.reason, "the reason, for the audit log", kRequired}};
}

struct AuditOptions : CommonOptions {
  bool verify = false;
  std::string after, limit;
};

std::vector<Option> audit_options(AuditOptions& o) {
  return {{"--verify", "", &o.verify, "verify the audit log"},
          {"--after", "SEQ", &o.after, "only entries after this seq"},
          {"--limit", "N", &o.limit, "maximum number of entries (default 1000)"}};
}

constexpr std::uint64_t kHeadSeqMax = 1ULL << 53;  // the largest exact integer in JSON

// SEQ, or SEQ:FIELD.
Result<Value> value_of(const std::string& text) {
  const std::size_t colon = text.find(':');
  const std::string_view number = std::string_view(text).substr(0, colon);
  std::uint64_t seq = 0;
  const auto read = std::from_chars(number.data(), number.data() + number.size(), seq);
  const bool fine = read.ec == std::errc() && read.ptr == number.data() + number.size() &&
                    seq > 0 && seq <= kHeadSeqMax && colon + 1 != text.size();
  if (!fine) {
    return fail(Code::usage, "a value must be SEQ or SEQ:FIELD, such as 1:input, not \"{}\"",
                text.substr(0, 80));
  }
  std::vector<Member> value{{"seq", seq}};
  if (colon != text.npos) value.emplace_back("field", text.substr(colon + 1));
  return Value::object(std::move(value));
}

std::string name_text(const Value& name) {
  return fmt::format("{}:{}", name["seq"].as_int(), safe(name.text("field")));
}

// `of`: the job, if it is a fork of the given one.
std::string redacted_text(const Value& body, const std::string& of) {
  std::string text;
  for (const Value& name : body["redacted"].items()) {
    text += fmt::format("dropped {}{}\n", of, name_text(name));
  }
  for (const Value& name : body["gone"].items()) {
    text += fmt::format("already erased: {}{}\n", of, name_text(name));
  }
  for (const Value& one : body["kept"].items()) {
    text += fmt::format("kept {}{}, {}: {}\n", of, safe(one.text("what")), safe(one.text("where")),
                        safe(one.text("why")));
  }
  return text;
}

// Omits the definition of an agent, which is too long for a table.
Value short_detail(const Value& detail) {
  if (!detail.is_object() || detail.find("definition") == nullptr) return detail;
  std::vector<Member> members;
  for (const Member& member : detail.members()) {
    if (member.first != "definition") members.push_back(member);
  }
  return Value::object(std::move(members));
}

int redact_command(const RedactOptions& options, Terminal& terminal) {
  const auto body = [&]() -> Result<Value> {
    std::vector<Value> values;
    for (const std::string& text : options.values) {
      AE_ASSIGN(Value value, value_of(text));
      values.push_back(std::move(value));
    }
    if (options.all == !values.empty()) {
      return fail(Code::usage, "list the values as SEQ:FIELD, or use --all");
    }
    std::vector<Member> members{{field::reason, options.reason}};
    if (options.tree) members.emplace_back("tree", true);
    if (options.keep_forks) members.emplace_back("keep_forks", true);
    if (options.keep_blind) members.emplace_back("keep_blind", true);
    if (options.all) {
      members.emplace_back("all", true);
    } else {
      members.emplace_back("values", Value::array(std::move(values)));
    }
    api::ApiRequest request;
    request.method = "POST";
    request.path = {"api", "jobs", options.id, "redact"};
    request.body = canonical(Value::object(std::move(members)));
    request.by = cli_actor();
    return answer_of(options, app::OpenMode::write, std::move(request));
  }();
  if (!body) return terminal.fail_with(body.error());
  if (terminal.json()) {
    terminal.print_json(*body);
    return kDone;
  }
  for (const Value& fork : (*body)["forks"].items()) {
    terminal.print(redacted_text(fork, fmt::format("job {} ", safe(fork.text("job_id")))));
  }
  terminal.print(redacted_text(*body, ""));
  if ((*body)["redacted"].size() == 0) terminal.note("nothing left to erase");
  return kDone;
}

int audit_command(const AuditOptions& options, Terminal& terminal) {
  api::ApiRequest request;
  request.path = {"api", "audit"};
  if (options.verify) request.path.emplace_back("verify");
  if (!options.verify && !options.after.empty()) request.query.emplace_back("after", options.after);
  if (!options.verify && !options.limit.empty()) request.query.emplace_back("limit", options.limit);
  const auto body = answer_of(options, app::OpenMode::read, std::move(request));
  if (!body) return terminal.fail_with(body.error());
  const bool ok = !options.verify || (*body)["ok"] == Value(true);
  if (terminal.json()) {
    terminal.print_json(*body);
  } else if (options.verify) {
    const Paint& paint = terminal.out();
    terminal.print(
        fmt::format("{}  audit log, {}: {}\n",
                    ok ? paint(Tint::good, "verified") : paint(Tint::bad, "NOT verified"),
                    safe(body->text("head")), safe(body->text(field::detail))));
  } else {
    Table table({"SEQ", "AT", "WHO", "WHAT", "JOB", "DETAIL"});
    for (const Value& entry : (*body)["entries"].items()) {
      table.row({{std::to_string(entry["seq"].as_int())},
                 {short_time(entry.text(field::at)), Tint::dim},
                 {safe(entry.text(field::by))},
                 {safe(entry.text("act")), Tint::accent},
                 {safe(entry.text("job"))},
                 {safe(canonical(short_detail(entry[field::detail])))}});
    }
    terminal.print(table.text(terminal.out(), terminal.width()));
  }
  return ok ? kDone : kUnverified;
}

}  // namespace

extern const Command kRedactCommand{
    .name = "redact",
    .group = Group::maintain,
    .target = Target::store_or_server,
    .summary = "erase values of a job that has ended; its log stays verifiable",
    .example = "aetheris redact holiday 1:input 9 --reason \"asked to be forgotten\"",
    .bind = bound_command<RedactOptions, redact_options, redact_command>};

extern const Command kAuditCommand{
    .name = "audit",
    .group = Group::maintain,
    .target = Target::store_or_server,
    .summary = "show the audit log: changes to records, and by whom",
    .example = "aetheris audit --verify",
    .bind = bound_command<AuditOptions, audit_options, audit_command>};

}  // namespace ae::cli

// keys: create, list and revoke API keys. The secret is printed once, at creation.
#include <fmt/core.h>

#include "api/problem.h"
#include "app/api_client.h"
#include "cli/phrases.h"
#include "cli/shared.h"
#include "json/json.h"
#include "log/field_names.h"

namespace ae::cli {
namespace {

struct KeysOptions : CommonOptions {
  std::string action, id, role, name, expires;
};

std::vector<Option> keys_options(KeysOptions& o) {
  return {{"ACTION",
           "",
           &o.action,
           "create, list or revoke",
           {.is_required = true, .choices = {"create", "list", "revoke"}}},
          {"ID", "", &o.id, "revoke: the key id, from `aetheris keys list`"},
          {"--role",
           "ROLE",
           &o.role,
           "create: the role (docs/security.md)",
           {.choices = {"viewer", "operator", "approver", "worker", "admin"}}},
          {"--name", "NAME", &o.name, "create: a name for the key"},
          {"--expires", "DURATION", &o.expires, "create: the lifetime, such as 30d"}};
}

// Rejects options of other actions, which would be ignored.
Status check_action(const KeysOptions& options) {
  const bool creates = options.action == "create";
  const bool revokes = options.action == "revoke";
  if (revokes && options.id.empty()) {
    return fail(Code::usage, "ID is missing: `aetheris keys revoke ID`");
  }
  if (!revokes && !options.id.empty()) {
    return fail(Code::usage, "`keys {}` does not take an ID", options.action);
  }
  if (!creates && !(options.role + options.name + options.expires).empty()) {
    return fail(Code::usage, "--role, --name and --expires are for `aetheris keys create`");
  }
  if (creates && options.role.empty()) {
    return fail(Code::usage, "--role is missing: viewer, operator, approver, worker or admin");
  }
  return {};
}

int create(const KeysOptions& options, Terminal& terminal) {
  std::vector<Member> body{{"role", options.role}};
  if (!options.name.empty()) body.emplace_back("name", options.name);
  if (!options.expires.empty()) body.emplace_back("expires", options.expires);
  api::ApiRequest request;
  request.method = "POST";
  request.path = {"api", "keys"};
  request.body = canonical(Value::object(std::move(body)));
  const auto made = answer_of(options, app::OpenMode::create, std::move(request));
  if (!made) return terminal.fail_with(made.error());
  if (terminal.json()) {
    terminal.print_json(*made);
    return kDone;
  }
  terminal.print(safe(made->text("key")) + "\n");
  const std::string_view until = made->text(field::expires_at);
  terminal.note(fmt::format(
      "Created {} key ({}). Save the key now: it is not shown again.", safe(made->text("role")),
      until.empty() ? "no expiry" : fmt::format("expires {}", short_time(until))));
  terminal.note(
      "HTTP requests to a server of this store now need a key: the header `Authorization: Bearer "
      "KEY`, or");
  terminal.note(
      "AETHERIS_API_KEY beside AETHERIS_URL. Commands of this user on this machine need none.");
  terminal.note(fmt::format("To revoke the key: aetheris keys revoke {}", safe(made->text("id"))));
  return kDone;
}

int list(const KeysOptions& options, Terminal& terminal) {
  api::ApiRequest request;
  request.path = {"api", "keys"};
  const auto body = answer_of(options, app::OpenMode::read, std::move(request));
  if (!body) return terminal.fail_with(body.error());
  if (terminal.json()) {
    terminal.print_json(*body);
    return kDone;
  }
  Table table({"ID", "NAME", "ROLE", "CREATED", "BY", "EXPIRES", "REVOKED"});
  for (const Value& key : (*body)["keys"].items()) {
    const bool live = key["live"] == Value(true);
    table.row({{safe(key.text("id")), live ? Tint::accent : Tint::dim},
               {safe(key.text("name"))},
               {safe(key.text("role"))},
               {short_time(key.text("created_at")), Tint::dim},
               {safe(key.text("created_by"))},
               {short_time(key.text(field::expires_at))},
               {short_time(key.text("revoked_at"))}});
  }
  terminal.print(table.text(terminal.out(), terminal.width()));
  return kDone;
}

int revoke(const KeysOptions& options, Terminal& terminal) {
  api::ApiRequest request;
  request.method = "DELETE";
  request.path = {"api", "keys", options.id};
  const auto body = answer_of(options, app::OpenMode::write, std::move(request));
  if (!body) return terminal.fail_with(body.error());
  if (terminal.json()) {
    terminal.print_json(*body);
  } else {
    terminal.print(fmt::format("revoked {} at {}\n", safe(body->text("id")),
                               short_time(body->text("revoked_at"))));
  }
  return kDone;
}

int keys_command(const KeysOptions& options, Terminal& terminal) {
  if (auto fine = check_action(options); !fine) return terminal.fail_with(fine.error());
  if (options.action == "create") return create(options, terminal);
  if (options.action == "list") return list(options, terminal);
  return revoke(options, terminal);
}

}  // namespace

extern const Command kKeysCommand{
    .name = "keys",
    .group = Group::maintain,
    .target = Target::store_or_server,
    .summary = "create, list and revoke API keys",
    .example = "aetheris keys create --role viewer --name dashboard --expires 30d",
    .bind = bound_command<KeysOptions, keys_options, keys_command>};

}  // namespace ae::cli

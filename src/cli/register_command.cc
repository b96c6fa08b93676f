// register: registers the agents of a file with a server, before workers offer them.
#include <fmt/core.h>

#include <cstdlib>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "agents/worker_definitions.h"
#include "api/problem.h"
#include "app/api_client.h"
#include "app/code_command.h"
#include "base/counted.h"
#include "cli/local_worker.h"
#include "cli/served_agents.h"
#include "cli/shared.h"
#include "json/json.h"
#include "log/field_names.h"

namespace ae::cli {
namespace {

struct RegisterOptions : CommonOptions {
  std::string file, url;
};

std::vector<Option> register_options(RegisterOptions& o) {
  return {
      {"FILE", "", &o.file,
       "a file of code (.ts .mts .cts .js .mjs .cjs .py, or an executable file), or an agents file",
       kRequired},
      {"--url", "URL", &o.url,
       "the server (default: AETHERIS_URL, or the process that owns the store); AETHERIS_API_KEY "
       "is "
       "a key with the role admin",
       kNotEmpty}};
}

using Definitions = std::vector<std::pair<std::string, Value>>;  // of agents, by name

// As a server derives them from what this worker offers.
Result<Definitions> definitions_of(const routines::Definitions& offered) {
  std::vector<Value> agents, tools;
  for (const auto& agent : offered.agents) agents.push_back(agent.definition);
  for (const auto& tool : offered.tools) tools.push_back(tool.definition);
  agents::WorkerDefinitions definitions;
  const auto faults = definitions.add(
      {.principal = offered.principal, .agents = agents, .tools = tools},
      {.is_in_file = [](std::string_view) { return false; },
       .is_superseded = [](std::string_view, std::string_view) { return false; },
       .load = [](const std::string&) { return std::vector<agents::Diagnostic>(); }});
  if (!faults.empty()) return fail(Code::plan_invalid, "{}", faults.front().message);
  AE_ASSIGN(const Value file, parse_json(definitions.code()));
  Definitions found;
  for (const auto& [name, definition] : file["agents"].members()) {
    found.emplace_back(name, definition);
  }
  return found;
}

std::expected<Definitions, int> definitions_in(const std::string& path, Terminal& terminal) {
  if (!app::is_agents_file(path)) {
    auto command = app::code_command(path);
    if (!command) return std::unexpected(terminal.fail_with(command.error()));
    LocalWorker worker(terminal, {});
    if (const auto started = worker.start(*std::move(command)); !started) {
      return std::unexpected(terminal.fail_with(started.error()));
    }
    auto found = definitions_of(worker.offered());
    if (!found) return std::unexpected(terminal.fail_with(found.error()));
    return *std::move(found);
  }
  const auto loaded = load_valid_agents(path, {}, terminal);
  if (!loaded) return std::unexpected(loaded.error());
  Definitions found;
  for (const auto& [name, agent] : loaded->file.agents) found.emplace_back(name, agent.definition);
  return found;
}

Result<std::unique_ptr<app::ApiClient>> server_of(const RegisterOptions& options) {
  if (!options.url.empty()) return app::ApiClient::connect_to_server(options.url);
  if (const char* const url = std::getenv("AETHERIS_URL"); url != nullptr && *url != '\0') {
    return app::ApiClient::connect_to_server(url);
  }
  AE_ASSIGN(const app::StoreUrl store, store_of(options));
  auto owner = app::find_owner(store);
  if (owner == nullptr) {
    return fail(Code::usage,
                "no process serves the store {}: name a server with --url or AETHERIS_URL",
                store.text());
  }
  return owner;
}

// The faults that the server found, as `check` prints them.
void print_faults(const Value& faults, const std::string& path, Terminal& terminal) {
  if (!faults.is_array()) return;
  for (const Value& fault : faults.items()) {
    if (!fault.is_object()) continue;
    const std::string_view hint = fault.text("suggestion");
    terminal.note(safe(fmt::format("{}: {}: {}{}", path, fault.text("path"), fault.text("message"),
                                   hint.empty() ? "" : fmt::format(" (did you mean {}?)", hint))));
  }
}

int register_command(const RegisterOptions& options, Terminal& terminal) {
  const auto client = server_of(options);
  if (!client) return terminal.fail_with(client.error());
  const auto definitions = definitions_in(options.file, terminal);
  if (!definitions) return definitions.error();
  if (definitions->empty()) {
    return terminal.fail_with({Code::usage, fmt::format("{} has no agent", options.file)});
  }
  std::vector<Value> registered;
  for (const auto& [name, definition] : *definitions) {
    api::ApiRequest request;
    request.method = "PUT";
    request.path = {"api", "agents", name};
    request.body = canonical(definition);
    request.by = cli_actor();
    const auto response = (*client)->send(request);
    if (!response) return terminal.fail_with(response.error());
    if (response->status >= 400) {
      if (response->body.is_object()) {
        print_faults(response->body["faults"], options.file, terminal);
      }
      Error error = api::error_of_problem(response->body, response->status);
      error.message = fmt::format("agent {}: {}", name, error.message);
      return terminal.fail_with(error);
    }
    const bool is_new = response->status == 201;
    const Value& answer = response->body;
    if (!answer.is_object() || !answer[field::version].is_integer()) {
      return terminal.fail_with(
          {Code::unavailable, "the answer is not that of an Aetheris server"});
    }
    registered.push_back(Value::object({{"is_new", is_new},
                                        {"name", name},
                                        {field::plan_hash, answer[field::plan_hash]},
                                        {field::version, answer[field::version]}}));
    if (!terminal.json()) {
      terminal.print(fmt::format("agent {}: version {}{}\n", safe(name),
                                 answer[field::version].as_int(), is_new ? "" : ", unchanged"));
    }
  }
  if (terminal.json()) {
    terminal.print_json(Value::object({{"agents", Value::array(std::move(registered))}}));
  }
  return kDone;
}

}  // namespace

extern const Command kRegisterCommand{
    .name = "register",
    .group = Group::run,
    .target = Target::store_or_server,
    .summary = "register the agents of a file with a server",
    .example = "aetheris register agent.ts --url https://agents.example.org",
    .bind = bound_command<RegisterOptions, register_options, register_command>};

}  // namespace ae::cli

// chat: a conversation with an agent whose loop is a thread, or whose code receives messages.
#include <fmt/core.h>

#include <algorithm>
#include <cstdlib>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "cli/chat.h"
#include "cli/chat_host.h"
#include "cli/run_job.h"
#include "cli/shared.h"
#include "net/system.h"
#include "plan/plan.h"

namespace ae::cli {
namespace {

struct ChatOptions : RunOptions {};

std::vector<Option> chat_options(ChatOptions& o) {
  return std::vector<Option>{
      {"FILE", "", &o.file, "the agents file, or a file of code that a server runs", kRequired},
      policies_option(o.policies),
      {"AGENT", "", &o.agent, "needed when FILE has several agents"},
      {"--job", "ID", &o.job_id, "continue this job", kNotEmpty},
      capability_option(o),
      durability_option(o),
      {"--grace", "DURATION", &o.grace,
       "time for calls in flight when the command ends (default 10s)"},
      signing_key_option(o)};
}

// AETHERIS_URL names the server of the job; "": it runs here, or at the owner of the store.
std::string server_url() {
  const char* const url = std::getenv("AETHERIS_URL");
  return url == nullptr ? "" : url;
}

using Connect = std::function<Result<std::unique_ptr<app::ApiClient>>()>;

// How the command continues.
std::string chat_text(const ChatOptions& options, const app::StoreUrl& store,
                      const std::string& job) {
  const std::string agent = options.agent.empty() ? "" : " " + quoted(options.agent);
  return fmt::format("aetheris chat {}{} --job {}{}", quoted(options.file), agent, quoted(job),
                     !server_url().empty() ? "" : store_flag(store));
}

// The place where the job runs.
struct ChatPlace {
  std::unique_ptr<ChatHost> host;  // nullptr: another process
  Connect connect;
};

Result<ChatPlace> place_of(const ChatOptions& options, const RunParams& params,
                           const app::LoadedAgents* loaded) {
  if (const std::string url = server_url(); !url.empty()) {
    return ChatPlace{.host = {},
                     .connect = [url] { return app::ApiClient::connect_to_server(url); }};
  }
  const auto connect_to_owner = [store =
                                     params.store]() -> Result<std::unique_ptr<app::ApiClient>> {
    if (auto owner = app::find_owner(store)) return owner;
    return fail(Code::unavailable, "the process that owned the store has ended");
  };
  if (loaded == nullptr) {
    if (auto owner = app::find_owner(params.store)) return ChatPlace{{}, connect_to_owner};
    return fail(Code::unavailable, "no process runs the code of {}: start aetheris dev {}",
                options.file, options.file);
  }
  app::InstanceOptions site{.store = params.store};
  site.mode = app::InstanceOptions::Mode::run;
  site.agents = &loaded->file;
  site.agents_folder = loaded->folder;
  site.descriptors = net::raise_descriptor_limit();
  site.signing_key = options.signing_key;
  site.runtime.worker = worker_name();
  site.runtime.capabilities = options.capabilities;
  site.runtime.durability =
      options.durability == "split" ? runtime::Durability::split : runtime::Durability::fused;
  for (const auto& [name, agent] : loaded->file.agents) site.runtime.agents.push_back(name);
  auto host = ChatHost::start(std::move(site), params.grace);
  if (host) {
    const std::string socket = (*host)->socket();
    return ChatPlace{.host = *std::move(host),
                     .connect = [socket] { return app::ApiClient::connect_to_socket(socket); }};
  }
  if (host.error().code != Code::store_locked || !app::find_owner(params.store)) {
    return std::unexpected(host.error());
  }
  return ChatPlace{{}, connect_to_owner};
}

int chat(const ChatOptions& options, const RunParams& params, const app::LoadedAgents* loaded,
         std::string plan_hash, Terminal& terminal) {
  auto place = place_of(options, params, loaded);
  if (!place) return terminal.fail_with(place.error());
  const auto client = place->connect();
  if (!client) return terminal.fail_with(client.error());
  Chat::Options setup{.agent = params.agent,
                      .job = options.job_id,
                      .plan_hash = std::move(plan_hash),
                      .store = params.store,
                      .connect = place->connect,
                      .take_warnings = {}};
  if (place->host) {
    setup.take_warnings = [&host = *place->host] { return host.take_warnings(); };
  }
  Chat chat(**client, std::move(setup), terminal);
  const int code = chat.run();
  if (chat.has_left() && !chat.job().empty()) {
    const bool is_lost = place->host && params.store.kind == app::StoreUrl::Kind::memory;
    terminal.note(is_lost ? "the job was lost with the memory store"
                          : fmt::format("to continue: {}",
                                        terminal.err()(Tint::bold, chat_text(options, params.store,
                                                                             chat.job()))));
  }
  return code;
}

int chat_command(const ChatOptions& options, Terminal& terminal) {
  if (app::is_code_file(options.file)) {
    const auto store = store_of(options);
    if (!store) return terminal.fail_with(store.error());
    if (options.agent.empty() && options.job_id.empty()) {
      return terminal.fail_with({Code::usage, "AGENT is missing"});
    }
    RunParams params;
    params.store = *store;
    params.file = options.file;
    params.agent = options.agent;
    return chat(options, params, nullptr, "", terminal);
  }
  auto loaded = load_valid_agents(options.file, {.policies = options.policies}, terminal);
  if (!loaded) return loaded.error();
  auto params = parse_run_params(options, loaded->file);
  if (!params) return terminal.fail_with(params.error());
  std::string plan_hash;
  if (!params->agent.empty()) {
    const agents::Agent& agent = loaded->file.agents.find(params->agent)->second;
    auto plan = engine::Plan::compile(agent.task_graph);
    if (!plan) return terminal.fail_with(plan.error());
    plan_hash = to_hex((*plan)->hash);
    const bool receives = std::ranges::any_of((*plan)->nodes, [](const engine::Node& node) {
      return (node.loop && node.loop->thread) || node.kind == engine::NodeKind::code ||
             node.kind == engine::NodeKind::wait;
    });
    if (!receives) {
      return terminal.fail_with(
          {Code::usage, fmt::format("agent \"{}\" answers once: set `thread: true` on its loop, or "
                                    "use aetheris run",
                                    params->agent)});
    }
  } else if (options.job_id.empty()) {
    return terminal.fail_with({Code::usage, "AGENT is missing"});
  }
  return chat(options, *params, &*loaded, std::move(plan_hash), terminal);
}

}  // namespace

extern const Command kChatCommand{.name = "chat",
                                  .group = Group::run,
                                  .target = Target::store_or_server,
                                  .summary = "talk with an agent whose job is a thread",
                                  .example = "aetheris chat examples/chat.yaml",
                                  .bind = bound_command<ChatOptions, chat_options, chat_command>};

}  // namespace ae::cli

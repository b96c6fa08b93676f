// mcp: serves the agents of a store as MCP tools on standard input and output.
//
// If another process owns the store, or AETHERIS_URL names a server, this process only forwards
// messages. Otherwise it owns the store and runs the jobs itself, until its input ends.
#include <fmt/core.h>

#include <chrono>
#include <cstdlib>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>

#include "api/mcp.h"
#include "api/problem.h"
#include "app/api_client.h"
#include "app/instance.h"
#include "app/stdio_server.h"
#include "async/boot_clock.h"
#include "cli/service.h"
#include "cli/shared.h"
#include "net/asio_loop.h"

namespace ae::cli {
namespace {

std::vector<Option> mcp_options(ServiceOptions& o) {
  return std::vector<Option>{
             policies_option(o.policies),
             {"FILE", "", &o.files, "the agents files (default: the agents of the store's server)"},
             {"--workers", "N", &o.workers, "concurrent jobs (default 256; 0 = none)"}} +
         service_options(o);
}

constexpr auto kOwnerWait = std::chrono::seconds(3);  // for an owner that is starting or stopping
constexpr auto kOwnerPoll = std::chrono::milliseconds(50);

api::ApiResponse response_of(Result<api::ApiResponse> answer) {
  if (answer) return *std::move(answer);
  return {.status = api::http_status(answer.error().code),
          .body = api::problem(answer.error()),
          .location = {},
          .text = {}};
}

// Forwards to a process that serves the store.
int serve_remote_store(app::ApiClient& client, const ServiceSettings& service_settings,
                       Terminal& terminal) {
  api::ApiRequest health;
  health.path = {"api", "health"};
  if (const auto health_answer = client.send(health); !health_answer)
    return terminal.fail_with(health_answer.error());
  net::AsioLoop& loop = client.loop();
  async::BootClock steady;
  api::Mcp mcp(
      loop, steady,
      [&client](const api::ApiRequest& request, async::Done<api::ApiResponse> done) {
        client.send_async(request,
                          [done = std::move(done)](Result<api::ApiResponse> answer) mutable {
                            done(response_of(std::move(answer)));
                          });
      },
      std::string(app::kVersion));
  bool over = false;
  const auto leave = [&] {
    over = true;
    loop.stop();
  };
  app::StdioServer stdio(loop, mcp,
                         {.by = cli_actor(),
                          .on_ended = [&](bool) { leave(); },
                          .grace = service_settings.grace,
                          .on_input_end = [&] { mcp.stop_waiting(); }});
  loop.on_signals([&](int) { leave(); });
  stdio.begin();
  while (!over) loop.run();
  return kDone;
}

// Serves as the owner of the store, or as one of the processes that share it.
int serve_own_store(std::unique_ptr<app::Instance> instance, Service& service,
                    const ServiceSettings& service_settings, Terminal& terminal) {
  service.attach(*instance);
  if (service_settings.loaded) {
    if (auto kept = instance->register_agents(); !kept) return terminal.fail_with(kept.error());
  }
  if (auto listens = instance->listen(); !listens) {
    terminal.warn(fmt::format("other commands cannot reach this process through the store: {}",
                              listens.error().message));
  }
  async::BootClock steady;
  api::Mcp mcp(
      instance->loop(), steady,
      [&instance](api::ApiRequest request, async::Done<api::ApiResponse> done) {
        instance->api().handle(std::move(request), std::move(done));
      },
      std::string(app::kVersion));
  app::StdioServer stdio(instance->loop(), mcp,
                         {.by = cli_actor(),
                          .on_ended = [&](bool) { service.stop(); },
                          .grace = service_settings.grace,
                          .on_input_end =
                              [&] {
                                mcp.stop_waiting();
                                instance->api().stop_waiting();
                              }});
  stdio.begin();
  return service.run();
}

int mcp_command(const ServiceOptions& options, Terminal& terminal) {
  const char* const url = std::getenv("AETHERIS_URL");
  const bool elsewhere = url != nullptr && *url != '\0';
  if (elsewhere && !options.files.empty()) {
    return terminal.fail_with(
        {Code::usage,
         "AETHERIS_URL names a server with its own agents: omit FILE, or unset AETHERIS_URL"});
  }
  const auto service_settings = parse_service_settings(options, terminal);
  if (!service_settings) return service_settings.error();
  if (elsewhere) {
    auto client = app::ApiClient::connect_to_server(url);
    if (!client) return terminal.fail_with(client.error());
    return serve_remote_store(**client, *service_settings, terminal);
  }
  ServiceOptions service_flags = options;  // clients keep the output of their servers
  if (options.log.empty() && !options.verbose) service_flags.quiet = true;
  Service service(terminal, service_flags, *service_settings);
  const auto retry_until = std::chrono::steady_clock::now() + kOwnerWait;
  while (true) {
    if (auto owner = app::find_owner(service_settings->store)) {
      if (service_settings->loaded) {
        terminal.note(
            fmt::format("another process owns this store; its agents are served, not those of {}",
                        options.files.front()));
      }
      return serve_remote_store(*owner, *service_settings, terminal);
    }
    app::InstanceOptions site_options = service.instance_options(options, *service_settings);
    if (service_settings->loaded) {
      site_options.create = true;
      site_options.read_agent = [&file = *service_settings->loaded](std::string_view name,
                                                                    std::string_view json,
                                                                    agents::Agent& out) {
        return app::read_agent(file, name, json, out);
      };
    }
    auto opened = app::Instance::open(std::move(site_options));
    if (opened) return serve_own_store(*std::move(opened), service, *service_settings, terminal);
    const bool may_retry =
        opened.error().code == Code::store_locked && std::chrono::steady_clock::now() < retry_until;
    if (!may_retry) return terminal.fail_with(opened.error());
    std::this_thread::sleep_for(kOwnerPoll);
  }
}

}  // namespace

extern const Command kMcpCommand{.name = "mcp",
                                 .group = Group::run,
                                 .target = Target::store_or_server,
                                 .summary = "serve agents as MCP tools on stdio",
                                 .example = "aetheris mcp agents.yaml",
                                 .bind = bound_command<ServiceOptions, mcp_options, mcp_command>};

}  // namespace ae::cli

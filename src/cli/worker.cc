// worker: claims and runs jobs of a shared store.
#include <fmt/core.h>

#include <optional>
#include <string>
#include <utility>

#include "app/instance.h"
#include "cli/service.h"
#include "cli/shared.h"

namespace ae::cli {
namespace {

struct WorkerOptions : ServiceOptions {
  std::string listen;  // "" = nowhere
};

std::vector<Option> worker_options(WorkerOptions& o) {
  return std::vector<Option>{
             policies_option(o.policies),
             {"FILE", "", &o.files, "the agents files", kRequired},
             {"--listen", "ADDRESS:PORT", &o.listen,
              "ADDRESS:PORT of this machine for /api/health, /api/ready and /metrics (default: "
              "nowhere)"},
             {"--workers", "N", &o.workers, "concurrent jobs (default 256)"},
             wait_store_option(o)} +
         service_options(o);
}

Status may_share(const app::StoreUrl& store) {
  using Kind = app::StoreUrl::Kind;
  if (store.kind == Kind::postgres) return {};
  if (store.kind == Kind::memory) {
    return fail(Code::usage, "a memory: store cannot be shared; use --store postgres://…");
  }
  return fail(Code::usage,
              "a SQLite store has one owner ({}): use `aetheris serve` or "
              "`aetheris run`, or --store postgres://…",
              store.path);
}

Value texts(const std::vector<std::string>& from) {
  return Value::array(std::vector<Value>(from.begin(), from.end()));
}

int worker_command(const WorkerOptions& options, Terminal& terminal) {
  const auto store = store_of(options);
  if (!store) return terminal.fail_with(store.error());
  if (auto shares = may_share(*store); !shares) return terminal.fail_with(shares.error());
  std::optional<Address> address;
  if (!options.listen.empty()) {
    auto parsed = address_of(options.listen);
    if (!parsed) return terminal.fail_with(parsed.error());
    address = *std::move(parsed);
  }
  const auto service_settings = parse_service_settings(options, terminal);
  if (!service_settings) return service_settings.error();
  if (service_settings->workers == 0) {
    return terminal.fail_with({Code::usage, "--workers must be at least 1"});
  }
  Service service(terminal, options, *service_settings);
  app::InstanceOptions wanted = service.instance_options(options, *service_settings);
  wanted.health_only = true;
  wanted.read_agent = [&file = *service_settings->loaded](
                          std::string_view name, std::string_view json, agents::Agent& out) {
    return app::read_agent(file, name, json, out);
  };
  const std::vector<std::string> agents = wanted.runtime.agents;
  auto opened = service.open(wanted);
  if (!opened) return terminal.fail_with(opened.error());
  service.attach(**opened);
  if (auto follows = (*opened)->follow_agents(); !follows) {
    return terminal.fail_with(follows.error());
  }
  std::string url;
  if (address) {
    const auto port =
        (*opened)->serve({.address = address->host, .port = address->port, .local_only = true});
    if (!port) return terminal.fail_with(port.error());
    url = fmt::format("http://{}:{}", address->host, *port);
  }
  if (terminal.json()) {
    terminal.print_json(Value::object({{"agents", texts(agents)},
                                       {"capabilities", texts(options.capabilities)},
                                       {"listening", url.empty() ? Value() : Value(url)},
                                       {"store", store->text()},
                                       {"worker", worker_name()},
                                       {"workers", std::uint64_t{service_settings->workers}}}));
  } else {
    terminal.print(fmt::format("worker {} uses store {}{}\n", safe(worker_name()),
                               safe(store->text()),
                               url.empty() ? "" : fmt::format(", health on {}", url)));
  }
  if (!terminal.flush()) return terminal.fail_with({Code::unavailable, "stdout is closed"});
  return service.run();
}

}  // namespace

extern const Command kWorkerCommand{
    .name = "worker",
    .group = Group::run,
    .target = Target::served_store,
    .summary = "run jobs of a shared store, without an HTTP API",
    .example = "aetheris worker agents.yaml --store postgres://me@db/aetheris",
    .bind = bound_command<WorkerOptions, worker_options, worker_command>};

}  // namespace ae::cli

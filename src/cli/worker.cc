// worker: claims and runs jobs of a shared store.
#include <optional>
#include <string>
#include <utility>

#include "app/instance.h"
#include "cli/commands.h"
#include "cli/service.h"

namespace ae::cli {
namespace {

Status may_share(const app::StoreUrl& store) {
  using Kind = app::StoreUrl::Kind;
  if (store.kind == Kind::postgres) return {};
  if (store.kind == Kind::memory) {
    return fail(Code::usage, "a memory: store cannot be shared; use --store postgres://…");
  }
  return fail(Code::usage,
              "a SQLite store has one owner (" + store.path +
                  "): use `aetheris serve` or `aetheris run`, or --store postgres://…");
}

Value texts(const std::vector<std::string>& from) {
  return Value::array(std::vector<Value>(from.begin(), from.end()));
}

}  // namespace

int worker_command(const Options& options, Terminal& terminal) {
  const auto store = store_of(options);
  if (!store) return terminal.fail_with(store.error());
  if (auto shares = may_share(*store); !shares) return terminal.fail_with(shares.error());
  std::optional<Address> address;
  if (!options.worker_listen.empty()) {
    auto parsed = address_of(options.worker_listen);
    if (!parsed) return terminal.fail_with(parsed.error());
    address = *std::move(parsed);
  }
  const auto service_options = parse_service_options(options, terminal);
  if (!service_options) return service_options.error();
  if (service_options->workers == 0) {
    return terminal.fail_with({Code::usage, "--workers must be at least 1"});
  }
  Service service(terminal, options, *service_options);
  app::InstanceOptions wanted = service.instance_options(options, *service_options);
  wanted.health_only = true;
  wanted.read_agent = [&file = *service_options->loaded](
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
    url = "http://" + address->host + ":" + std::to_string(*port);
  }
  if (terminal.json()) {
    terminal.print_json(Value::object({{"agents", texts(agents)},
                                       {"capabilities", texts(options.capabilities)},
                                       {"listening", url.empty() ? Value() : Value(url)},
                                       {"store", store->text()},
                                       {"worker", worker_name()},
                                       {"workers", std::uint64_t{service_options->workers}}}));
  } else {
    terminal.print("worker " + safe(worker_name()) + " uses store " + safe(store->text()) +
                   (url.empty() ? "" : ", health on " + url) + "\n");
  }
  if (!terminal.flush()) return terminal.fail_with({Code::unavailable, "stdout is closed"});
  return service.run();
}

}  // namespace ae::cli

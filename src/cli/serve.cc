// serve: serves the Api and runs jobs until it is stopped.
#include <fmt/core.h>

#include <charconv>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "agents/agents_file.h"
#include "agents/worker_definitions.h"
#include "app/instance.h"
#include "app/key_file.h"
#include "app/reloader.h"
#include "base/counted.h"
#include "cli/service.h"
#include "cli/shared.h"
#include "net/tls_identity.h"

namespace ae::cli {
namespace {

struct ServeOptions : ServiceOptions {
  std::string listen = "127.0.0.1:7070", tls_cert, tls_key, rate;
  bool watch = false, insecure_http = false;
};

std::vector<Option> serve_options(ServeOptions& o) {
  return std::vector<Option>{
             policies_option(o.policies),
             {"--watch", "", &o.watch,
              "reload the agents files when they are edited; running jobs keep their plan"},
             {"FILE", "", &o.files, "the agents files; without one no job runs here"},
             {"--listen", "ADDRESS:PORT", &o.listen, "ADDRESS:PORT (default 127.0.0.1:7070)"},
             {"--workers", "N", &o.workers, "concurrent jobs (default 256; 0 = none)"},
             {"--tls-cert", "FILE", &o.tls_cert,
              "serve https: the certificate chain (PEM); reloaded on SIGHUP"},
             {"--tls-key", "FILE", &o.tls_key,
              "the certificate's private key (PEM, not world-readable)"},
             {"--rate", "N", &o.rate, "requests per second per key (default 200; 0 = no limit)"},
             {"--insecure-http", "", &o.insecure_http,
              "allow plain HTTP on a public address (a proxy terminates TLS)"},
             wait_store_option(o)} +
         service_options(o);
}

constexpr unsigned kRateMax = 1'000'000;

// nullopt: not given.
Result<std::optional<double>> rate_of(const std::string& text) {
  if (text.empty()) return std::nullopt;
  unsigned rate = 0;
  const char* const end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, rate);
  if (error != std::errc() || stop != end || rate > kRateMax) {
    return fail(
        Code::usage,
        "--rate must be a number of requests per second from 0 (no limit) to {}, not \"{}\"",
        kRateMax, text.substr(0, 80));
  }
  return rate;
}

// Reloads a renewed certificate; if it is invalid, warns and keeps the current one.
void reload_certificate(net::TlsIdentity& tls, const app::TlsFiles& files, Terminal& terminal) {
  auto read = app::read_tls_identity(files);
  if (!read) {
    return terminal.warn(
        fmt::format("the certificate cannot be reloaded: {}", read.error().message));
  }
  tls.replace(std::move(**read));
  terminal.note("certificate reloaded");
}

Value files_json(const std::vector<std::string>& files) {
  return Value::array(std::vector<Value>(files.begin(), files.end()));
}

// The result of a reload.
ServiceLog::Line reload_line(const app::Reloader::Report& report) {
  std::string files;
  for (const std::string& file : report.files) files += (files.empty() ? "" : ", ") + file;
  if (files.empty()) files = "the agents of workers";
  ServiceLog::Line line{.more = {{"files", files_json(report.files)}}};
  if (!report.diagnostics.empty() || report.error) {
    line.level = ServiceLog::Level::error;
    line.event = "reload_failed";
    const std::size_t count = report.diagnostics.size();
    line.message = report.error ? report.error->message
                                : fmt::format("{} in the file", counted(count, "fault"));
    line.code =
        report.error ? code_name(report.error->code) : code_name(report.diagnostics[0].code);
    if (count > 0)
      line.more.emplace_back("faults", agents::diagnostics_json(report.diagnostics)["faults"]);
    const std::string faults =
        count > 0 ? agents::diagnostics_text(report.diagnostics) : report.error->message + "\n";
    line.words =
        fmt::format("{}error: {} not reloaded; the last valid version stays in use", faults, files);
    return line;
  }
  line.event = "reloaded";
  std::vector<Value> changes;
  for (const auto& one : report.changes) {
    changes.push_back(Value::object(
        {{"from", one.from == 0 ? Value() : Value(one.from)}, {"name", one.name}, {"to", one.to}}));
    line.message +=
        fmt::format("{}agent {} version {}{}", line.message.empty() ? "" : ", ", one.name,
                    one.from == 0 ? "" : fmt::format("{} → ", one.from), one.to);
  }
  if (changes.empty()) line.message = "no agent changed";
  line.words = fmt::format("reloaded {}: {}", files, line.message);
  line.more.emplace_back("agents", Value::array(std::move(changes)));
  return line;
}

// Prints what the server runs, who may connect, and its store.
void print_start(const ServiceSettings& service_settings, app::Instance& instance,
                 Terminal& terminal) {
  std::vector<Value> names;
  if (service_settings.loaded && service_settings.workers > 0) {
    for (const auto& [name, agent] : service_settings.loaded->file.agents) names.emplace_back(name);
  }
  const std::string agents = names_text(Value::array(std::move(names)));
  terminal.note(fmt::format("store:    {}", safe(instance.store_name())));
  terminal.note(fmt::format("agents:   {}", agents.empty() ? "none: it runs no jobs" : agents));
  terminal.note(instance.needs_keys()
                    ? "API keys: required"
                    : "API keys: not required (`aetheris keys create` makes the first one)");
}

// The agents and tools of workers, and the reload after an edit of a file or of these.
class ServedAgents {
 public:
  ServedAgents(const ServeOptions& options, const app::LoadedAgents& loaded)
      : options_(options), loaded_(loaded) {}

  // A worker offers these; the faults.
  std::vector<agents::Diagnostic> on_worker(const routines::Definitions& offered) {
    std::vector<Value> agents, tools;
    for (const auto& agent : offered.agents) agents.push_back(agent.definition);
    for (const auto& tool : offered.tools) tools.push_back(tool.definition);
    const auto is_in_file = [this](std::string_view name) {
      return loaded_.file.agents.contains(name) || loaded_.file.tools.contains(name);
    };
    auto faults = of_workers_.add(agents, tools, is_in_file,
                                  [this](const std::string& code) { return check(code); });
    if (reloader_) reloader_->reload_soon();
    return faults;
  }

  // REQUIRES: `end` is called before the instance is destroyed.
  void begin(app::Instance& instance, Service& service) {
    reloader_.emplace(instance,
                      app::Reloader::Options{.files = options_.files,
                                             .policies = options_.policies,
                                             .is_watching = options_.watch,
                                             .code = [this] { return of_workers_.code(); }},
                      loaded_, [&service](const app::Reloader::Report& report) {
                        service.announce(reload_line(report));
                        if (report.error || !report.diagnostics.empty()) return;
                        for (const std::string& warning : report.warnings) service.warn(warning);
                      });
    reloader_->begin();
    if (!of_workers_.code().empty()) reloader_->reload_soon();
  }

  void end() { reloader_.reset(); }

 private:
  // The faults of the first file with this code.
  std::vector<agents::Diagnostic> check(const std::string& code) const {
    const auto loaded = app::load_agents(
        options_.files.front(),
        {.servers = app::ServerListing::never, .policies = options_.policies, .code = code});
    if (loaded) return loaded->diagnostics;
    return {{.code = loaded.error().code, .message = loaded.error().message}};
  }

  const ServeOptions& options_;
  const app::LoadedAgents& loaded_;
  agents::WorkerDefinitions of_workers_;
  std::optional<app::Reloader> reloader_;
};

int serve_command(const ServeOptions& options, Terminal& terminal) {
  const auto address = address_of(options.listen);
  if (!address) return terminal.fail_with(address.error());
  const auto rate = rate_of(options.rate);
  if (!rate) return terminal.fail_with(rate.error());
  if (options.tls_cert.empty() != options.tls_key.empty()) {
    return terminal.fail_with({Code::usage, "--tls-cert and --tls-key must be used together"});
  }
  const app::TlsFiles tls_files{options.tls_cert, options.tls_key};
  std::shared_ptr<net::TlsIdentity> tls;
  if (!options.tls_cert.empty()) {
    auto read = app::read_tls_identity(tls_files);
    if (!read) return terminal.fail_with(read.error());
    tls = *std::move(read);
  }
  if (options.watch && options.files.empty()) {
    return terminal.fail_with({Code::usage, "--watch needs an agents FILE to watch"});
  }
  const auto service_settings = parse_service_settings(options, terminal);
  if (!service_settings) return service_settings.error();
  Service service(terminal, options, *service_settings);
  app::InstanceOptions site_options = service.instance_options(options, *service_settings);
  site_options.tls_key = options.tls_key;
  if (service_settings->loaded) {
    site_options.create = true;  // to register the agents, even if no jobs run here
    site_options.read_agent = [&file = *service_settings->loaded](std::string_view name,
                                                                  std::string_view json,
                                                                  agents::Agent& out) {
      return app::read_agent(file, name, json, out);
    };
  }
  std::optional<ServedAgents> served;
  if (service_settings->loaded) served.emplace(options, *service_settings->loaded);
  const bool runs = site_options.mode == app::InstanceOptions::Mode::run;
  if (runs) {
    site_options.on_worker = [&served](const routines::Definitions& offered) {
      return served->on_worker(offered);
    };
  }
  auto opened = service.open(site_options);
  if (!opened) return terminal.fail_with(opened.error());
  service.attach(**opened);
  if (auto listens = (*opened)->listen(); !listens) {
    terminal.warn(fmt::format("other commands cannot reach this process through the store: {}",
                              listens.error().message));
  }
  const auto port = (*opened)->serve({.address = address->host,
                                      .port = address->port,
                                      .tls = tls,
                                      .rate = *rate,
                                      .insecure_http = options.insecure_http});
  if (!port) return terminal.fail_with(port.error());
  if (tls) {
    (*opened)->loop().on_hangup([&] { reload_certificate(*tls, tls_files, terminal); });
  }
  const std::string url = fmt::format("{}://{}:{}", tls ? "https" : "http", address->host, *port);
  if (terminal.json()) {
    terminal.print_json(
        Value::object({{"listening", url}, {"store", service_settings->store.text()}}));
  } else {
    terminal.print(fmt::format("listening on {}\n", url));
    if (options.log.empty() && !options.quiet) print_start(*service_settings, **opened, terminal);
  }
  if ((*opened)->has_no_live_key()) {
    terminal.warn(
        "all API keys have expired or are revoked; create one with `aetheris keys create`");
  }
  if (!terminal.flush()) return terminal.fail_with({Code::unavailable, "stdout is closed"});
  if (options.watch || runs) served->begin(**opened, service);
  const int code = service.run();
  if (served) served->end();
  return code;
}

}  // namespace

extern const Command kServeCommand{
    .name = "serve",
    .group = Group::run,
    .target = Target::served_store,
    .summary = "run agents as a service: an HTTP API and workers",
    .example = "aetheris serve agents.yaml --listen 127.0.0.1:7070",
    .bind = bound_command<ServeOptions, serve_options, serve_command>};

}  // namespace ae::cli

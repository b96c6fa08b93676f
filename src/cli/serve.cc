// serve: serves the Api and runs jobs until it is stopped.
#include <fmt/core.h>

#include <charconv>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "agents/agents_file.h"
#include "app/key_file.h"
#include "base/counted.h"
#include "cli/serve.h"
#include "cli/served_agents.h"
#include "cli/shared.h"
#include "net/tls_identity.h"

namespace ae::cli {
namespace {

std::vector<Option> serve_options(ServeOptions& o) {
  return std::vector<Option>{
             policies_option(o.policies),
             {"--watch", "", &o.watch,
              "reload the agents files when they are edited; running jobs keep their plan"},
             {"FILE", "", &o.files,
              "the agents files; without one the agents are those of workers"},
             {"--listen", "ADDRESS:PORT", &o.listen, "ADDRESS:PORT (default 127.0.0.1:7070)"},
             {"--workers", "N", &o.workers, "concurrent jobs (default 256; 0 = none)"},
             {"--tls-cert", "FILE", &o.tls_cert,
              "serve https: the certificate chain (PEM); reloaded on SIGHUP"},
             {"--tls-key", "FILE", &o.tls_key,
              "the certificate's private key (PEM, not world-readable)"},
             {"--rate", "N", &o.rate, "requests per second per key (default 200; 0 = no limit)"},
             {"--code-versions", "POLICY", &o.code_versions,
              "versions.policy of all code, instead of the agents' own: route, warn, strict"},
             {"--insecure-http", "", &o.insecure_http,
              "allow plain HTTP on a public address (a proxy terminates TLS)"},
             wait_store_option(o)} +
         service_options(o);
}

constexpr unsigned kRateMax = 1'000'000;

// nullopt: not given.
Result<std::optional<engine::VersionPolicy>> policy_of(const std::string& text) {
  using Policy = engine::VersionPolicy;
  if (text.empty()) return std::nullopt;
  if (text == "route") return Policy::route;
  if (text == "warn") return Policy::warn;
  if (text == "strict") return Policy::strict;
  return fail(Code::usage, "--code-versions must be route, warn or strict, not \"{}\"", text);
}

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

void print_reload(const app::Reloader::Report& report, Service& service) {
  service.announce(reload_line(report));
  if (report.error || !report.diagnostics.empty()) return;
  for (const std::string& warning : report.warnings) service.warn(warning);
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
  const bool accepts_workers = service_settings.loaded && service_settings.workers > 0;
  terminal.note(fmt::format("agents:   {}", !agents.empty()   ? agents
                                            : accepts_workers ? "none yet: workers offer them"
                                                              : "none: it runs no jobs"));
  terminal.note(instance.needs_keys()
                    ? "API keys: required"
                    : "API keys: not required (`aetheris keys create` makes the first one)");
}

void print_listening(const std::string& url, const ServeOptions& options,
                     const ServiceSettings& service_settings, app::Instance& instance,
                     ServerPart* part, Terminal& terminal) {
  if (terminal.json()) {
    return terminal.print_json(
        Value::object({{"listening", url}, {"store", service_settings.store.text()}}));
  }
  terminal.print(fmt::format("listening on {}\n", url));
  if (part != nullptr) return part->print_start(instance, url);
  if (options.log.empty() && !options.quiet) print_start(service_settings, instance, terminal);
}

ServedAgents::Callbacks callbacks_of(Service& service, ServerPart* part) {
  return {.on_worker =
              [&service, part](const routines::Definitions& offered, const auto& faults,
                               bool is_in_use) {
                if (part != nullptr) return part->on_worker(offered, faults, is_in_use);
                for (const std::string& line : fault_lines(faults, offered.worker)) {
                  service.warn(line);
                }
              },
          .on_reload =
              [&service, part](const app::Reloader::Report& report) {
                if (part == nullptr || !part->on_reload(report)) print_reload(report, service);
              }};
}

// nullptr: without encryption.
Result<std::shared_ptr<net::TlsIdentity>> tls_of(const app::TlsFiles& files) {
  if (files.certificate.empty() != files.key.empty()) {
    return fail(Code::usage, "--tls-cert and --tls-key must be used together");
  }
  if (files.certificate.empty()) return nullptr;
  return app::read_tls_identity(files);
}

}  // namespace

int run_server(const ServeOptions& options, Terminal& terminal, ServerPart* part) {
  const auto address = address_of(options.listen);
  if (!address) return terminal.fail_with(address.error());
  const auto rate = rate_of(options.rate);
  if (!rate) return terminal.fail_with(rate.error());
  const auto code_versions = policy_of(options.code_versions);
  if (!code_versions) return terminal.fail_with(code_versions.error());
  const app::TlsFiles tls_files{options.tls_cert, options.tls_key};
  const auto read_tls = tls_of(tls_files);
  if (!read_tls) return terminal.fail_with(read_tls.error());
  const std::shared_ptr<net::TlsIdentity>& tls = *read_tls;
  if (options.watch && options.files.empty()) {
    return terminal.fail_with({Code::usage, "--watch needs an agents FILE to watch"});
  }
  const auto service_settings = parse_service_settings(options, terminal);
  if (!service_settings) return service_settings.error();
  Service service(terminal, options, *service_settings);
  app::InstanceOptions site_options = service.instance_options(options, *service_settings);
  site_options.tls_key = options.tls_key;
  site_options.code_versions = *code_versions;
  if (service_settings->loaded) {
    site_options.create = true;  // to register the agents, even if no jobs run here
    site_options.read_agent = [&file = *service_settings->loaded](std::string_view name,
                                                                  std::string_view json,
                                                                  agents::Agent& out) {
      return app::read_agent(file, name, json, out);
    };
  }
  if (part != nullptr) {
    service.watch_releases([part](const JobId& job) { part->on_released(job); });
  }
  std::optional<ServedAgents> served;
  if (service_settings->loaded) {
    served.emplace(options, *service_settings->loaded, callbacks_of(service, part));
  }
  const bool runs = site_options.mode == app::InstanceOptions::Mode::run;
  if (runs) {
    site_options.on_worker = [&served](const routines::Definitions& offered) {
      return served->accept(offered);
    };
  }
  auto opened = service.open(site_options);
  if (!opened) return terminal.fail_with(opened.error());
  service.attach(**opened);
  if (served) served->attach(**opened);
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
  print_listening(fmt::format("{}://{}:{}", tls ? "https" : "http", address->host, *port), options,
                  *service_settings, **opened, part, terminal);
  if ((*opened)->has_no_live_key()) {
    terminal.warn(
        "all API keys have expired or are revoked; create one with `aetheris keys create`");
  }
  if (!terminal.flush()) return terminal.fail_with({Code::unavailable, "stdout is closed"});
  if (options.watch || runs) served->begin(**opened, options.watch);
  if (part != nullptr) {
    if (auto begun = part->begin(**opened); !begun) {
      if (served) served->end();
      return terminal.fail_with(begun.error());
    }
  }
  const int code = service.run();
  if (part != nullptr) part->end();
  if (served) served->end();
  return code;
}

namespace {

int serve_command(const ServeOptions& options, Terminal& terminal) {
  return run_server(options, terminal, nullptr);
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

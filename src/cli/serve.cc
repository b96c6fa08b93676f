// serve: the Api and its workers as a process of its own, until it is told to stop.
#include <charconv>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "agents/agents_file.h"
#include "app/key_file.h"
#include "app/reloader.h"
#include "app/site.h"
#include "cli/commands.h"
#include "cli/service.h"
#include "core/counted.h"
#include "net/tls_identity.h"

namespace ae::cli {
namespace {

constexpr unsigned kRateMax = 1'000'000;

// nullopt: it was not said.
Result<std::optional<double>> rate_of(const std::string& text) {
  if (text.empty()) return std::nullopt;
  unsigned rate = 0;
  const char* const end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, rate);
  if (error != std::errc() || stop != end || rate > kRateMax) {
    return fail(Code::usage,
                "--rate must be a number of requests per second from 0 (no limit) to " +
                    std::to_string(kRateMax) + ", not \"" + text.substr(0, 80) + "\"");
  }
  return rate;
}

// A certificate runs out while a server runs; what is wrong with the next one is said, and this one stays.
void renew(net::TlsIdentity& tls, const app::TlsFiles& files, Terminal& terminal) {
  auto read = app::read_tls_identity(files);
  if (!read) {
    return terminal.warn("the certificate cannot be reloaded: " + read.error().message);
  }
  tls.become(std::move(**read));
  terminal.note("certificate reloaded");
}

Value files_json(const std::vector<std::string>& files) {
  return Value::array(std::vector<Value>(files.begin(), files.end()));
}

// What came of an edit.
Journal::Line line_of(const app::Reloader::Report& report) {
  std::string files;
  for (const std::string& file : report.files) files += (files.empty() ? "" : ", ") + file;
  Journal::Line line{.more = {{"files", files_json(report.files)}}};
  if (!report.faults.empty() || report.error) {
    line.level = Journal::Level::error;
    line.event = "reload_failed";
    const std::size_t count = report.faults.size();
    line.message = report.error ? report.error->message : counted(count, "fault") + " in the file";
    line.code = report.error ? code_name(report.error->code) : code_name(report.faults[0].code);
    if (count > 0) line.more.emplace_back("faults", agents::faults_json(report.faults)["faults"]);
    line.words = (count > 0 ? agents::faults_text(report.faults) : report.error->message + "\n") +
                 "error: " + files + " not reloaded; the last valid version stays in use";
    return line;
  }
  line.event = "reloaded";
  std::vector<Value> changes;
  for (const auto& one : report.changes) {
    changes.push_back(Value::object(
        {{"from", one.from == 0 ? Value() : Value(one.from)}, {"name", one.name}, {"to", one.to}}));
    line.message += (line.message.empty() ? "" : ", ") + ("agent " + one.name) + " version " +
                    (one.from == 0 ? "" : std::to_string(one.from) + " → ") +
                    std::to_string(one.to);
  }
  if (changes.empty()) line.message = "no agent changed";
  line.words = "reloaded " + files + ": " + line.message;
  line.more.emplace_back("agents", Value::array(std::move(changes)));
  return line;
}

// What the server runs, for whom, and where it keeps its jobs.
void say_start(const ServiceWish& wish, app::Site& site, Terminal& terminal) {
  std::vector<Value> names;
  if (wish.loaded && wish.workers > 0) {
    for (const auto& [name, agent] : wish.loaded->file.agents) names.emplace_back(name);
  }
  const std::string agents = names_text(Value::array(std::move(names)));
  terminal.note("store:    " + safe(site.store_name()));
  terminal.note("agents:   " + (agents.empty() ? "none: it runs no jobs" : agents));
  terminal.note(site.needs_keys()
                    ? "API keys: required"
                    : "API keys: not required (`aetheris keys create` makes the first one)");
}

}  // namespace

int serve_command(const Options& options, Terminal& terminal) {
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
  const auto wish = service_wish(options, terminal);
  if (!wish) return wish.error();
  Service service(terminal, options, *wish);
  app::SiteOptions site = service.site(options, *wish);
  if (wish->loaded) {
    site.create = true;  // the agents are registered, also where nothing is run
    site.read_agent = [&file = *wish->loaded](std::string_view name, std::string_view json,
                                              agents::Agent& out) {
      return app::read_agent(file, name, json, out);
    };
  }
  auto opened = service.open(site);
  if (!opened) return terminal.fail_with(opened.error());
  service.attach(**opened);
  if (auto listens = (*opened)->listen(); !listens) {
    terminal.warn("other commands cannot reach this process through the store: " +
                  listens.error().message);
  }
  const auto port = (*opened)->serve({.address = address->host,
                                      .port = address->port,
                                      .tls = tls,
                                      .rate = *rate,
                                      .insecure_http = options.insecure_http});
  if (!port) return terminal.fail_with(port.error());
  if (tls) {
    (*opened)->loop().on_hangup([&] { renew(*tls, tls_files, terminal); });
  }
  const std::string url =
      (tls ? "https://" : "http://") + address->host + ":" + std::to_string(*port);
  if (terminal.json()) {
    terminal.print_json(Value::object({{"listening", url}, {"store", wish->store.text()}}));
  } else {
    terminal.print("listening on " + url + "\n");
    if (options.log.empty() && !options.quiet) say_start(*wish, **opened, terminal);
  }
  if ((*opened)->keys_all_ended()) {
    terminal.warn(
        "all API keys have expired or are revoked; create one with `aetheris keys create`");
  }
  if (!terminal.flush()) return terminal.fail_with({Code::unavailable, "stdout is closed"});
  std::optional<app::Reloader> reloader;
  if (options.watch) {
    reloader.emplace(**opened, app::Reloader::Watched{options.files, options.policies},
                     *wish->loaded, [&service](const app::Reloader::Report& report) {
                       service.tell(line_of(report));
                       if (report.error || !report.faults.empty()) return;
                       for (const std::string& warning : report.warnings) service.warn(warning);
                     });
    reloader->begin();
  }
  return service.run();
}

}  // namespace ae::cli

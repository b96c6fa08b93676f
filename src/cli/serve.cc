// serve: the Api and its workers as a process of its own, until it is told to stop.
#include <charconv>
#include <cstdlib>
#include <optional>
#include <utility>

#include "app/key_file.h"
#include "app/site.h"
#include "cli/commands.h"
#include "core/json.h"

namespace ae::cli {
namespace {

constexpr std::size_t kWorkersMax = 100'000;

struct Address {
  std::string host;
  std::uint16_t port = 0;
};

// HOST:PORT, [::1]:PORT, or a port alone.
Result<Address> address_of(const std::string& text) {
  const std::size_t colon = text.rfind(':');
  const std::string host = colon == text.npos ? "127.0.0.1" : text.substr(0, colon);
  const std::string port = colon == text.npos ? text : text.substr(colon + 1);
  Address address{.host = host.empty() ? "127.0.0.1" : host};
  const char* const end = port.data() + port.size();
  const auto [stop, error] = std::from_chars(port.data(), end, address.port);
  if (error != std::errc() || stop != end || port.empty()) {
    return fail(Code::usage, "--listen takes ADDRESS:PORT, as 127.0.0.1:7070, not \"" +
                                 text.substr(0, 80) + "\"");
  }
  return address;
}

Result<std::size_t> workers_of(const std::string& text) {
  if (text.empty()) return runtime::RuntimeOptions().held_max;
  std::size_t workers = 0;
  const char* const end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, workers);
  if (error != std::errc() || stop != end || workers > kWorkersMax) {
    return fail(Code::usage, "--workers is a number of jobs from 0 to " +
                                 std::to_string(kWorkersMax) + ", not \"" + text.substr(0, 80) +
                                 "\"");
  }
  return workers;
}

constexpr unsigned kRateMax = 1'000'000;

// nullopt: it was not said.
Result<std::optional<double>> rate_of(const std::string& text) {
  if (text.empty()) return std::nullopt;
  unsigned rate = 0;
  const char* const end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, rate);
  if (error != std::errc() || stop != end || rate > kRateMax) {
    return fail(Code::usage, "--rate is a number of requests a second from 0 (no limit) to " +
                                 std::to_string(kRateMax) + ", not \"" + text.substr(0, 80) + "\"");
  }
  return rate;
}

class Service final : public runtime::RuntimeObserver {
 public:
  Service(Terminal& terminal, bool verbose, Duration grace)
      : terminal_(terminal), verbose_(verbose), grace_(grace) {}

  // REQUIRES: the site listens. Until a signal ends it, or its store does.
  int run(app::Site& site) {
    site_ = &site;
    site.loop().on_signals([this](int signal) { interrupted(signal); });
    site.runtime().start();
    while (!over_) site.loop().run();
    return stopped_ ? terminal_.fail_with(*stopped_) : kDone;
  }

 private:
  void interrupted(int signal) {
    if (std::exchange(stopping_, true)) {
      terminal_.note("stopped at once; jobs under way are recovered by the next process");
      std::_Exit(128 + signal);
    }
    terminal_.note("stopping; requests and calls in flight have " + to_text(grace_) +
                   " (once more: stop now)");
    left_ = 2;
    site_->stop_serving(grace_, [this] { gone(); });
    site_->runtime().stop(grace_, [this] { gone(); });
  }
  void gone() {
    if (--left_ > 0) return;
    over_ = true;
    site_->loop().stop();
  }

  void on_events(const JobId& job, const std::vector<Event>& events) override {
    if (!verbose_) return;
    for (const Event& event : events) {
      const std::string_view type = event_name(event);
      if (type == "job_created" || type == "job_completed" || type == "job_failed" ||
          type == "job_cancelled" || type == "job_parked") {
        terminal_.note(to_text(event.created_at) + " job " + safe(job.text) + " " +
                       std::string(type.substr(4)));
      }
    }
  }
  void on_released(const JobId& job, const std::optional<Error>& problem) override {
    if (problem) terminal_.warn("job " + job.text + ": " + problem->message);
  }
  void on_warning(const JobId& job, const std::string& what) override {
    terminal_.warn(job.empty() ? what : "job " + job.text + ": " + what);
  }
  void on_store_stopped(const Error& error) override {
    stopped_ = error;
    over_ = true;
    site_->loop().stop();
  }

  Terminal& terminal_;
  const bool verbose_;
  const Duration grace_;
  app::Site* site_ = nullptr;
  bool stopping_ = false, over_ = false;
  int left_ = 0;  // that must have stopped before we leave
  std::optional<Error> stopped_;
};

// A certificate runs out while a server runs; what is wrong with the next one is said, and this one stays.
void renew(net::TlsIdentity& tls, const app::TlsFiles& files, Terminal& terminal) {
  auto read = app::read_tls_identity(files);
  if (!read) {
    return terminal.warn("the certificate is not renewed: " + read.error().message);
  }
  tls.become(std::move(**read));
  terminal.note("the certificate was read anew");
}

}  // namespace

int serve_command(const Options& options, Terminal& terminal) {
  const auto store = store_of(options);
  if (!store) return terminal.fail_with(store.error());
  const auto address = address_of(options.listen);
  if (!address) return terminal.fail_with(address.error());
  const auto workers = workers_of(options.workers);
  if (!workers) return terminal.fail_with(workers.error());
  const auto rate = rate_of(options.rate);
  if (!rate) return terminal.fail_with(rate.error());
  const auto limits = queue_limits(options);
  if (!limits) return terminal.fail_with(limits.error());
  const auto grace = duration_from_text(options.grace);
  if (!grace) return terminal.fail_with(Error(grace.error()).in("--grace"));
  if (options.files.size() > 1) {
    return terminal.fail_with({Code::unsupported,
                               "one agents file is served by one process in this version; put "
                               "the agents into one file"});
  }
  if (options.tls_cert.empty() != options.tls_key.empty()) {
    return terminal.fail_with({Code::usage, "--tls-cert and --tls-key go together"});
  }
  const app::TlsFiles tls_files{options.tls_cert, options.tls_key};
  std::shared_ptr<net::TlsIdentity> tls;
  if (!options.tls_cert.empty()) {
    auto read = app::read_tls_identity(tls_files);
    if (!read) return terminal.fail_with(read.error());
    tls = *std::move(read);
  }
  std::optional<app::LoadedAgents> loaded;
  if (!options.files.empty()) {
    auto read = load_sound(options.files.front(), terminal);
    if (!read) return read.error();
    loaded = *std::move(read);
  }
  const bool runs = loaded && *workers > 0;
  Service service(terminal, options.verbose, *grace);
  app::SiteOptions site{.store = *store};
  site.mode = runs ? app::SiteOptions::Mode::run : app::SiteOptions::Mode::write;
  site.observer = &service;
  site.signing_key = options.signing_key;
  site.runtime.worker = worker_name();
  site.runtime.held_max = *workers;
  site.runtime.claims = runs;
  site.runtime.capabilities = options.capabilities;
  site.runtime.queues = *limits;
  if (!options.fair_by.empty()) site.fair_by = options.fair_by;
  if (options.no_fair_by) site.fair_by = "";
  site.runtime.durability =
      options.durability == "split" ? runtime::Durability::split : runtime::Durability::fused;
  if (loaded) {
    site.agents = &loaded->file;
    site.agents_folder = loaded->folder;
    site.create = true;  // the agents are registered, also where nothing is run
    site.read_agent = [&file = *loaded](std::string_view name, std::string_view json,
                                        agents::Agent& out) {
      return app::read_agent(file, name, json, out);
    };
    for (const auto& [name, agent] : loaded->file.agents) site.runtime.agents.push_back(name);
  }
  auto opened = app::Site::open(std::move(site));
  if (!opened) return terminal.fail_with(opened.error());
  if (auto listens = (*opened)->listen(); !listens) {
    terminal.warn("other commands cannot reach this process by the store: " +
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
    terminal.print_json(Value::object({{"listening", url}, {"store", store->text()}}));
  } else {
    terminal.print("listening on " + url + "\n");
  }
  if ((*opened)->keys_all_ended()) {
    terminal.warn(
        "no key of this store is live any more, so nobody can ask: make one with "
        "`aetheris keys create`");
  }
  if (!terminal.flush()) return terminal.fail_with({Code::unavailable, "stdout is closed"});
  return service.run(**opened);
}

}  // namespace ae::cli

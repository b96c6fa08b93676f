#include "cli/service.h"

#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cstdlib>
#include <thread>
#include <utility>

#include "app/join.h"
#include "cli/commands.h"
#include "core/json.h"
#include "net/system.h"

namespace ae::cli {
namespace {

constexpr std::size_t kWorkersMax = 100'000;
constexpr Duration kStorePauseFirst = std::chrono::milliseconds(500),
                   kStorePauseMost = std::chrono::seconds(15);
constexpr Duration kLeaseMin = std::chrono::seconds(1), kLeaseMax = std::chrono::hours(1);
using Level = Journal::Level;

Result<std::size_t> workers_of(const std::string& text) {
  if (text.empty()) return runtime::RuntimeOptions().held_max;
  std::size_t workers = 0;
  const char* const end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, workers);
  if (error != std::errc() || stop != end || workers > kWorkersMax) {
    return fail(Code::usage, "--workers must be from 0 to " + std::to_string(kWorkersMax) +
                                 ", not \"" + text.substr(0, 80) + "\"");
  }
  return workers;
}

std::expected<std::optional<app::LoadedAgents>, int> load_all(const Options& options,
                                                              Terminal& terminal) {
  const std::vector<std::string>& paths = options.files;
  if (paths.empty()) return std::nullopt;
  std::vector<std::pair<std::string, app::LoadedAgents>> files;
  for (const std::string& path : paths) {
    auto loaded = load_sound(path, options, terminal);
    if (!loaded) return std::unexpected(loaded.error());
    files.emplace_back(path, *std::move(loaded));
  }
  for (const std::string& warning : app::warnings_of(files, options.policies)) {
    terminal.warn(warning);
  }
  auto all = app::join(std::move(files));
  if (!all) return std::unexpected(terminal.fail_with(all.error()));
  return *std::move(all);
}

}  // namespace

Result<Address> address_of(const std::string& text) {
  const std::size_t colon = text.rfind(':');
  const std::string host = colon == text.npos ? "127.0.0.1" : text.substr(0, colon);
  const std::string port = colon == text.npos ? text : text.substr(colon + 1);
  Address address{.host = host.empty() ? "127.0.0.1" : host};
  const char* const end = port.data() + port.size();
  const auto [stop, error] = std::from_chars(port.data(), end, address.port);
  if (error != std::errc() || stop != end || port.empty()) {
    return fail(Code::usage, "--listen must be ADDRESS:PORT (127.0.0.1:7070), not \"" +
                                 text.substr(0, 80) + "\"");
  }
  return address;
}

std::expected<ServiceWish, int> service_wish(const Options& options, Terminal& terminal) {
  ServiceWish wish;
  const auto told = [&]() -> Status {
    AE_ASSIGN(wish.store, store_of(options));
    AE_ASSIGN(wish.workers, workers_of(options.workers));
    AE_ASSIGN(wish.limits, queue_limits(options));
    auto grace = duration_from_text(options.grace);
    if (!grace) return std::unexpected(std::move(grace).error().in("--grace"));
    wish.grace = *grace;
    auto lease = duration_from_text(options.lease);
    if (!lease) return std::unexpected(std::move(lease).error().in("--lease"));
    if (*lease < kLeaseMin || *lease > kLeaseMax) {
      return fail(Code::usage, "--lease must be 1s to 1h, not " + options.lease);
    }
    wish.lease = *lease;
    if (options.wait_store.empty()) {
      wish.wait_store.reset();
    } else {
      auto wait = duration_from_text(options.wait_store);
      if (!wait) return std::unexpected(std::move(wait).error().in("--wait-store"));
      wish.wait_store = *wait;
    }
    return {};
  }();
  if (!told) return std::unexpected(terminal.fail_with(told.error()));
  auto loaded = load_all(options, terminal);
  if (!loaded) return std::unexpected(loaded.error());
  wish.loaded = *std::move(loaded);
  return wish;
}

Service::Service(Terminal& terminal, const Options& options, const ServiceWish& wish)
    : terminal_(terminal),
      journal_(terminal, {.format = journal_format(options.log),
                          .verbose = options.verbose,
                          .quiet = options.quiet,
                          .worker = worker_name()}),
      lines_(store_flag(wish.store)),
      notify_(options.notify),
      store_flag_(store_flag(wish.store)),
      logs_(!options.log.empty()),
      grace_(wish.grace),
      wait_store_(wish.wait_store) {}

app::SiteOptions Service::site(const Options& options, const ServiceWish& wish) {
  const bool runs = wish.loaded && wish.workers > 0;
  app::SiteOptions site{.store = wish.store};
  site.mode = runs ? app::SiteOptions::Mode::run : app::SiteOptions::Mode::write;
  site.observer = this;
  site.descriptors = net::raise_descriptors();
  descriptors_ = site.descriptors;
  site.refused = [this](const api::ApiRequest& request, int status, std::string_view code) {
    journal_.say({.level = Level::debug,
                  .event = "request_refused",
                  .code = std::string(code),
                  .more = {{"method", request.method},
                           {"path", api::target(request.path, {})},
                           {"status", status}}});
  };
  starts_programs_ =
      runs && std::ranges::any_of(wish.loaded->file.tools, [](const auto& tool) {
        const Value& definition = tool.second.definition;
        return tool.second.kind == "command" || definition["connection"].find("command") != nullptr;
      });
  site.signing_key = options.signing_key;
  site.tls_key = options.tls_key;
  site.runtime.worker = worker_name();
  site.runtime.lease = wish.lease;
  site.runtime.held_max = wish.workers;
  site.runtime.claims = runs;
  site.runtime.capabilities = options.capabilities;
  site.runtime.queues = wish.limits;
  if (!options.fair_by.empty()) site.fair_by = options.fair_by;
  if (options.no_fair_by) site.fair_by = "";
  site.runtime.durability =
      options.durability == "split" ? runtime::Durability::split : runtime::Durability::fused;
  if (wish.loaded) {
    site.agents = &wish.loaded->file;
    site.agents_folder = wish.loaded->folder;
    site.folders = wish.loaded->folders;
    for (const auto& [name, agent] : wish.loaded->file.agents) site.runtime.agents.push_back(name);
  }
  return site;
}

Result<std::unique_ptr<app::Site>> Service::open(const app::SiteOptions& site) {
  const auto began = std::chrono::steady_clock::now();
  Duration pause = kStorePauseFirst;
  for (;;) {
    auto opened = app::Site::open(site);
    const bool waits = !opened && opened.error().code == Code::unavailable &&
                       site.store.kind == app::StoreUrl::Kind::postgres;
    if (!waits) return opened;
    const auto waited = std::chrono::steady_clock::now() - began;
    if (wait_store_ && waited >= *wait_store_) return opened;
    if (wait_store_) pause = std::min(pause, std::chrono::ceil<Duration>(*wait_store_ - waited));
    journal_.tell({.level = Level::warn,
                   .event = "store_unavailable",
                   .code = std::string(code_name(opened.error().code)),
                   .message = opened.error().message + "; retrying in " + to_text(pause)});
    std::this_thread::sleep_for(pause);
    pause = std::min(pause * 2, kStorePauseMost);
  }
}

void Service::attach(app::Site& site) {
  site_ = &site;
  if (site.created() && logs_) {
    journal_.say({.event = "store_created", .more = {{"store", site.store_name()}}});
  } else {
    say_created(site, terminal_);
  }
  site.loop().on_signals([this](int signal) { interrupted(signal); });
}

int Service::run() {
  journal_.say({.event = "started", .more = {{"store", site_->store_name()}}});
  if (starts_programs_ && ::geteuid() == 0) {
    on_warning({}, "running as root: tool programs run as root too; use a separate user");
  }
  site_->runtime().start();
  if (!notify_.empty()) {
    notifications_ = std::make_unique<Notifications>(
        *site_, Notifications::Wish{.program = notify_,
                                    .store_flag = store_flag_,
                                    .by = worker_name(),
                                    .descriptors = descriptors_,
                                    .warn = [this](const JobId& job, const std::string& what) {
                                      on_warning(job, what);
                                    }});
    notifications_->begin();
  }
  while (!over_) site_->loop().run();
  notifications_.reset();
  journal_.finish();
  if (!stopped_) {
    journal_.say({.event = "stopped"});
    return kDone;
  }
  return terminal_.fail_with(*stopped_);
}

void Service::interrupted(int signal) {
  if (stopping_) {
    journal_.tell(
        {.event = "stopped at once", .message = "running jobs are recovered by the next process"});
    std::_Exit(128 + signal);
  }
  stop();
}

void Service::stop() {
  if (std::exchange(stopping_, true)) return;
  const std::string waits = "waiting up to " + to_text(grace_) +
                            " for requests and calls in flight (Ctrl-C again to force)";
  journal_.tell({.event = "stopping",
                 .message = waits,
                 .more = {{"held", std::uint64_t{site_->runtime().held()}}},
                 .words = "Shutting down; " + waits});
  left_ = 2;
  site_->stop_serving(grace_, [this] { gone(); });
  site_->runtime().stop(grace_, [this] { gone(); });
}

void Service::gone() {
  if (--left_ > 0) return;
  over_ = true;
  site_->loop().stop();
}

void Service::on_events(const JobId& job, const std::vector<Event>& events) {
  if (notifications_) notifications_->on_events(job, events);
  for (const Journal::Line& line : lines_.of(job, site_->runtime().agent_of(job), events)) {
    journal_.say(line);
  }
}

void Service::on_released(const JobId& job, const std::optional<Error>& problem) {
  lines_.forget(job);
  if (!problem) return;
  const bool lost = problem->code == Code::stale_attempt;
  journal_.say({.level = Level::warn,
                .event = lost ? "claim_lost" : "job_given_up",
                .job = job,
                .code = std::string(code_name(problem->code)),
                .message = problem->message});
}

void Service::on_warning(const JobId& job, const std::string& what) {
  journal_.say({.level = Level::warn, .event = "warning", .job = job, .message = what});
}

void Service::on_store(const std::optional<Error>& out) {
  if (!out) return journal_.say({.event = "store_available"});
  journal_.say({.level = Level::warn,
                .event = "store_unavailable",
                .code = std::string(code_name(out->code)),
                .message = "the store is unavailable: " + out->message});
}

void Service::on_store_stopped(const Error& error) {
  stopped_ = error;
  over_ = true;
  site_->loop().stop();
}

}  // namespace ae::cli

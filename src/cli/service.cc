#include "cli/service.h"

#include <fmt/core.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cstdlib>
#include <thread>
#include <utility>

#include "api/command_line.h"
#include "app/merge_agents.h"
#include "cli/shared.h"
#include "json/json.h"
#include "net/system.h"

namespace ae::cli {
namespace {

constexpr std::size_t kWorkersMax = 100'000;
constexpr Duration kStorePauseFirst = std::chrono::milliseconds(500),
                   kStorePauseMost = std::chrono::seconds(15);
constexpr Duration kLeaseMin = std::chrono::seconds(1), kLeaseMax = std::chrono::hours(1);
using Level = ServiceLog::Level;

Result<std::size_t> workers_of(const std::string& text) {
  if (text.empty()) return runtime::RuntimeOptions().leased_max;
  std::size_t workers = 0;
  const char* const end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, workers);
  if (error != std::errc() || stop != end || workers > kWorkersMax) {
    return fail(Code::usage, "--workers must be from 0 to {}, not \"{}\"", kWorkersMax,
                text.substr(0, 80));
  }
  return workers;
}

// `workers`: concurrent jobs.
std::expected<std::optional<app::LoadedAgents>, int> load_all(const ServiceOptions& options,
                                                              std::size_t workers,
                                                              Terminal& terminal) {
  std::vector<std::string> paths = options.files;
  if (paths.empty()) {
    if (!options.accepts_code || workers == 0) return std::nullopt;
    paths.emplace_back();  // all agents are those of workers
  }
  std::vector<std::pair<std::string, app::LoadedAgents>> files;
  for (const std::string& path : paths) {
    auto loaded = load_valid_agents(
        path, {.policies = options.policies, .needs_agents = !options.accepts_code}, terminal);
    if (!loaded) return std::unexpected(loaded.error());
    files.emplace_back(path, *std::move(loaded));
  }
  for (const std::string& warning : app::agents_warnings(files, options.policies)) {
    terminal.warn(warning);
  }
  auto all = app::merge_agents(std::move(files));
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
    return fail(Code::usage, "--listen must be ADDRESS:PORT (127.0.0.1:7070), not \"{}\"",
                text.substr(0, 80));
  }
  return address;
}

std::expected<ServiceSettings, int> parse_service_settings(const ServiceOptions& options,
                                                           Terminal& terminal) {
  ServiceSettings service_settings;
  const auto parsed = [&]() -> Status {
    AE_ASSIGN(service_settings.store, store_of(options));
    AE_ASSIGN(service_settings.workers, workers_of(options.workers));
    AE_ASSIGN(service_settings.limits, queue_limits(options.queue_limits));
    auto grace = duration_from_text(options.grace);
    if (!grace) return std::unexpected(std::move(grace).error().with_context("--grace"));
    service_settings.grace = *grace;
    auto lease = duration_from_text(options.lease);
    if (!lease) return std::unexpected(std::move(lease).error().with_context("--lease"));
    if (*lease < kLeaseMin || *lease > kLeaseMax) {
      return fail(Code::usage, "--lease must be 1s to 1h, not {}", options.lease);
    }
    service_settings.lease = *lease;
    if (options.wait_store.empty()) {
      service_settings.wait_store.reset();
    } else {
      auto wait = duration_from_text(options.wait_store);
      if (!wait) return std::unexpected(std::move(wait).error().with_context("--wait-store"));
      service_settings.wait_store = *wait;
    }
    return {};
  }();
  if (!parsed) return std::unexpected(terminal.fail_with(parsed.error()));
  auto loaded = load_all(options, service_settings.workers, terminal);
  if (!loaded) return std::unexpected(loaded.error());
  service_settings.loaded = *std::move(loaded);
  return service_settings;
}

Service::Service(Terminal& terminal, const ServiceOptions& options,
                 const ServiceSettings& service_settings)
    : terminal_(terminal),
      service_log_(terminal, {.format = service_log_format(options.log),
                              .verbose = options.verbose,
                              .quiet = options.quiet,
                              .worker = worker_name()}),
      lines_(store_flag(service_settings.store)),
      notify_(options.notify),
      store_flag_(store_flag(service_settings.store)),
      logs_(!options.log.empty()),
      grace_(service_settings.grace),
      wait_store_(service_settings.wait_store) {}

app::InstanceOptions Service::instance_options(const ServiceOptions& options,
                                               const ServiceSettings& service_settings) {
  const bool runs = service_settings.loaded && service_settings.workers > 0;
  app::InstanceOptions site_options{.store = service_settings.store};
  site_options.mode = runs ? app::InstanceOptions::Mode::run : app::InstanceOptions::Mode::write;
  site_options.observer = this;
  site_options.descriptors = net::raise_descriptor_limit();
  descriptors_ = site_options.descriptors;
  site_options.on_refused = [this](const api::ApiRequest& request, int status,
                                   std::string_view code) {
    service_log_.add({.level = Level::debug,
                      .event = "request_refused",
                      .code = std::string(code),
                      .more = {{"method", request.method},
                               {"path", api::target(request.path, {})},
                               {"status", status}}});
  };
  starts_programs_ =
      runs && std::ranges::any_of(service_settings.loaded->file.tools, [](const auto& tool) {
        const Value& definition = tool.second.definition;
        return tool.second.kind == "command" || definition["connection"].find("command") != nullptr;
      });
  site_options.signing_key = options.signing_key;
  site_options.runtime.worker = worker_name();
  site_options.runtime.lease = service_settings.lease;
  site_options.runtime.leased_max = service_settings.workers;
  site_options.runtime.may_claim = runs;
  site_options.runtime.capabilities = options.capabilities;
  site_options.runtime.queues = service_settings.limits;
  if (!options.fair_by.empty()) site_options.fair_by = options.fair_by;
  if (options.no_fair_by) site_options.fair_by = "";
  site_options.runtime.durability =
      options.durability == "split" ? runtime::Durability::split : runtime::Durability::fused;
  if (service_settings.loaded) {
    site_options.agents = &service_settings.loaded->file;
    site_options.agents_folder = service_settings.loaded->folder;
    site_options.folders = service_settings.loaded->folders;
    for (const auto& [name, agent] : service_settings.loaded->file.agents)
      site_options.runtime.agents.push_back(name);
    site_options.runtime.has_agents = !service_settings.loaded->file.agents.empty();
  }
  return site_options;
}

Result<std::unique_ptr<app::Instance>> Service::open(const app::InstanceOptions& site_options) {
  const auto began = std::chrono::steady_clock::now();
  Duration pause = kStorePauseFirst;
  for (;;) {
    auto opened = app::Instance::open(site_options);
    const bool waits = !opened && opened.error().code == Code::unavailable &&
                       site_options.store.kind == app::StoreUrl::Kind::postgres;
    if (!waits) return opened;
    const auto waited = std::chrono::steady_clock::now() - began;
    if (wait_store_ && waited >= *wait_store_) return opened;
    if (wait_store_) pause = std::min(pause, std::chrono::ceil<Duration>(*wait_store_ - waited));
    service_log_.announce(
        {.level = Level::warn,
         .event = "store_unavailable",
         .code = std::string(code_name(opened.error().code)),
         .message = fmt::format("{}; retrying in {}", api::message_with_command(opened.error()),
                                to_text(pause))});
    std::this_thread::sleep_for(pause);
    pause = std::min(pause * 2, kStorePauseMost);
  }
}

void Service::attach(app::Instance& instance) {
  instance_ = &instance;
  if (instance.created() && logs_) {
    service_log_.add({.event = "store_created", .more = {{"store", instance.store_name()}}});
  } else {
    print_created(instance, terminal_);
  }
  instance.loop().on_signals([this](int signal) { on_signal(signal); });
}

int Service::run() {
  service_log_.add({.event = "started", .more = {{"store", instance_->store_name()}}});
  if (starts_programs_ && ::geteuid() == 0) {
    on_warning({}, "running as root: tool programs run as root too; use a separate user");
  }
  instance_->runtime().start();
  if (!notify_.empty()) {
    notifications_ = std::make_unique<Notifications>(
        *instance_,
        Notifications::Options{
            .program = notify_,
            .store_flag = store_flag_,
            .by = worker_name(),
            .descriptors = descriptors_,
            .warn = [this](const JobId& job, const std::string& what) { on_warning(job, what); }});
    notifications_->begin();
  }
  while (!is_over_) instance_->loop().run();
  notifications_.reset();
  service_log_.finish();
  if (!stopped_) {
    service_log_.add({.event = "stopped"});
    return kDone;
  }
  return terminal_.fail_with(*stopped_);
}

void Service::on_signal(int signal) {
  if (stopping_) {
    service_log_.announce(
        {.event = "stopped at once", .message = "running jobs are recovered by the next process"});
    std::_Exit(128 + signal);
  }
  stop();
}

void Service::stop() {
  if (std::exchange(stopping_, true)) return;
  const std::string waits = fmt::format(
      "waiting up to {} for requests and calls in flight (Ctrl-C again to force)", to_text(grace_));
  service_log_.announce({.event = "stopping",
                         .message = waits,
                         .more = {{"held", std::uint64_t{instance_->runtime().leased_jobs()}}},
                         .words = fmt::format("Shutting down; {}", waits)});
  parts_left_ = 2;
  instance_->stop_serving(grace_, [this] { on_part_stopped(); });
  instance_->runtime().stop(grace_, [this] {
    instance_->close_workers();
    on_part_stopped();
  });
}

void Service::on_part_stopped() {
  if (--parts_left_ > 0) return;
  is_over_ = true;
  instance_->loop().stop();
}

// Its lines and notifications tell of jobs and questions, not of single steps.
bool Service::reads(EventType type) const {
  switch (type) {
    case EventType::node_started:
    case EventType::command_emitted:
    case EventType::tool_invocation_started:
    case EventType::tool_invocation_finished:
    case EventType::command_committed:
    case EventType::node_finished:
    case EventType::step_committed:
      return false;
    default:
      return true;
  }
}

void Service::on_events(const JobId& job, const std::vector<Event>& events) {
  if (notifications_) notifications_->on_events(job, events);
  for (const ServiceLog::Line& line : lines_.of(job, instance_->runtime().agent_of(job), events)) {
    service_log_.add(line);
  }
}

void Service::on_released(const JobId& job, const std::optional<Error>& problem) {
  lines_.remove(job);
  if (release_watcher_) release_watcher_(job);
  if (!problem) return;
  const bool lost = problem->code == Code::stale_attempt;
  service_log_.add({.level = Level::warn,
                    .event = lost ? "claim_lost" : "job_given_up",
                    .job = job,
                    .code = std::string(code_name(problem->code)),
                    .message = api::message_with_command(*problem)});
}

void Service::on_warning(const JobId& job, const std::string& what) {
  service_log_.add({.level = Level::warn, .event = "warning", .job = job, .message = what});
}

void Service::on_store_health(const std::optional<Error>& out) {
  if (!out) return service_log_.add({.event = "store_available"});
  service_log_.add({.level = Level::warn,
                    .event = "store_unavailable",
                    .code = std::string(code_name(out->code)),
                    .message = fmt::format("the store is unavailable: {}", out->message)});
}

void Service::on_store_stopped(const Error& error) {
  stopped_ = error;
  is_over_ = true;
  instance_->loop().stop();
}

}  // namespace ae::cli

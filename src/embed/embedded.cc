#include "embed/embedded.h"

#include <fmt/core.h>

#include <chrono>

#include "api/target.h"
#include "embed/context.h"
#include "embed/convert.h"
#include "json/json.h"
#include "log/field_names.h"
#include "net/http_target.h"

namespace aetheris {
namespace {

constexpr ae::Duration kGrace = std::chrono::seconds(10);

std::string_view effect_text(Effect effect) {
  return ae::engine::to_text(static_cast<ae::engine::EffectClass>(effect));
}

// The definitions of agents and tools, as an agents file has them.
Value definitions_of(const Settings& settings, const Value& models) {
  Value::Object tools, agents;
  for (const Tool& tool : settings.tools) {
    Value::Object entry = tool.options;
    entry.insert_or_assign("worker", tool.name);
    entry.insert_or_assign("effect", effect_text(tool.effect));
    tools.insert_or_assign(tool.name, std::move(entry));
  }
  for (const Agent& agent : settings.agents) {
    Value::Array uses;
    for (const std::string& tool : agent.uses) uses.emplace_back(tool);
    Value::Object code{{"language", "cpp"}, {"uses", std::move(uses)}};
    if (!agent.version.empty()) code.insert_or_assign(ae::field::version, agent.version);
    Value::Object entry = agent.options;
    entry.insert_or_assign(ae::field::code, std::move(code));
    agents.insert_or_assign(agent.name, std::move(entry));
  }
  return Value::object(
      {{"agents", std::move(agents)}, {"models", models}, {"tools", std::move(tools)}});
}

}  // namespace

Embedded::~Embedded() {
  if (!thread_.joinable()) return;
  post([this] {
    is_stopping_ = true;
    instance_->runtime().stop(kGrace, [this] { instance_->loop().stop(); });
  });
  thread_.join();
}

Status Embedded::begin() {
  std::optional<Status> started;
  thread_ = std::thread([&] { run_loop(started); });
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return started.has_value(); });
  lock.unlock();
  if (!*started) thread_.join();
  return *std::move(started);
}

void Embedded::restart() {
  is_restarting_ = true;
  instance_->loop().stop();
}

Result<Value> Embedded::run(std::string_view agent, const Value& input, const JobOptions& options) {
  AETHERIS_ASSIGN(const std::string job, start(agent, input, options));
  while (true) {
    const std::uint64_t released = released_jobs();
    AETHERIS_ASSIGN(const Value view, send("GET", {"api", "jobs", job}, {}, {}));
    const std::string& status = view.text("status");
    if (status == "completed") return view[ae::field::result];
    if (status == "failed" || status == "cancelled") {
      return std::unexpected(Error{view[ae::field::error].text(ae::field::code),
                                   view[ae::field::error].text("message")});
    }
    if (status == "parked") {
      return std::unexpected(Error{
          "job_not_finished",
          fmt::format("the job {} is parked: {}", job, view["parked"].text(ae::field::reason))});
    }
    await_release(released);
  }
}

Result<std::string> Embedded::start(std::string_view agent, const Value& input,
                                    const JobOptions& options) {
  Value::Object body{{ae::field::agent, agent}, {ae::field::input, input}};
  if (!options.id.empty()) body.insert_or_assign("id", options.id);
  if (!options.labels.empty()) {
    Value::Object labels;
    for (const auto& [name, value] : options.labels) labels.emplace(name, value);
    body.insert_or_assign(ae::field::labels, std::move(labels));
  }
  AETHERIS_ASSIGN(const Value created,
                  send("POST", {"api", "jobs"}, {}, body, options.idempotency_key));
  return created.text("id");
}

Result<Value> Embedded::request(std::string_view method, std::string_view path, const Value& body) {
  auto target = ae::net::parse_target(path);
  if (!target) return ae::embed::failed(target);
  return send(method, std::move(target->path), std::move(target->query), body);
}

// A job ended, waits, or was released: those who wait for it read it again.
void Embedded::on_released(const ae::JobId&, const std::optional<ae::Error>&) {
  const std::lock_guard lock(mutex_);
  released_++;
  changed_.notify_all();
}

std::uint64_t Embedded::released_jobs() {
  const std::lock_guard lock(mutex_);
  return released_;
}

// Until a job was released since then. Another process may run it: for a second at most.
void Embedded::await_release(std::uint64_t before) {
  std::unique_lock lock(mutex_);
  changed_.wait_for(lock, std::chrono::seconds(1), [&] { return released_ != before; });
}

void Embedded::run_loop(std::optional<Status>& started) {
  Status status = open_instance();
  const bool has_started = status.has_value();
  {
    // `started` is gone once the waiting thread has seen it.
    const std::lock_guard lock(mutex_);
    started = std::move(status);
    changed_.notify_all();
  }
  if (!has_started) return;
  while (!is_stopping_) {
    instance_->loop().run();
    if (std::exchange(is_restarting_, false)) replace_instance();
    if (ae::async::Task task = std::exchange(outside_loop_, nullptr)) task();
  }
  if (hooks_.on_close) hooks_.on_close();
  instance_.reset();
}

// Nothing is released or awaited, as when a process is killed.
void Embedded::replace_instance() {
  if (hooks_.on_close) hooks_.on_close();
  std::unique_ptr<ae::app::Instance> ended;
  {
    const std::lock_guard lock(mutex_);
    ended = std::move(instance_);
    for (const auto& answer : open_) answer->is_lost = true;
    open_.clear();
    changed_.notify_all();
  }
  ended.reset();
  const Status opened = open_instance();
  // It was opened before, with the same settings and a store in memory.
  AE_CHECK(opened.has_value(), opened ? "" : opened.error().message);
}

void Embedded::post(ae::async::Task task) {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return instance_ != nullptr; });
  instance_->loop().post(std::move(task));
}

// On the thread of the loop, outside of it: the task may run the loop itself, to await something.
void Embedded::post_outside_loop(ae::async::Task task) {
  post([this, task = std::move(task)]() mutable {
    outside_loop_ = std::move(task);
    instance_->loop().stop();
  });
}

Result<Value> Embedded::call(const std::function<void(ae::app::Instance&, Done done)>& start) {
  while (true) {
    const auto answer = std::make_shared<Answer>();
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return instance_ != nullptr; });
    open_.insert(answer);
    instance_->loop().post([this, answer, &start] {
      start(*instance_, [this, answer](Result<Value> value) {
        const std::lock_guard on_answer(mutex_);
        answer->value = std::move(value);
        open_.erase(answer);
        changed_.notify_all();
      });
    });
    changed_.wait(lock, [&] { return answer->value.has_value() || answer->is_lost; });
    if (answer->value) return *std::move(answer->value);
  }
}

Result<Value> Embedded::send(std::string_view method, ae::api::Path path, ae::api::QueryPairs query,
                             const Value& body, const std::string& idempotency_key) {
  ae::api::ApiRequest request{.method = std::string(method),
                              .path = std::move(path),
                              .query = std::move(query),
                              .body = body.is_null() ? std::string() : body.to_json()};
  if (!idempotency_key.empty()) request.idempotency_key = idempotency_key;
  return call([&request](ae::app::Instance& instance, Done done) {
    instance.api().handle(
        request, [done = std::move(done)](const ae::api::ApiResponse& response) mutable {
          Value value = ae::embed::to_public(response.body);
          if (response.status < 400) return done(std::move(value));
          done(std::unexpected(Error{value.text(ae::field::code), value.text(ae::field::detail)}));
        });
  });
}

Status Embedded::open_instance() {
  const std::string code = definitions_of(settings_, hooks_.models).to_json();
  const auto store = ae::app::store_url(settings_.store);
  if (!store) return ae::embed::failed(store);
  auto loaded = ae::app::load_agents(settings_.agents_file, {.code = code});
  if (!loaded) return ae::embed::failed(loaded);
  loaded_ = *std::move(loaded);
  if (!loaded_.diagnostics.empty()) {
    return std::unexpected(
        Error{"plan_invalid", ae::agents::diagnostics_text(loaded_.diagnostics)});
  }
  ae::app::InstanceOptions options{.store = *store,
                                   .mode = ae::app::InstanceOptions::Mode::run,
                                   .agents = &loaded_.file,
                                   .agents_folder = loaded_.folder,
                                   .observer = this};
  for (const Agent& agent : settings_.agents) {
    options.native_agents.push_back(
        {.name = agent.name, .version = agent.version, .body = ae::embed::to_internal(agent.body)});
  }
  for (const Tool& tool : settings_.tools) {
    options.native_functions.push_back({.name = tool.name,
                                        .effect = static_cast<ae::engine::EffectClass>(tool.effect),
                                        .function = ae::embed::to_internal(tool.function)});
  }
  if (hooks_.adapt) hooks_.adapt(options);
  auto instance = ae::app::Instance::open(std::move(options));
  if (!instance) return ae::embed::failed(instance);
  if (const auto listening = (*instance)->listen(); !listening) {
    return ae::embed::failed(listening);
  }
  if (hooks_.on_open) hooks_.on_open(**instance);
  (*instance)->runtime().start();
  const std::lock_guard lock(mutex_);
  instance_ = *std::move(instance);
  changed_.notify_all();
  return {};
}

// The process serves until a signal ends it.
Status Embedded::serve(std::string_view listen) {
  const std::size_t colon = listen.rfind(':');
  const std::string port(colon == listen.npos ? "" : listen.substr(colon + 1));
  if (port.empty() || port.size() > 5 || port.find_first_not_of("0123456789") != port.npos ||
      std::stoul(port) > 65'535) {
    return std::unexpected(Error{std::string(ae::code_name(ae::Code::usage)),
                                 "the address to listen on is ADDRESS:PORT"});
  }
  std::optional<Status> ended;
  post_outside_loop([&] {
    const auto served = instance_->serve({.address = std::string(listen.substr(0, colon)),
                                          .port = static_cast<std::uint16_t>(std::stoul(port)),
                                          .local_only = true});
    const std::lock_guard lock(mutex_);
    if (!served) {
      ended = ae::embed::failed(served);
      changed_.notify_all();
      return;
    }
    instance_->loop().on_signals([this, &ended](int) {
      const std::lock_guard on_signal(mutex_);
      ended = Status();
      changed_.notify_all();
    });
  });
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return ended.has_value(); });
  return *std::move(ended);
}

Result<std::unique_ptr<Aetheris>> Aetheris::open(Settings settings) {
  auto runtime = std::make_unique<Embedded>(std::move(settings), Embedded::Hooks());
  AETHERIS_TRY(runtime->begin());
  return runtime;
}

}  // namespace aetheris

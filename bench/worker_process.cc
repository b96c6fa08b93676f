#include "worker_process.h"

#include <fmt/core.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <utility>

#include "testing/native_functions.h"
#include "tools/native/native.h"

namespace ae::bench {
namespace {

constexpr int kCreatesInFlight = 256;

[[noreturn]] void exit_with_error(const Error& error) {
  std::fprintf(stderr, "%s\n", error.message.c_str());
  std::exit(1);
}

}  // namespace

std::int64_t now_us() {
  return std::chrono::duration_cast<std::chrono::microseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

void write_event(int pipe, WorkerEvent::Kind kind) {
  const WorkerEvent event{kind, now_us()};
  if (::write(pipe, &event, sizeof event) != sizeof event) std::exit(1);
}

WorkerEvent read_event(int pipe) {
  WorkerEvent event;
  if (::read(pipe, &event, sizeof event) != sizeof event) std::exit(1);
  return event;
}

std::int64_t await_event(int pipe, WorkerEvent::Kind kind) {
  for (;;) {
    const WorkerEvent event = read_event(pipe);
    if (event.kind == kind) return event.at_us;
  }
}

WorkerProcess::WorkerProcess(const Options& settings) : event_pipe_(settings.event_pipe) {
  auto opened = store::PostgresStore::open({.url = settings.url, .loop = loop_});
  if (!opened) exit_with_error(opened.error());
  store_ = *std::move(opened);
  tool_registry_.add("work", {std::make_unique<tools::NativeTool>(
                                  loop_, steady_, testing::native_functions().at("fill").function),
                              "0123456789abcdef"});
  runtime::RuntimeOptions options;
  options.worker = fmt::format("bench:{}", ::getpid());
  options.may_claim = event_pipe_ >= 0;
  options.poll = settings.poll;
  runtime_.emplace(runtime::World{loop_, steady_, random_, *store_, tool_registry_}, options, this);
}

void WorkerProcess::await(const std::function<void(std::function<void()> done)>& start) {
  start([this] { loop_.stop(); });
  loop_.run();
}

JobId WorkerProcess::create_jobs(const std::shared_ptr<const engine::Plan>& plan, int jobs) {
  JobId last;
  int to_start = jobs, to_end = jobs;
  await([&](const std::function<void()>& done) {
    for (int i = 0; i < kCreatesInFlight; ++i) create_job(plan, to_start, to_end, last, done);
  });
  return last;
}

void WorkerProcess::create_job(const std::shared_ptr<const engine::Plan>& plan, int& to_start,
                               int& to_end, JobId& last, const std::function<void()>& done) {
  if (to_start == 0) return;
  --to_start;
  runtime::NewJobRequest request;
  request.agent = "bench";
  request.plan = plan;
  request.input = Value::object({});
  request.start_here = false;
  runtime_->create(std::move(request), [this, plan, &to_start, &to_end, &last,
                                        done](const Result<runtime::CreateResult>& created) {
    if (!created) exit_with_error(created.error());
    last = created->job;
    if (--to_end == 0) return done();
    create_job(plan, to_start, to_end, last, done);
  });
}

void WorkerProcess::signal(const JobId& job, const std::string& key) {
  await([&](const std::function<void()>& done) {
    engine::ControlRequest request{
        .id = "signal",
        .body = engine::SignalRequest{.correlation_key = key, .wait_type = "signal"}};
    runtime_->submit_request(job, std::move(request), [done](const Result<Value>& answer) {
      if (!answer) exit_with_error(answer.error());
      done();
    });
  });
}

void WorkerProcess::on_events(const JobId&, const std::vector<Event>& events) {
  if (event_pipe_ < 0) return;
  for (const Event& event : events) {
    if (event.type == EventType::job_running) write_event(event_pipe_, WorkerEvent::Kind::running);
    if (event.type == EventType::job_waiting) write_event(event_pipe_, WorkerEvent::Kind::waiting);
    if (event.type == EventType::job_completed)
      write_event(event_pipe_, WorkerEvent::Kind::completed);
  }
}

}  // namespace ae::bench
